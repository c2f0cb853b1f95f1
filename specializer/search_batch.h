/* SPDX-License-Identifier: Apache-2.0 */
/* search_batch.h - a batch from proposal to bench, and the best of it through shadow and canary.
 * Specializer thread. */
#ifndef WHET_SPECIALIZER_SEARCH_BATCH_H
#define WHET_SPECIALIZER_SEARCH_BATCH_H

#include "specializer/opening_share.h"
#include "specializer/proposer.h"

enum { BATCH = 6 };
/* A gain so clear does not wait for the rest of its batch, and is tried again if whole steps were
 * slower with it. */
#define CLEAR_GAIN 0.10

/* The batch under way; at most one. */
struct search_batch {
    struct slot_search *slot_search; /* NULL: none */
    struct trial trial[BATCH];
    int n;
    struct pipeline pipeline;
    bool opening;                 /* one candidate each of several slots (opening.c) */
    bool first;                   /* a slot's first, where slots take turns by these (points.c) */
    bool together;                /* ... that go to live steps together (fleet_set.c) */
    struct opening_slots expects; /* of an opening */
    bool decided;                 /* of one at least: refused, or measured */
    bool headers_made;            /* no build of it wants a header (header_work.h) */
};

/* ---- search_batch.c ------------------------------------------------------------------------- */
/* A candidate of the slot joins the batch, or begins it. */
void search_batch_add(struct specializer *s, struct slot_search *p, struct candidate *c,
                      struct proposal from);
/* Whether the slot has candidates in the batch under way. */
bool search_batch_has(const struct specializer *s, const struct slot_search *p);
/* Nothing could be decided in the slot just now: others go first. */
void search_batch_later(struct slot_search *p);
void search_batch_children(struct specializer *s);  /* starts and polls; never waits */
bool search_batch_bench(struct specializer *s);     /* benches one that is ready; false: none was */
bool search_batch_has_ready(struct specializer *s); /* one that could be benched now */
bool search_batch_over(const struct specializer *s);
bool search_batch_may_build(struct specializer *s); /* the cap on builds an hour */
void search_batch_close(struct specializer *s);     /* the best that passed is promoted */
void search_batch_abandon(struct specializer *s);
/* Abandons the batch and every promoted candidate: a search that nobody is going to take up again.
 */
void search_batch_forget(struct specializer *s);
/* What the store and the operators say of a new candidate: 1 if it may be tried, 0 if not, -1 if
 * the store cannot say or take it now. Its row is there at 1, in state proposed; `why` goes into
 * the trace. */
int search_batch_admit(struct specializer *s, struct candidate *c, const char *why);

/* ---- promotion.c: the best of a batch through shadow and canary ----------------------------- */
void promotion_try(struct specializer *s, struct slot_search *p);
/* Tries the promoted candidates whose slots may have live steps now, several together where the
 * machine lets them. False: there are none. */
bool promotions_try(struct specializer *s);
/* Nothing was decided about it: the point may be proposed again. */
void promotion_forget(struct specializer *s, struct slot_search *p);

#endif
