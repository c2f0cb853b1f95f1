/* SPDX-License-Identifier: Apache-2.0 */
/* ablate.c - searches replayed on measured points.
 *
 * The strategy, the cost model and the advice are the loop's own; only the stages are not run: a
 * candidate costs the seconds that its build, probe and bench took when the table was measured, one
 * after the other, and shows the speed it showed then, with noise of the size of its interval. The
 * noise of a point depends on the seed alone, so all strategies see the same lucky and unlucky
 * kernels.
 */
#include "tune/ablate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/adviser/adviser_request.h"
#include "specializer/candidate/hash.h"

enum { BATCH_SIZE = 6, LESSONS = 16, LESSONS_OF_SLOT = 3, DEADS = 16 };
#define MIN_GAIN                                                                    \
    0.02 /* specializer.min_gain: what replaces a kernel must look this much faster \
          */

/* ---- one search ---------------------------------------------------------------------------- */

struct trial_state {
    const struct trial_terms *terms;
    struct cost cost;
    struct search search;
    struct advice advice;
    struct sim_adviser *adviser;
    double now_s, optimum;
    double eager_s;     /* of a run */
    double seen, truth; /* speed of the kernel believed best: as seen, as it is */
    struct lesson lesson[LESSONS];
    int lessons;
    struct dead_end dead[DEADS]; /* the first that were refused */
    int deads;
    struct trial_run *run;
};

/* How far a short bench may be off: the long intervals of the best points are widened to what the
 * usual number of pairs would have given. */
static double noise(const struct measured *m)
{
    enum { USUAL_PAIRS = 24 };
    return measured_noise(m) * sqrt(fmax(1, m->pairs / (double)USUAL_PAIRS));
}

static void remember_refusal(struct trial_state *s, int32_t id, const struct measured *m)
{
    if (s->deads == DEADS)
        return;
    struct dead_end *d = &s->dead[s->deads++];
    d->id = id;
    snprintf(d->reason, sizeof d->reason, "%s", m->reason[0] ? m->reason : "refused");
}

static void decide(struct trial_state *s, int32_t id)
{
    const struct table *t = s->terms->table;
    const struct measured *m = &t->row[id];
    double truth = measured_speed(m), wrong = 1;
    s->now_s += (double)m->build_s + (double)m->probe_s + (double)m->bench_s;
    if (truth > 0)
        wrong = exp(noise(m) * measured_deviate(s->terms->seed, id));
    search_learn(&s->search, id, truth * wrong);
    if (truth <= 0)
        remember_refusal(s, id, m);
    if (truth > 0) {
        struct point p;
        space_point(t->space, id, &p);
        cost_learn(&s->cost, space_template(t->space, id), &p, &t->facts, (double)m->own_s / wrong);
    }
    if (truth * wrong >= s->seen * (1 + MIN_GAIN)) {
        s->seen = truth * wrong;
        s->truth = truth;
    }
    struct trial_run *r = s->run;
    r->seconds[r->samples] = (float)s->now_s;
    r->regret[r->samples++] = (float)(s->optimum / s->truth - 1);
    if (truth >= 0.95 * s->optimum && !isfinite(r->to_95_s)) {
        r->to_95 = r->samples;
        r->to_95_s = s->now_s;
        sim_adviser_enough(s->adviser);
    }
}

/* The points of a table with the highest speeds, and last the slowest, into lesson[n..most); how
 * many there are then. */
static int lessons_add(struct lesson *lesson, int n, int most, const struct table *t)
{
    int32_t id[LESSONS_OF_SLOT] = {-1, -1, -1};
    for (int32_t i = 0; i < space_size(t->space); i++) {
        double speed = measured_speed(&t->row[i]);
        if (speed <= 0)
            continue;
        if (id[0] < 0 || speed > measured_speed(&t->row[id[0]])) {
            id[1] = id[0];
            id[0] = i;
        } else if (id[1] < 0 || speed > measured_speed(&t->row[id[1]])) {
            id[1] = i;
        }
        if (id[2] < 0 || speed < measured_speed(&t->row[id[2]]))
            id[2] = i;
    }
    for (int i = 0; i < LESSONS_OF_SLOT && n < most; i++) {
        if (id[i] < 0)
            continue;
        struct lesson *l = &lesson[n++];
        snprintf(l->slot, sizeof l->slot, "%s", t->slot);
        adviser_id_text(t->space, id[i], l->id);
        l->speed = measured_speed(&t->row[id[i]]);
    }
    return n;
}

/* What the other slots of the tables taught, as if they had been searched before: their fastest
 * points and the slowest, slots of the same region first. */
static void gather_lessons(struct trial_state *s)
{
    const struct tables *all = s->terms->tables;
    const struct table *own = s->terms->table;
    const int32_t region = space_facts(own->space)->REGION;
    for (int same = 1; same >= 0; same--)
        for (int i = 0; i < all->n; i++) {
            const struct table *t = &all->table[i];
            if (strcmp(t->slot, own->slot) == 0 ||
                (space_facts(t->space)->REGION == region) != same)
                continue;
            s->lessons = lessons_add(s->lesson, s->lessons, LESSONS, t);
        }
}

/* The context bucket that an attention slot's name ends with; 0: none. */
static double context_of(const struct table *t)
{
    const char *c = strstr(t->slot, "/c");
    return c ? strtod(c + 2, NULL) : 0;
}

/* One batch; false: the space is exhausted or the time is up. */
static bool batch(struct trial_state *s, void *state)
{
    const struct trial_terms *terms = s->terms;
    struct space *space = terms->table->space;
    struct advice_request r = {.space = space,
                               .cost = &s->cost,
                               .slot = terms->table->slot,
                               .incumbent = "eager",
                               .incumbent_speed = 1,
                               .run_s = s->eager_s,
                               .eager_s = s->eager_s,
                               .m = terms->table->m,
                               .context = context_of(terms->table),
                               .speed = s->search.speed,
                               .trial = s->search.trial,
                               .dead = s->dead,
                               .deads = s->deads,
                               .lesson = s->lesson,
                               .lessons = s->lessons};
    int32_t id[BATCH_SIZE];
    space_predict(space, &s->cost);
    advice_free(&s->advice);
    sim_adviser_ask(s->adviser, &r, s->now_s, &s->advice);
    s->search.advice = &s->advice;
    int n = terms->strategy->propose(state, &s->search, id, BATCH_SIZE);
    advice_defer(&s->advice, id, n);
    search_pending(&s->search, id, n);
    for (int i = 0; i < n && s->now_s < terms->budget_s; i++)
        decide(s, id[i]);
    return n > 0 && s->now_s < terms->budget_s;
}

int trial_run(const struct trial_terms *terms, struct trial_run *out, struct err *err)
{
    const struct table *t = terms->table;
    size_t most = (size_t)space_size(t->space) + 1;
    struct trial_state s = {.terms = terms, .run = out, .seen = 1, .truth = 1};
    s.adviser = sim_adviser_open(terms->adviser, t, terms->seed, &terms->llm, err);
    if (!s.adviser)
        return -1;
    *out = (struct trial_run){.points = space_size(t->space), .to_95_s = HUGE_VAL};
    out->seconds = xcalloc(most, sizeof *out->seconds);
    out->regret = xcalloc(most, sizeof *out->regret);
    s.optimum = fmax(1, table_best(t, NULL));
    out->eager = s.optimum - 1;
    s.eager_s = table_eager_s(t);
    cost_open(&s.cost, &terms->tables->machine, terms->tables->threads);
    if (terms->adviser == SIM_CHANCE)
        s.cost.blind = terms->seed;
    search_open(&s.search, t->space);
    gather_lessons(&s);
    s.search.mover = sim_adviser_mover(s.adviser);
    void *state = terms->strategy->open(&s.search, terms->seed);
    while (batch(&s, state))
        ;
    out->use = *sim_adviser_use(s.adviser);
    terms->strategy->close(state);
    search_close(&s.search);
    cost_close(&s.cost);
    advice_free(&s.advice);
    sim_adviser_close(s.adviser);
    return 0;
}

void trial_free(struct trial_run *r)
{
    free(r->seconds);
    free(r->regret);
    *r = (struct trial_run){0};
}

/* ---- all of them --------------------------------------------------------------------------- */

/* A table, and the part of it that each seed has. */
struct parted {
    const struct table *whole;
    struct table **of; /* [seeds] */
};

static uint64_t seed_of(const struct ablation *a, int i)
{
    return (uint64_t)(a->before + i) + 1;
}

static int add_variant(struct ablation *a, const struct parted *t, const char *strategy,
                       enum sim_adviser_kind adviser, struct err *err)
{
    a->variant = xrealloc(a->variant, (size_t)(a->variants + 1) * sizeof *a->variant);
    struct variant *v = &a->variant[a->variants++];
    *v = (struct variant){.table = t->whole, .strategy = strategy, .adviser = adviser};
    v->run = xcalloc((size_t)a->seeds, sizeof *v->run);
    for (int i = 0; i < a->seeds; i++) {
        struct trial_terms terms = {.tables = a->tables,
                                    .table = t->of[i],
                                    .strategy = strategy_find(strategy),
                                    .adviser = adviser,
                                    .llm = a->llm,
                                    .seed = seed_of(a, i),
                                    .budget_s = a->budget_s};
        if (trial_run(&terms, &v->run[i], err) != 0)
            return -1;
    }
    return 0;
}

static struct parted part_table(const struct ablation *a, const struct table *whole)
{
    struct parted t = {.whole = whole};
    t.of = xcalloc((size_t)a->seeds, sizeof(struct table *));
    for (int k = 0; k < a->seeds; k++)
        t.of[k] = table_part(whole, a->drop, seed_of(a, k));
    return t;
}

static void free_parts(const struct ablation *a, struct parted *t)
{
    for (int k = 0; k < a->seeds; k++)
        table_free(t->of[k]);
    free(t->of);
}

static int ablate_table(struct ablation *a, const struct parted *t, struct err *err)
{
    static const char *const advised[] = {"template", "mcts"};
    static const char *const baseline[] = {"mcts4", "evolve", "cost", "random", "exhaustive"};
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < SIM_KINDS; k++)
            if ((k != SIM_REPLAY || a->llm.recording || a->llm.live) &&
                add_variant(a, t, advised[s], (enum sim_adviser_kind)k, err) != 0)
                return -1;
    for (int s = 0; s < 5; s++) /* they ask nobody, or are not asked about it */
        if (add_variant(a, t, baseline[s], SIM_HEURISTIC, err) != 0)
            return -1;
    return 0;
}

int ablate(struct ablation *a, struct err *err)
{
    int r = 0;
    for (int i = 0; i < a->tables->n && r == 0; i++) {
        struct parted t = part_table(a, &a->tables->table[i]);
        r = ablate_table(a, &t, err);
        free_parts(a, &t);
    }
    return r;
}

int ablate_advisers(struct ablation *a, const char *strategy, const enum sim_adviser_kind *kind,
                    int n, struct err *err)
{
    int r = 0;
    for (int i = 0; i < a->tables->n && r == 0; i++) {
        struct parted t = part_table(a, &a->tables->table[i]);
        r = add_variant(a, &t, strategy, SIM_HEURISTIC, err);
        for (int k = 0; k < n && r == 0; k++)
            r = add_variant(a, &t, strategy, kind[k], err);
        free_parts(a, &t);
    }
    return r;
}

void ablation_free(struct ablation *a)
{
    for (int i = 0; i < a->variants; i++) {
        for (int k = 0; k < a->seeds; k++)
            trial_free(&a->variant[i].run[k]);
        free(a->variant[i].run);
    }
    free(a->variant);
    a->variant = NULL;
    a->variants = 0;
}

/* ---- over seeds ---------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x; the p-th quantile, between neighbours in proportion. */
static double quantile(double *x, int n, double p)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    double at = p * (n - 1);
    int low = (int)at, high = low + 1 < n ? low + 1 : low;
    if (x[low] == x[high] || !isfinite(x[high]))
        return at - low > 0 ? x[high] : x[low];
    return x[low] + (at - low) * (x[high] - x[low]);
}

static double regret_at(const struct trial_run *r, int samples, double seconds)
{
    double regret = r->eager;
    for (int i = 0; i < r->samples; i++) {
        if ((samples >= 0 && i >= samples) || (seconds >= 0 && (double)r->seconds[i] > seconds))
            break;
        regret = (double)r->regret[i];
    }
    return regret;
}

struct band variant_regret(const struct ablation *a, const struct variant *v, int samples,
                           double seconds)
{
    double *x = xcalloc((size_t)a->seeds, sizeof *x), sum = 0;
    for (int i = 0; i < a->seeds; i++)
        sum += x[i] = regret_at(&v->run[i], samples, seconds);
    struct band b = {sum / a->seeds, quantile(x, a->seeds, 0.1), quantile(x, a->seeds, 0.9)};
    free(x);
    return b;
}

struct band variant_to_95(const struct ablation *a, const struct variant *v, bool in_seconds)
{
    double *x = xcalloc((size_t)a->seeds, sizeof *x);
    for (int i = 0; i < a->seeds; i++)
        x[i] = in_seconds || v->run[i].to_95 == 0 ? v->run[i].to_95_s : v->run[i].to_95;
    struct band b = {quantile(x, a->seeds, 0.5), quantile(x, a->seeds, 0.1),
                     quantile(x, a->seeds, 0.9)};
    free(x);
    return b;
}

int variant_never(const struct ablation *a, const struct variant *v)
{
    int n = 0;
    for (int i = 0; i < a->seeds; i++)
        n += v->run[i].to_95 == 0;
    return n;
}

double variant_to_95_least(const struct ablation *a, const struct variant *v)
{
    double *x = xcalloc((size_t)a->seeds, sizeof *x);
    for (int i = 0; i < a->seeds; i++)
        x[i] = v->run[i].to_95 > 0 ? v->run[i].to_95 : v->run[i].samples + 1;
    double least = quantile(x, a->seeds, 0.5);
    free(x);
    return least;
}

/* ---- what advice costs --------------------------------------------------------------------- */

static const struct variant *variant_of(const struct ablation *a, const struct table *t,
                                        const char *strategy, enum sim_adviser_kind k)
{
    for (int i = 0; i < a->variants; i++)
        if (a->variant[i].table == t && a->variant[i].adviser == k &&
            strcmp(a->variant[i].strategy, strategy) == 0)
            return &a->variant[i];
    return NULL;
}

/* The mean over slots of mean samples with the adviser over mean samples without, for the seeds
 * pick[0..seeds); NAN if no search got there. */
static double cost_of(const struct ablation *a, const char *strategy, enum sim_adviser_kind k,
                      const int *pick)
{
    double sum = 0;
    int slots = 0;
    for (int t = 0; t < a->tables->n; t++) {
        const struct variant *with = variant_of(a, &a->tables->table[t], strategy, k);
        const struct variant *alone = variant_of(a, &a->tables->table[t], strategy, SIM_HEURISTIC);
        double n = 0, m = 0;
        for (int i = 0; i < a->seeds; i++) {
            const struct trial_run *x = &with->run[pick[i]], *y = &alone->run[pick[i]];
            if (x->to_95 == 0 && y->to_95 == 0)
                continue;
            n += x->to_95 > 0 ? x->to_95 : x->points + 1;
            m += y->to_95 > 0 ? y->to_95 : y->samples + 1;
        }
        sum += m > 0 ? n / m : 0;
        slots += m > 0;
    }
    return slots > 0 ? sum / slots : NAN;
}

/* How many searches never got there, with the adviser and without. */
static int never_of(const struct ablation *a, const char *strategy, enum sim_adviser_kind k)
{
    int n = 0;
    for (int t = 0; t < a->tables->n; t++)
        n += variant_never(a, variant_of(a, &a->tables->table[t], strategy, k)) +
             variant_never(a, variant_of(a, &a->tables->table[t], strategy, SIM_HEURISTIC));
    return n;
}

struct band variant_cost(const struct ablation *a, const char *strategy, enum sim_adviser_kind k,
                         int *never)
{
    enum { DRAWS = 1000 };
    int *pick = xcalloc((size_t)a->seeds, sizeof *pick);
    double draw[DRAWS];
    uint64_t random = 1;
    for (int i = 0; i < a->seeds; i++)
        pick[i] = i;
    struct band b = {.mean = cost_of(a, strategy, k, pick)};
    int draws = 0; /* of those in which some search got there */
    for (int d = 0; d < DRAWS; d++) {
        for (int i = 0; i < a->seeds; i++)
            pick[i] = random_below(&random, a->seeds);
        draw[draws] = cost_of(a, strategy, k, pick);
        draws += !isnan(draw[draws]);
    }
    b.low = draws > 0 ? quantile(draw, draws, 0.025) : NAN;
    b.high = draws > 0 ? quantile(draw, draws, 0.975) : NAN;
    if (never)
        *never = never_of(a, strategy, k);
    free(pick);
    return b;
}
