/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h - from a row of logits to a token.
 *
 * Order of operations: logit bias; repetition, presence and frequency penalties; (temperature 0:
 * argmax, lowest id on ties); temperature; top-k; top-p; min-p; one draw. Random numbers are
 * counter-based (Philox 4x32-10 of (seed, index)), so a request's text depends on its own seed and
 * position only, never on its neighbours. log-probabilities are of the logits after bias and
 * penalties and before temperature and cuts, as OpenAI's API reports them. A row with a `target`
 * is scored on the model's own logits: no bias, no penalties. NaN counts as minus infinity.
 * Pure functions: any thread.
 */
#ifndef WHET_ENGINE_SAMPLER_H
#define WHET_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/sampling.h"

enum { SAMPLER_TOP_MAX = 20 };

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    /* temperature (0: greedy), top_p, min_p, repetition_penalty (1: none; over prompt and output),
     * presence_penalty and frequency_penalty (over output only). */
    SAMPLING_NUMBERS(SAMPLING_MEMBER)
    int32_t top_k; /* 0: all */
    uint64_t seed;
    int32_t top_logprobs; /* -1: no logprobs; 0: of the chosen token; n: and of the n best */
    const struct logit_bias *bias;
    int32_t biases;
    const int32_t *banned; /* ids that may not be drawn (stop tokens before min_tokens) */
    int32_t banneds;
};

/* A draw that leaves logits as they are, for initializers: the numbers whose neutral value is not
 * 0. Without a temperature it is greedy. */
#define SAMPLING_NEUTRAL .top_p = 1, .repetition_penalty = 1
SAMPLING_NUMBERS_ARE(6);

struct sampled {
    int32_t token; /* -1: no logit was above minus infinity */
    float logprob; /* valid when top_logprobs >= 0 */
    int32_t tops;
    int32_t top_id[SAMPLER_TOP_MAX];
    float top_logprob[SAMPLER_TOP_MAX];
};

/* One row that needs logits. */
struct sample_row {
    const struct sampling *params;
    uint64_t index;         /* tokens generated before this one: the random counter */
    const int32_t *history; /* prompt and output so far */
    int32_t history_n, prompt_n;
    int32_t unseen; /* a step started ahead (backend.h): 1 + the index in the step of the token that
                       the history will end with, which the host does not know yet; otherwise 0 */
    int32_t target; /* >= 0: score this token instead of drawing one (prompt log-probabilities) */
    struct sampled out;
};

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): the block
 * function, and four random words of (seed, index, lane). */
void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
void philox(uint64_t seed, uint64_t index, uint32_t lane, uint32_t out[4]);

/* Draws from `logits` [vocab], which is overwritten. `scratch` holds 2*vocab floats/ints. */
void sampler_run(float *logits, int32_t vocab, struct sample_row *row, void *scratch);
int64_t sampler_scratch_bytes(int32_t vocab);

#endif
