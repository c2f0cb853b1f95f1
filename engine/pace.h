/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h - how many prompt tokens a step reads beside those that decode.
 *
 * Two targets pull at it. Whoever decodes waits for the whole step, so prompt tokens beside it make
 * its time between tokens longer; whoever has no token yet waits until its prompt was read. Both
 * are in milliseconds, and what a step of some size takes is learned from the steps that ran: a
 * line over its prompt tokens, its decoding sequences and the positions that both attend to, fitted
 * by recursive least squares that forget, each step what is known about steps like it.
 *
 * The rule: while a prompt waits, a step takes twice what its decodes take alone, because sequences
 * that wait leave the batch empty; longer where first tokens would be late else; and no longer than
 * the target between tokens, but where first tokens cannot be in time within that: there it may
 * take those twice. Pure arithmetic on what it is told; engine thread only.
 */
#ifndef WHET_ENGINE_PACE_H
#define WHET_ENGINE_PACE_H

#include <stdint.h>

enum { PACE_TERMS = 5 };

/* What a step's time depends on. */
struct step_size {
    int32_t prompt;         /* prompt tokens */
    int32_t decodes;        /* sequences that decode, or tokens of them */
    int64_t context;        /* positions that the decodes attend to, in sum */
    int64_t prompt_context; /* positions that the prompt tokens attend to, in sum */
};

/* What waits for its first token, and since when. */
struct prompt_load {
    int64_t tokens;       /* prompt tokens yet to be computed, in sum */
    int64_t first_tokens; /* of the sequence that waits longest */
    int64_t first_ns;     /* when it came; 0: nobody waits */
    int64_t attended;     /* positions that all of these tokens attend to, in sum */
    int64_t lent_ns;      /* what sequences that decode have waited for slices (tuning.c) already */
};

struct pace {
    double itl_ns, ttft_ns; /* the targets; itl_ns 0: steps of any length; ttft_ns 0: at once */
    double weight[PACE_TERMS], spread[PACE_TERMS][PACE_TERMS];
    double most; /* tokens that a step had better not exceed since one was too long; 0: no limit */
    int64_t steps;
};

void pace_open(struct pace *p, double itl_ms, double ttft_ms);
/* A step of this size took so long. */
void pace_learn(struct pace *p, const struct step_size *size, int64_t ns);
/* Other kernels serve from now on: what was learned holds only until new steps say otherwise. */
void pace_doubt(struct pace *p);
/* Nanoseconds that a step of this size would take; 0 before anything was learned. */
double pace_ns(const struct pace *p, const struct step_size *size);
/* Prompt tokens of the next step beside decodes (`size` without prompt tokens), at most `chunk`. */
int32_t pace_tokens(const struct pace *p, const struct step_size *size,
                    const struct prompt_load *load, int64_t now_ns, int32_t chunk);

#endif
