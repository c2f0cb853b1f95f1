/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_template.c - the default strategy: rank a bounded space, measure, follow what was found.
 *
 * After AgentCompile (arXiv 2606.07665): the adviser ranks points that the compiler owns, and at
 * least two of every family are measured before a family is given up, because a ranking that is
 * wrong about a family is wrong about all of it. A batch is filled in this order:
 *
 * - winners of neighbouring slots: shapes that are close like close kernels
 * - what a language model named: as many as its earlier picks have earned (advice_budget.h); what
 *   the cost model thinks absurd comes last, one in twenty samples
 * - two of every leading family, those that look best first
 * - two of the other families: not in the first batch, and a third of one at most
 * - steps of one knob from the two fastest points known: a third of the batch
 * - the most hopeful: shortest time that is still likely (UCB), by prediction and doubt of the cost
 *   model, so an unknown family is worth a look and a known slow one is not
 * - anything: advice may name only part of a space
 *
 * The first batch of a cold search is a short one: what it teaches, and a reply that came
 * meanwhile, are worth more than its last points.
 *
 * Each pick is taken as good as measured for the doubt about the next one, so a batch spreads by
 * itself. Only a shortlist is looked at so closely: the best predicted of every family, and the
 * steps.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/advice_budget.h"
#include "specializer/search/cost.h"
#include "specializer/search/strategy.h"

enum { FAMILY_LEAST = 2, FIRST_BATCH = 4, BEST = 2, BATCH_MOST = 256, SHORT_OF_FAMILY = 64 };
#define LEADING 1.7  /* a family is when its best prediction is within this factor of the best */
#define OPTIMISM 1.0 /* standard deviations */

struct state {
    uint64_t random;
    struct advice_budget budget;
};

/* A batch being put together. */
struct batch {
    const struct search *s;
    struct state *st;
    int32_t *id;
    int n, want;
    int *per_family; /* [families] tried so far, and in this batch */
    /* The shortlist. */
    int32_t *item;
    int items;
    struct cost_doubt *doubt;
    unsigned char *in; /* [size] in the shortlist */
};

static void *template_open(const struct search *s, uint64_t seed)
{
    (void)s;
    struct state *st = xcalloc(1, sizeof *st);
    st->random = seed;
    return st;
}

static void template_close(void *state)
{
    free(state);
}

/* ---- the shortlist ------------------------------------------------------------------------- */

static void list(struct batch *b, int32_t id)
{
    if (b->in[id] || b->s->trial[id] != TRIAL_NONE)
        return;
    b->in[id] = 1;
    b->item[b->items++] = id;
}

static void list_steps(struct batch *b)
{
    int32_t best[BEST], step[2 * KNOBS_MAX];
    int n = search_best(b->s, best, BEST);
    for (int i = 0; i < n; i++) {
        int steps = space_neighbours(b->s->space, best[i], step);
        for (int k = 0; k < steps; k++)
            list(b, step[k]);
    }
}

static void open_shortlist(struct batch *b)
{
    const struct space *s = b->s->space;
    int size = space_size(s), families = space_families();
    int32_t *order = xmalloc(((size_t)size + 1) * sizeof *order);
    int *listed = xcalloc((size_t)families + 1, sizeof *listed);
    b->in = xcalloc((size_t)size + 1, 1);
    b->item = xmalloc(((size_t)size + 1) * sizeof *b->item);
    b->per_family = xcalloc((size_t)families + 1, sizeof *b->per_family);
    for (int32_t i = 0; i < size; i++) {
        order[i] = i;
        b->per_family[space_family(s, i)] += b->s->trial[i] != TRIAL_NONE;
    }
    space_sort(s, order, size);
    for (int i = 0; i < size; i++)
        if (b->s->trial[order[i]] == TRIAL_NONE &&
            listed[space_family(s, order[i])]++ < SHORT_OF_FAMILY)
            list(b, order[i]);
    list_steps(b);
    b->doubt = cost_doubt_open(space_cost(s), s, b->item, b->items);
    free(order);
    free(listed);
}

static void close_shortlist(struct batch *b)
{
    cost_doubt_close(b->doubt);
    free(b->item);
    free(b->in);
    free(b->per_family);
}

/* The shortest time that item i is still likely to have. */
static double hope(const struct batch *b, int i)
{
    return space_predicted(b->s->space, b->item[i]) * exp(-OPTIMISM * cost_doubt(b->doubt, i));
}

/* ---- taking -------------------------------------------------------------------------------- */

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
    b->per_family[space_family(b->s->space, id)]++;
    for (int i = 0; b->in[id] && i < b->items; i++)
        if (b->item[i] == id)
            cost_doubt_settle(b->doubt, i);
    return true;
}

/* Takes the most hopeful items until the batch holds `upto`: of one family (-1: any), or only of
 * those one step from `near` (-1: any). */
static void take_hopeful(struct batch *b, int upto, int family, int32_t near)
{
    while (b->n < upto && b->n < b->want) {
        int best = -1;
        for (int i = 0; i < b->items; i++) {
            if (in_batch(b, b->item[i]) ||
                (family >= 0 && space_family(b->s->space, b->item[i]) != family) ||
                (near >= 0 && space_distance(b->s->space, b->item[i], near) != 1))
                continue;
            if (best < 0 || hope(b, i) < hope(b, best))
                best = i;
        }
        if (best < 0 || !take(b, b->item[best]))
            return;
    }
}

/* ---- families ------------------------------------------------------------------------------ */

/* The most hopeful time of every family (0: nothing of it is untried), and of all. */
static double *family_hopes(const struct batch *b, double *shortest)
{
    const struct space *s = b->s->space;
    double *best = xcalloc((size_t)space_families() + 1, sizeof *best);
    int32_t fastest;
    *shortest = search_best(b->s, &fastest, 1) ? space_predicted(s, fastest) : INFINITY;
    for (int i = 0; i < b->items; i++) {
        double *of = &best[space_family(s, b->item[i])], t = hope(b, i);
        *of = *of > 0 ? fmin(*of, t) : t;
        *shortest = fmin(*shortest, t);
    }
    return best;
}

/* Two of every family that is not hopeless, the most hopeful family first: of those that lead, or
 * of those that trail, up to a third of the batch. */
static void take_families(struct batch *b, bool trailing)
{
    int families = space_families(), most = trailing ? (b->want + 2) / 3 : b->want;
    double shortest, *best = family_hopes(b, &shortest);
    for (int upto = b->n + most; b->n < upto && b->n < b->want;) {
        int f = -1;
        for (int i = 0; i < families; i++)
            if (best[i] > 0 && (f < 0 || best[i] < best[f]))
                f = i;
        if (f < 0 || best[f] > FAMILY_HOPELESS * shortest)
            break;
        bool trails = best[f] > LEADING * shortest;
        int missing = FAMILY_LEAST - b->per_family[f];
        best[f] = 0;
        if (trails == trailing && missing > 0)
            take_hopeful(b, b->n + missing < upto ? b->n + missing : upto, f, -1);
    }
    free(best);
}

/* ---- advice -------------------------------------------------------------------------------- */

typedef bool budget_fn(const struct advice_budget *t, const struct search *s, int32_t id);

static void take_told(struct batch *b, int32_t id, budget_fn *may)
{
    struct advice_budget *t = &b->st->budget;
    if (id >= 0 && may(t, b->s, id) && take(b, id))
        advice_budget_took(t, b->s, id);
}

/* Only what a language model said, and of that what it puts first: the heuristic's word is the cost
 * model's, which is asked more closely below. */
static void take_advised(struct batch *b, budget_fn *may)
{
    const struct advice *a = b->s->advice;
    for (int i = 0, looks = 0; i < a->advised && looks < ADVICE_LOOKS; i++) {
        looks += b->s->trial[a->priority[i]] == TRIAL_NONE;
        take_told(b, a->priority[i], may);
    }
    for (int tries = 0; a->hinted > 0 && tries < ADVICE_LOOKS; tries++)
        take_told(b, search_draw(b->s, &b->st->random), may);
}

/* ---- the batch ----------------------------------------------------------------------------- */

static void take_steps(struct batch *b, int upto)
{
    int32_t best[BEST];
    int n = search_best(b->s, best, BEST), each = (upto - b->n + 1) / 2;
    for (int i = 0; i < n; i++)
        take_hopeful(b, i == n - 1 ? upto : b->n + each, -1, best[i]);
}

static void take_rest(struct batch *b)
{
    int size = space_size(b->s->space);
    int from = size > 0 ? random_below(&b->st->random, size) : 0;
    for (int i = 0; i < b->s->advice->priorities; i++)
        take(b, b->s->advice->priority[i]);
    for (int i = 0; i < size && b->n < b->want; i++)
        take(b, (from + i) % size);
}

static int template_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct state *st = state;
    struct batch b = {.s = s, .st = st, .id = id, .want = n < BATCH_MOST ? n : BATCH_MOST};
    if (s->tried == 0 && b.want > FIRST_BATCH + s->firsts)
        b.want = FIRST_BATCH + s->firsts;
    int whole = b.want;
    bool advised = s->advice->advised > 0 || s->advice->hinted > 0;
    if (advised)
        advice_budget_batch(&st->budget, s, whole);
    open_shortlist(&b);
    for (int i = 0; i < s->firsts; i++)
        take(&b, s->first[i]);
    if (advised)
        take_advised(&b, advice_budget_near);
    b.want -= advised && st->budget.far_left > 0 && b.n < whole; /* far ones are last */
    take_families(&b, false);
    if (s->tried > 0)
        take_families(&b, true);
    if (s->measured > 0)
        take_steps(&b, b.n + (b.want + 2) / 3);
    take_hopeful(&b, b.want, -1, -1);
    b.want = whole;
    if (advised)
        take_advised(&b, advice_budget_far);
    take_hopeful(&b, b.want, -1, -1);
    if (b.n < b.want)
        take_rest(&b);
    close_shortlist(&b);
    return b.n;
}

const struct strategy strategy_template = {"template", template_open, template_propose,
                                           template_close};
