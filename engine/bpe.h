/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.h - the vocabulary as byte strings, and the merges that build a word's tokens. */
#ifndef WHET_ENGINE_BPE_H
#define WHET_ENGINE_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/tokenizer.h"

struct bpe;

/* A growing list of token ids. */
struct id_list {
    int32_t *id;
    int64_t n, room;
};
void id_list_add(struct id_list *l, int32_t id);

struct bpe *bpe_open(const struct vocab_source *src, struct err *err);
void bpe_close(struct bpe *b);

/* Working memory of one thread; zero-initialize, bpe_scratch_free() at the end. */
struct bpe_scratch {
    struct bpe_symbol *symbol;
    struct bpe_candidate *heap;
    size_t room;
};
void bpe_scratch_free(struct bpe_scratch *s);

/* Appends the tokens of one word of n bytes, 1 <= n < 2^31, of whole characters where the
 * vocabulary is one of SentencePiece. What the vocabulary has no token for, no byte tokens and no
 * unknown token is left out, as Hugging Face tokenizers does. -1 with a message if `control` says
 * to end. */
int bpe_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t n,
             struct id_list *out, struct encode_control *control, struct err *err);

/* Whether tokens of this kind are found in a text before words are (added.h). */
bool bpe_added(uint8_t kind);

/* Whether the tokens of a text of a SentencePiece vocabulary are those of its words, each of which
 * begins with the spaces before it: no merge reaches over that border. */
bool bpe_words_part(const struct bpe *b);

/* The bytes a token stands for in a text, and those that words have for it: the same but for
 * SentencePiece, which writes spaces and bytes in characters. */
const char *bpe_word_bytes(const struct bpe *b, int32_t id, size_t *n);
const char *bpe_bytes(const struct bpe *b, int32_t id, size_t *n);
/* The token that stands for these bytes in words; -1 if there is none. */
int32_t bpe_find(const struct bpe *b, const char *bytes, size_t n);

/* Bytes of a text in GPT-2's byte-level alphabet, at most n of them, written to out. -1 if it has
 * a character outside of that alphabet. */
int64_t byte_level_decode(const char *text, size_t n, char *out);

#endif
