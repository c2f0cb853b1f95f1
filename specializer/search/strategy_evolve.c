/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_evolve.c - an evolutionary search, as autotuners of compilers have it: the baseline that
 * Reasoning Compiler (arXiv 2506.01374) measures itself against.
 *
 * A batch begins with a population: the fastest points that were measured, filled up by lot. For
 * some generations it is replaced by children of parents that are drawn by how fast they are: a
 * child is a mutation (one knob of its parent gets another value) or a cross of two parents of one
 * template (each knob from either). What is fast is what was measured, or else what the cost model
 * predicts, which learns from every batch as it does for the other strategies. The fastest untried
 * points that were seen on the way are the batch, but for one in twenty, which is drawn by lot.
 *
 * It asks nobody: neither advice nor winners of other slots are used.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/strategy.h"

enum { POPULATION = 64, ELITE = 16, GENERATIONS = 4, TRIES = 16, MUTATIONS_IN_20 = 17 };
enum { LOT_IN_20 = 1 };

struct state {
    uint64_t random;
};

/* A batch being bred. */
struct brood {
    const struct search *s;
    uint64_t *random;
    double scale;          /* speed x predicted seconds, as measured; 1 before */
    unsigned char *listed; /* [size] among `seen` */
    int32_t *seen;         /* untried points that lived in some generation */
    int n;
    int32_t now[POPULATION];
    double weight[POPULATION];
};

static void *evolve_open(const struct search *s, uint64_t seed)
{
    (void)s;
    struct state *st = xcalloc(1, sizeof *st);
    st->random = seed;
    return st;
}

static void evolve_close(void *state)
{
    free(state);
}

/* How fast a point is, on one scale for what was measured and what is predicted. Refused: 0. */
static double fitness(const struct brood *b, int32_t id)
{
    const struct search *s = b->s;
    if (s->trial[id] == TRIAL_MEASURED)
        return (double)s->speed[id];
    return s->trial[id] == TRIAL_REFUSED ? 0 : b->scale / space_predicted(s->space, id);
}

/* What a predicted second is worth in speed: the mean over what was measured. */
static double scale_of(const struct search *s)
{
    double sum = 0;
    int n = 0;
    for (int32_t i = 0; i < space_size(s->space); i++)
        if (s->trial[i] == TRIAL_MEASURED) {
            sum += (double)s->speed[i] * space_predicted(s->space, i);
            n++;
        }
    return n > 0 ? sum / n : 1;
}

static void live(struct brood *b, int at, int32_t id)
{
    b->now[at] = id;
    b->weight[at] = fitness(b, id);
    if (b->s->trial[id] == TRIAL_NONE && !b->listed[id]) {
        b->listed[id] = 1;
        b->seen[b->n++] = id;
    }
}

/* A member of the generation, the fast ones more likely. */
static int32_t parent(struct brood *b)
{
    double sum = 0;
    for (int i = 0; i < POPULATION; i++)
        sum += b->weight[i];
    double at = sum * ((double)(random_next(b->random) >> 11) * 0x1p-53);
    for (int i = 0; i < POPULATION; i++)
        if ((at -= b->weight[i]) < 0)
            return b->now[i];
    return b->now[POPULATION - 1];
}

/* Another value for one knob of `id`, drawn until it is legal; -1: none of some draws was. */
static int32_t mutate(struct brood *b, int32_t id)
{
    const struct space *space = b->s->space;
    const struct template *t = space_template(space, id);
    struct point p;
    for (int i = 0; i < TRIES && t->knobs > 0; i++) {
        space_point(space, id, &p);
        const int k = random_below(b->random, t->knobs);
        p.value[k] = t->knob[k].value[random_below(b->random, t->knob[k].values)];
        int32_t child = space_find(space, t, &p);
        if (child >= 0 && child != id)
            return child;
    }
    return -1;
}

/* Each knob from one of two points of a template; -1: they are of two, or nothing new is legal. */
static int32_t cross(struct brood *b, int32_t one, int32_t other)
{
    const struct space *space = b->s->space;
    const struct template *t = space_template(space, one);
    struct point p, q;
    if (t != space_template(space, other))
        return -1;
    space_point(space, other, &q);
    for (int i = 0; i < TRIES; i++) {
        space_point(space, one, &p);
        for (int k = 0; k < t->knobs; k++)
            if (random_below(b->random, 2))
                p.value[k] = q.value[k];
        int32_t child = space_find(space, t, &p);
        if (child >= 0 && child != one && child != other)
            return child;
    }
    return -1;
}

static void begin(struct brood *b)
{
    int32_t best[ELITE];
    const int n = search_best(b->s, best, ELITE), size = space_size(b->s->space);
    for (int i = 0; i < POPULATION; i++)
        live(b, i, i < n ? best[i] : random_below(b->random, size));
}

static void next_generation(struct brood *b)
{
    int32_t child[POPULATION];
    for (int i = 0; i < POPULATION; i++) {
        int32_t one = parent(b);
        child[i] = random_below(b->random, 20) < MUTATIONS_IN_20 ? mutate(b, one)
                                                                 : cross(b, one, parent(b));
        if (child[i] < 0)
            child[i] = one;
    }
    for (int i = 0; i < POPULATION; i++)
        live(b, i, child[i]);
}

/* Takes an untried point by lot, or -1 when there is none. */
static int32_t draw(struct brood *b, const unsigned char *taken)
{
    const int size = space_size(b->s->space);
    const int from = random_below(b->random, size);
    for (int i = 0; i < size; i++) {
        int32_t id = (from + i) % size;
        if (b->s->trial[id] == TRIAL_NONE && !taken[id])
            return id;
    }
    return -1;
}

static int evolve_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct state *st = state;
    const size_t size = (size_t)space_size(s->space);
    if (size == 0)
        return 0;
    struct brood *b = xcalloc(1, sizeof *b);
    unsigned char *taken = xcalloc(size, 1);
    int found = 0, at = 0;
    b->s = s;
    b->random = &st->random;
    b->scale = scale_of(s);
    b->listed = xcalloc(size, 1);
    b->seen = xcalloc(size, sizeof *b->seen);
    begin(b);
    for (int g = 0; g < GENERATIONS; g++)
        next_generation(b);
    space_sort(s->space, b->seen, b->n);
    for (; found < n; found++) {
        const bool lot = random_below(&st->random, 20) < LOT_IN_20;
        while (at < b->n && taken[b->seen[at]])
            at++;
        id[found] = !lot && at < b->n ? b->seen[at++] : draw(b, taken);
        if (id[found] < 0)
            break;
        taken[id[found]] = 1;
    }
    free(b->listed);
    free(b->seen);
    free(b);
    free(taken);
    return found;
}

const struct strategy strategy_evolve = {"evolve", evolve_open, evolve_propose, evolve_close};
