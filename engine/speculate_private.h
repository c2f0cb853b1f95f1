/* SPDX-License-Identifier: Apache-2.0 */
/* speculate_private.h - the inside of struct speculator, for speculate.c (what guesses are worth,
 * and how many are checked) and speculate_draft.c (when a draft model makes some). */
#ifndef WHET_ENGINE_SPECULATE_PRIVATE_H
#define WHET_ENGINE_SPECULATE_PRIVATE_H

#include "engine/speculate.h"
#include "engine/step_times.h"

/* Guesses found by lookup are of a class by how far the place matches; the last class are those of
 * the draft model, whose sequences have MATCH_DRAFT in the place of a match. */
enum { CLASS_DRAFT = 6, CLASSES, MATCH_DRAFT = -1 };

struct speculator {
    int32_t widest;                        /* of any step with guesses, ... */
    int32_t equal;                         /* ... and of one with the same bits, */
    int32_t limit;                         /* and of the plan being made */
    struct step_times times;               /* of steps of decodes */
    double tried[CLASSES], right[CLASSES]; /* guesses, of all sequences */
    double account[2];     /* lost time that is left, in steps without guesses: lookup, draft */
    struct sequence **seq; /* [size] of the plan being made */
    int32_t size;
    /* the draft model: */
    struct draft *draft; /* NULL: none */
    struct step_times draft_times;
    double cost;        /* of one of its steps, where none was timed yet, in steps of as many */
    int32_t tokens;     /* 0: as many as pay */
    double drafting_ns; /* what it took since the last step whose time was told */
    struct drafting job[DRAFT_WIDTH];
    int32_t jobs;
};

/* What goes before a step: nanoseconds that count in a choice, nanoseconds that it will take, and
 * steps without guesses that may be lost by both. */
struct before {
    double ns, real_ns, account;
};

/* Nanoseconds of a step of the served model; in an unknown unit before any was timed. */
double speculate_ns(const struct speculator *s, int32_t width);
/* How likely the next guess for this sequence is right. */
double speculate_likely(const struct speculator *s, struct sequence *seq, int32_t match);
/* How many more tokens can be guessed for it; 0 or less: none. */
int32_t speculate_left(const struct sequence *seq);
/* The number of guesses, of those that s->seq [n] could have, that make most tokens a nanosecond:
 * returns how many, or `least` with *number 0 if none make more than that. */
double speculate_best(const struct speculator *s, int32_t n, const struct before *before,
                      double least, int32_t *number);

/* speculate_draft.c. Lets the draft model guess where that makes more than `rate` tokens a
 * nanosecond: then *number is another, and the sequences' `guesses` and `likely` are those that
 * they will have. True if it should read first, for a later step. */
bool speculate_plan_drafts(struct speculator *s, int32_t n, double rate, int32_t *number);
/* The jobs of those that drafts were taken for, as far as there are pages. */
void speculate_give_jobs(struct speculator *s, struct scheduler *scheduler, int32_t n);

#endif
