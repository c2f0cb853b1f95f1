/* strategy_template.c - the default strategy: rank a bounded space, measure, step around the best.
 *
 * After AgentCompile (PAPERS): the adviser ranks points that the compiler owns, and the top of the
 * ranking is compiled with at least two points of every family, because a ranking that is wrong
 * about a family is wrong about all of it. Once there are results, half of a batch are steps of
 * one knob from the two fastest points known, the fastest's first; a few follow the adviser's
 * hints; the rest goes on down the ranking. Points that won in a neighbouring slot come before
 * everything: shapes that are close like close kernels.
 *
 * A batch is spread out: a point of the ranking that differs in only one knob from another one of
 * the batch waits, since it would mostly repeat its result (the steps around the best are exempt).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/hash.h"
#include "specializer/strategy.h"

enum { FAMILY_LEAST = 2, BEST = 2, BATCH_MOST = 256 };
#define HOPELESS 2.5 /* times the best prediction */

struct state {
    uint64_t random;
    int *per_family; /* proposed so far */
};

/* A batch being put together. */
struct batch {
    const struct search *s;
    struct state *st;
    int32_t *id;
    int n, want;
};

static void *template_open(const struct search *s, uint64_t seed)
{
    (void)s;
    struct state *st = xcalloc(1, sizeof *st);
    st->random = seed;
    st->per_family = xcalloc((size_t)space_families() + 1, sizeof *st->per_family);
    return st;
}

static void template_close(void *state)
{
    struct state *st = state;
    free(st->per_family);
    free(st);
}

static bool in_batch(const struct batch *b, int32_t id)
{
    for (int i = 0; i < b->n; i++)
        if (b->id[i] == id)
            return true;
    return false;
}

/* Takes `id` unless it was tried, is in the batch, or the batch is full. */
static bool take(struct batch *b, int32_t id)
{
    if (b->n == b->want || id < 0 || b->s->trial[id] != TRIAL_NONE || in_batch(b, id))
        return false;
    b->id[b->n++] = id;
    b->st->per_family[space_family(b->s->space, id)]++;
    return true;
}

static bool too_close(const struct batch *b, int32_t id)
{
    for (int i = 0; i < b->n; i++)
        if (space_distance(b->s->space, b->id[i], id) <= 1)
            return true;
    return false;
}

/* Down the ranking until the batch holds `upto`; `family` -1 for any. */
static void take_ranked(struct batch *b, int upto, int family)
{
    for (int pass = 0; pass < 2; pass++) /* second pass: close ones rather than none */
        for (int i = 0; i < b->s->advice->priorities && b->n < upto && b->n < b->want; i++) {
            int32_t id = b->s->advice->priority[i];
            if (family >= 0 && space_family(b->s->space, id) != family)
                continue;
            if (pass == 1 || !too_close(b, id))
                take(b, id);
        }
}

/* Every family of the space has been tried at least twice before anything else is, in the order of
 * the families' best points. */
static void take_families(struct batch *b)
{
    const struct advice *a = b->s->advice;
    if (a->priorities == 0)
        return;
    double best = space_predicted(b->s->space, a->priority[0]);
    for (int i = 1; i < a->priorities; i++)
        best = fmin(best, space_predicted(b->s->space, a->priority[i]));
    char *done = xcalloc((size_t)space_families() + 1, 1);
    for (int i = 0; i < a->priorities && b->n < b->want; i++) {
        int f = space_family(b->s->space, a->priority[i]);
        if (done[f] || space_predicted(b->s->space, a->priority[i]) > HOPELESS * best)
            continue;
        done[f] = 1;
        if (b->st->per_family[f] < FAMILY_LEAST)
            take_ranked(b, b->n + FAMILY_LEAST - b->st->per_family[f], f);
    }
    free(done);
}

/* Steps of one knob around the fastest points; of each, the steps the model likes best first. */
static void take_steps(struct batch *b, int upto)
{
    int32_t best[BEST], step[2 * KNOBS_MAX];
    int n = search_best(b->s, best, BEST);
    for (int i = 0; i < n; i++) {
        int steps = space_neighbours(b->s->space, best[i], step);
        space_sort(b->s->space, step, steps);
        for (int k = 0; k < steps && b->n < upto; k++)
            take(b, step[k]);
    }
}

/* A point drawn from the hints: the fastest known with hinted values put in, early ones more
 * likely (each is passed over with even odds). */
static int32_t draw(struct state *st, const struct search *s)
{
    int32_t from;
    struct point p;
    if (search_best(s, &from, 1) == 0)
        return -1;
    const struct template *t = space_template(s->space, from);
    space_point(s->space, from, &p);
    for (int i = 0; i < s->advice->hints; i++) {
        const struct hint *h = &s->advice->hint[i];
        int knob = template_knob(t, h->knob), at = 0;
        if (knob < 0 || random_below(&st->random, 2) == 0)
            continue;
        while (at < h->values - 1 && random_below(&st->random, 2))
            at++;
        p.value[knob] = h->value[at];
    }
    return space_find(s->space, t, &p);
}

static void take_hints(struct batch *b, int upto)
{
    for (int tries = 0; tries < 16 && b->n < upto; tries++)
        take(b, draw(b->st, b->s));
}

/* What the ranking left out: advice may name only part of a space. */
static void take_rest(struct batch *b)
{
    int size = space_size(b->s->space);
    int from = size > 0 ? random_below(&b->st->random, size) : 0;
    for (int i = 0; i < size && b->n < b->want; i++)
        take(b, (from + i) % size);
}

static int template_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct batch b = {s, state, id, 0, n < BATCH_MOST ? n : BATCH_MOST};
    for (int i = 0; i < s->firsts; i++)
        take(&b, s->first[i]);
    take_families(&b);
    if (s->measured > 0) {
        take_steps(&b, b.n + (b.want - b.n + 1) / 2);
        take_hints(&b, b.n + (b.want - b.n) / 4);
    }
    take_ranked(&b, b.want, -1);
    take_rest(&b);
    return b.n;
}

const struct strategy strategy_template = {"template", template_open, template_propose,
                                           template_close};
