/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_baseline.c - what a clever strategy must beat: random order, the order of the table,
 * and the cost model's order taken at its word. None of them uses advice or local steps. And one
 * that leaves the space alone, for when only the agent is to write kernels. */
#include <stdlib.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/strategy.h"

/* The whole space in an order fixed when the search begins, and how far it has come. */
struct order {
    int n, at;
    int32_t *id;
};

static struct order *in_table_order(const struct search *s)
{
    struct order *o = xmalloc(sizeof *o);
    o->n = space_size(s->space);
    o->at = 0;
    o->id = xcalloc((size_t)o->n + 1, sizeof *o->id);
    for (int32_t i = 0; i < o->n; i++)
        o->id[i] = i;
    return o;
}

static void *exhaustive_open(const struct search *s, uint64_t seed)
{
    (void)seed;
    return in_table_order(s);
}

static void *random_open(const struct search *s, uint64_t seed)
{
    struct order *o = in_table_order(s);
    for (int i = o->n - 1; i > 0; i--) {
        int j = random_below(&seed, i + 1);
        int32_t t = o->id[i];
        o->id[i] = o->id[j];
        o->id[j] = t;
    }
    return o;
}

static void *cost_order_open(const struct search *s, uint64_t seed)
{
    (void)seed;
    struct order *o = in_table_order(s);
    space_sort(s->space, o->id, o->n);
    return o;
}

static int order_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct order *o = state;
    int found = 0;
    for (; o->at < o->n && found < n; o->at++)
        if (s->trial[o->id[o->at]] == TRIAL_NONE)
            id[found++] = o->id[o->at];
    return found;
}

static void order_close(void *state)
{
    struct order *o = state;
    free(o->id);
    free(o);
}

const struct strategy strategy_agentic = {.name = "agentic"};
const struct strategy strategy_exhaustive = {"exhaustive", exhaustive_open, order_propose,
                                             order_close};
const struct strategy strategy_random = {"random", random_open, order_propose, order_close};
const struct strategy strategy_cost = {"cost", cost_order_open, order_propose, order_close};
