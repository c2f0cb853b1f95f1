/* SPDX-License-Identifier: Apache-2.0 */
/* proposer.h - where candidates come from, and whom to tell what came of them. Three propose: the
 * search over points of templates (points.c), the agent, whose texts a language model wrote
 * (agent_loop.c), and retrials of kernels that lost whole steps (retrial.c). Specializer thread.
 */
#ifndef WHET_SPECIALIZER_PROPOSER_H
#define WHET_SPECIALIZER_PROPOSER_H

#include "specializer/pipeline/pipeline.h"

struct specializer;

enum next {
    NEXT_BATCH, /* a batch was begun; of none, if the store refused all that were proposed */
    NEXT_LATER, /* nothing now */
    NEXT_NEVER  /* everything was tried */
};

/* A proposal goes by a number that its proposer gave it. Each ends with learn() or forget(). */
struct proposer {
    const char *name;
    /* Begins a batch with the next candidates for the slot, which has inputs. */
    enum next (*next)(struct specializer *s, struct slot_search *p);
    /* Its bench came to an end, whatever is decided: the evidence has the times. */
    void (*benched)(struct specializer *s, struct slot_search *p, int32_t id,
                    const struct candidate *c);
    /* What came of it: its speed relative to eager, or 0 if it was refused, for the reason that its
     * evidence has. Told again of one that was promoted. */
    void (*learn)(struct specializer *s, struct slot_search *p, int32_t id,
                  const struct candidate *c, double speed);
    /* Nothing was decided: it may be proposed again. */
    void (*forget)(struct specializer *s, struct slot_search *p, int32_t id);
};

extern const struct proposer proposer_points, proposer_texts, proposer_retrials;

/* Begins a batch of one point each for these slots, which are open and have inputs and firsts, in
 * this order: the best known to be good. Returns how many candidates there are. */
int points_open(struct specializer *s, struct slot_search *const *slot_search, int n);
/* What learn() and forget() of a point's search are, for whoever else proposes points. */
void points_learn(struct specializer *s, struct slot_search *p, int32_t id,
                  const struct candidate *c, double speed);
void points_forget(struct specializer *s, struct slot_search *p, int32_t id);
/* The cost model learns what a point's bench took. */
void points_cost(struct specializer *s, struct slot_search *p, const struct candidate *c);

#endif
