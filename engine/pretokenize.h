/* SPDX-License-Identifier: Apache-2.0 */
/* pretokenize.h - cuts text into the words that BPE then works on one by one.
 *
 * A pretokenizer is a list of steps (struct pre_step of tokenizer.h); each step cuts every piece
 * of the step before it. Immutable once open: any number of runs at once, on any threads.
 */
#ifndef WHET_ENGINE_PRETOKENIZE_H
#define WHET_ENGINE_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/tokenizer.h"

/* The pattern of ByteLevel(use_regex=true), and those of Digits(individual_digits or not). */
extern const char *const pre_gpt2_pattern;
extern const char *const pre_digit_pattern;
extern const char *const pre_digits_pattern;

/* What a GGUF `tokenizer.ggml.pre` name stands for. */
struct pre_family {
    const char *name; /* names, separated by spaces */
    struct pre_step step[2];
    int32_t steps;
    bool ignore_merges, nfc, add_bos;
};

/* The family a GGUF file names; NULL with a message that names it if it is not known. */
const struct pre_family *pretokenize_family(const char *name, struct err *err);

struct pretokenizer;

struct pretokenizer *pretokenizer_open(const struct pre_step *step, int32_t steps, struct err *err);
void pretokenizer_close(struct pretokenizer *p);

/* Receives one word; not called for empty ones. -1 (with the message set) ends the run. */
typedef int pre_word_fn(void *ctx, const char *word, size_t n, struct err *err);

/* A run holds what one thread needs while it cuts texts with `p`. Its operations are counted in
 * `control`, which lives as long. */
struct pre_run;
struct pre_run *pre_run_begin(const struct pretokenizer *p, pre_word_fn *word, void *ctx,
                              struct encode_control *control);
/* Cuts well-formed UTF-8. -1 if `word` failed, `control` says to end, or a pattern needs more work
 * than is proportional to the text. */
int pre_run_cut(struct pre_run *r, const char *text, size_t n, struct err *err);
void pre_run_end(struct pre_run *r);

#endif
