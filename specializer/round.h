/* SPDX-License-Identifier: Apache-2.0 */
/* round.h - a batch from proposal to bench, and the best of it through shadow and canary.
 * Specializer thread. */
#ifndef WHET_SPECIALIZER_ROUND_H
#define WHET_SPECIALIZER_ROUND_H

#include "specializer/admission/probe.h"
#include "specializer/build/build.h"

struct specializer;
struct place;

enum { BATCH = 6 };
/* A gain so clear does not wait for the rest of its batch, and is tried again if whole steps were
 * slower with it. */
#define CLEAR_GAIN 0.10

/* One member of a batch on its way to the bench. */
enum item_stage { ITEM_BUILD, ITEM_BUILDING, ITEM_PROBE, ITEM_PROBING, ITEM_BENCH, ITEM_DONE };
struct item {
    struct candidate *c;
    int32_t id; /* in the place's space; below 0: -1 - the node of the agent's tree */
    bool again; /* a retrial (retrial.c), not a new candidate */
    enum item_stage stage;
    struct build *build;
    struct probe *probe;
};

/* The batch under way; at most one. */
struct round {
    struct place *place; /* NULL: none */
    struct item item[BATCH];
    int n;
    bool decided; /* of one at least: refused, or measured */
};

/* ---- round.c: a batch from proposal to bench ----------------------------------------------- */
bool round_start(struct specializer *s, struct place *p); /* false: nothing left to propose */
void round_children(struct specializer *s);               /* starts and polls; never waits */
bool round_bench(struct specializer *s); /* benches one that is ready; false: none was */
bool round_over(const struct specializer *s);
bool round_may_build(struct specializer *s); /* the cap on builds an hour */
void round_close(struct specializer *s);     /* the best that passed is promoted */
void round_abandon(struct specializer *s);
/* Abandons the round and every promoted candidate: a search that nobody is going to take up again.
 */
void round_forget(struct specializer *s);
/* Tells whoever proposed it: the slot's search, or the agent's tree. `speed` 0: a refusal. */
void round_learn(struct specializer *s, struct place *p, int32_t id, const struct candidate *c,
                 double speed);
/* What the store and the operators say of a new candidate: 1 if it may be tried, 0 if not, -1 if
 * the store cannot say or take it now. Its row is there at 1, in state proposed; `why` goes into
 * the trace. */
int round_admit(struct specializer *s, struct candidate *c, const char *why);

/* ---- promotion.c: the best of a batch through shadow and canary ----------------------------- */
void promotion_try(struct specializer *s, struct place *p);
/* Nothing was decided about it: the point may be proposed again. */
void promotion_forget(struct specializer *s, struct place *p);

#endif
