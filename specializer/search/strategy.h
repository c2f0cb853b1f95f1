/* SPDX-License-Identifier: Apache-2.0 */
/* strategy.h - how points of a space are proposed: one interface, several ways.
 *
 * A search is the state of looking for a kernel for one slot: which points were tried and what
 * came of them. Strategies read it and add what they need of their own. They never leave the
 * space (they speak in its ids) and never repeat a point; the loop asks for a few at a time and
 * reports every outcome. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_SEARCH_STRATEGY_H
#define WHET_SPECIALIZER_SEARCH_STRATEGY_H

#include "specializer/search/advice.h"
#include "specializer/search/space.h"

enum trial_status { TRIAL_NONE, TRIAL_PENDING, TRIAL_MEASURED, TRIAL_REFUSED };

/* Who else may say where a search tree grows; for strategy mcts. */
struct mover {
    void *ctx;
    /* Changes that were proposed for `node`: 1, or 0 if there are none (yet). */
    int (*moves)(void *ctx, int32_t node, struct moves *out);
    /* Nodes that will probably be expanded next. False: nobody was asked (the line to whom it would
     * be is taken, or a budget is used up), so they may be wanted again. */
    bool (*want)(void *ctx, const struct lineage *l, int n);
};

struct search {
    const struct space *space;
    const struct advice *advice; /* never NULL once proposing starts */
    unsigned char *trial;        /* [size] enum trial_status */
    float *speed;                /* [size] measured speed, eager = 1; 0 if not measured */
    int32_t *first;              /* ids worth trying before all others (winners of neighbours) */
    int firsts;
    const struct mover *mover; /* NULL: only the heuristic */
    int tried, measured;
};

void search_open(struct search *s, const struct space *space);
void search_close(struct search *s);
/* Marks the ids that a propose() returned. */
void search_pending(struct search *s, const int32_t *id, int n);
/* The outcome of one: its speed relative to eager, or 0 for a refusal. */
void search_learn(struct search *s, int32_t id, double speed);
/* A pending point that was never decided (stopped, no traffic): it may be proposed again. */
void search_forget(struct search *s, int32_t id);
/* A point whose outcome is known may be proposed again all the same, as if it were new; its speed
 * stays until the next one is learnt. */
void search_again(struct search *s, int32_t id);
/* The measured ids with the highest speed, best first; returns how many (at most n). */
int search_best(const struct search *s, int32_t *id, int n);
/* A point drawn from the advice's hints: the fastest known with hinted values put in, early ones
 * more likely (each is passed over with even odds). -1: nothing was measured, or none is there. */
int32_t search_draw(const struct search *s, uint64_t *random);

struct strategy {
    const char *name;
    void *(*open)(const struct search *s, uint64_t seed);
    /* Writes up to n untried ids, best first; returns how many. 0: nothing is left. The space has
     * predictions (space_predict). */
    int (*propose)(void *state, const struct search *s, int32_t *id, int n);
    void (*close)(void *state);
};

/* A family whose best prediction is this many times the best of all is not looked at early. */
#define FAMILY_HOPELESS 5.0

/* `agentic` proposes no points at all and has but a name: with it every kernel is a text of the
 * agent's (agent.h), which takes its turns whatever the strategy. */
extern const struct strategy strategy_template, strategy_mcts, strategy_agentic, strategy_random,
    strategy_exhaustive, strategy_cost, strategy_evolve, strategy_mcts4;
static inline bool strategy_proposes(const struct strategy *s)
{
    return s->propose != NULL;
}
/* By name; NULL if this program has no such strategy. */
const struct strategy *strategy_find(const char *name);

#endif
