/* SPDX-License-Identifier: Apache-2.0 */
/* draft.h - a small model of the same vocabulary that guesses what the served one will say.
 *
 * Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): the draft model generates a few
 * tokens one after the other, and the served model checks all of them in one step (speculate.h).
 * It draws with the request's own parameters and random numbers, so that a sampled answer is
 * guessed as well as the two distributions agree.
 *
 * The draft model has a backend of its own with eager kernels, which the specializer never sees,
 * and runs between two steps on the threads of the served one. Its keys and values lie in pages of
 * the same numbers as the served model's: a page that a sequence holds is its own, or shared, in
 * both. What has been computed of a sequence is counted by itself (sequence.drafted), and for whole
 * pages by page, so pages found in the prefix cache need not be computed again either.
 *
 * Engine thread only, but for opening.
 */
#ifndef WHET_ENGINE_DRAFT_H
#define WHET_ENGINE_DRAFT_H

#include "engine/backend.h"
#include "engine/kvcache.h"
#include "engine/sequence.h"

/* Before one step of the served model, at most: known positions that the draft model reads, steps
 * (and so tokens that it guesses for a sequence), and sequences. */
enum { DRAFT_READ = 128, DRAFT_STEPS = 15, DRAFT_WIDTH = 64 };

/* The first difference between two vocabularies, as an error; 0 if there is none. Token ids mean
 * the same in both if they stand for the same bytes and are special or end a text alike. */
int draft_same_vocabulary(const struct model *served, const struct model *small, struct err *err);

struct draft;

struct draft_parts {
    const struct backend_ops *ops; /* of the served model's backend, or a test's */
    struct model *model;           /* the draft's from now on, also where opening fails */
    const struct model *served;
    struct backend *beside; /* the served model's */
    struct backend_options options;
};
/* NULL with a message. */
struct draft *draft_open(const struct draft_parts *parts, struct err *err);
void draft_close(struct draft *d);
/* Whose pages they are; once, before anything else. */
void draft_use_pages(struct draft *d, const struct kvcache *kv);

const struct model *draft_model(const struct draft *d);

/* How many of the sequence's known positions must be computed before it can be guessed what
 * follows, at least 1; 0: it cannot be guessed for this sequence. */
int32_t draft_behind(struct draft *d, struct sequence *seq);
/* How many tokens can be guessed at most: positions that the draft model has. */
int32_t draft_room(const struct draft *d, const struct sequence *seq);

/* What to do for a sequence before the next step. */
struct drafting {
    struct sequence *seq;
    int32_t read;    /* known positions to compute; all that are behind if there are guesses */
    int32_t guesses; /* tokens to generate: the sequence has pages for their positions */
};
/* What was done: the steps of the draft model. */
struct draft_steps {
    int32_t n;
    int32_t width[DRAFT_STEPS];
    int64_t ns[DRAFT_STEPS];
    int32_t drawn; /* tokens */
};
/* Runs steps of several widths, twice: the first ones touch memory for the first time and say
 * nothing of those that follow. In `done` are the later ones, in *first_s what the first took.
 * Before any sequence has pages. -1 with a message: one failed. */
int draft_warm(struct draft *d, struct draft_steps *done, double *first_s, struct err *err);
/* Puts guesses behind the tokens of each sequence and sets its `guesses`, which may be fewer than
 * asked for. -1 with a message: a step failed, and no guesses were made. */
int draft_run(struct draft *d, const struct drafting *job, int32_t jobs, struct draft_steps *done,
              struct err *err);

/* The step that checked a sequence's guesses has landed and `right` of them were right; the
 * sequence does not have them yet, nor were its pages sealed since it started. */
void draft_checked(struct draft *d, struct sequence *seq, int32_t right);

#endif
