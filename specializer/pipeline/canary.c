/* SPDX-License-Identifier: Apache-2.0 */
/* canary.c - whole live steps decide.
 *
 * The engine tosses a coin for each step that uses the slot: incumbent or candidate. Steps differ
 * by what they carry, so a step is paired with the one before it that had the same m and nearly the
 * same context (16 positions or 5 %, and in the same bucket: beyond its end attention is another
 * slot's kernel), at most 24 steps away, if the coin fell otherwise there. Steps of prompts, of
 * which hardly two have the same m, do with one that differs by 3 %, and its time goes by tokens.
 * Never with an older one: a backlog of one kind would put the other kind later in every pair, and
 * any drift of the machine would become a gain. About two steps in three find a partner. The paired
 * ratios go through the interval of stats.c; four analyses (32, 96, 288, 864 steps), each at
 * confidence 1 - 0.05 / 4, so asking often does not make a gain.
 *
 * The rule is a lower bound above zero. But a slot may be a hundredth of a step, and no number of
 * steps that a server takes in half a minute resolves 0.05 % of one: then the rule would keep every
 * small gain out for ever, and "not resolved" is not "no gain". So at the last analysis, when the
 * gain that the bench promises for a step (its lower bound times the slot's share) is smaller than
 * half the width of the interval, the canary only has to show that it did no harm: lower bound
 * above -0.5 %, upper bound above zero. The bench, which measured the slot alone with its own error
 * rate of 5 %, then carries the claim of a gain, and the trace shows both intervals. Where the
 * promise is large enough to be seen, it must be seen. Where specializer.min_gain is below zero
 * (drills and tests, which are about something else than speed) it takes the place of zero.
 *
 * Half of the steps answer requests with the candidate's outputs, so beside one in eight of these a
 * hook runs eager and compares; a bad comparison makes the verdict a refusal.
 *
 * Candidates of several slots may be judged together: the coin then decides between all of them and
 * none. What one step can use of them is a cell: those of one M bucket, or, since a step has one
 * context, one of its attention candidates and the others of the bucket. Each cell has its own
 * steps and its own verdict, and all are watched at the same time. Where the cells of a bucket
 * pass, its kernels have shown together that they make steps faster. A cell that does not has said
 * nothing of each: who asked tries halves of the bucket (promotion.c). The audit goes round, from
 * one candidate to the next with each comparison, as many times more often as there are
 * candidates; who is found wrong is refused alone, and the rest is to be judged again without it.
 */
#include "specializer/pipeline/canary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/clock.h"
#include "specializer/candidate/live.h"
#include "specializer/candidate/stats.h"
#include "specializer/pipeline/stages.h"

/* WIDE: steps of so many tokens take as long as they have tokens. */
enum { ANALYSES = 4, WINDOW = 24, PAIRS_LEAST = 10, WIDE = 256 };
static const int32_t steps_at[ANALYSES] = {32, 96, 288, 864};
static const double harmless = -0.005;

/* ---- pairs ---------------------------------------------------------------------------------- */

static bool alike_context(const struct canary_step *a, const struct canary_step *b)
{
    int32_t longer = a->context > b->context ? a->context : b->context;
    int32_t apart = abs(a->context - b->context);
    return (apart <= 16 || apart <= longer / 20) &&
           context_bucket_of(a->context) == context_bucket_of(b->context);
}

static bool near_m(const struct canary_step *a, const struct canary_step *b)
{
    int32_t more = a->m > b->m ? a->m : b->m;
    return more >= WIDE && abs(a->m - b->m) <= more / 32;
}

/* The last step before `i` that carried the same, or else nearly the same, or -1. */
static int32_t previous(const struct canary_step *step, int32_t i)
{
    int32_t near = -1;
    for (int32_t j = i - 1; j >= 0 && j >= i - WINDOW; j--) {
        if (!alike_context(&step[i], &step[j]))
            continue;
        if (step[j].m == step[i].m)
            return j;
        if (near < 0 && near_m(&step[i], &step[j]))
            near = j;
    }
    return near;
}

int canary_pairs(const struct canary_step *step, int32_t n, double *incumbent, double *candidate)
{
    bool *used = xcalloc((size_t)n + 1, sizeof *used);
    int pairs = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = previous(step, i);
        if (j < 0 || used[j] || step[i].candidate == step[j].candidate)
            continue;
        bool later = step[i].candidate;
        double before = (double)step[j].ns * step[i].m / step[j].m, now = (double)step[i].ns;
        incumbent[pairs] = later ? before : now;
        candidate[pairs++] = later ? now : before;
        used[i] = used[j] = true;
    }
    free(used);
    return pairs;
}

enum canary_verdict canary_decide(const struct gain *g, double expected, double wanted, bool last)
{
    if (g->pairs >= PAIRS_LEAST) {
        if (g->low > fmin(wanted, 0))
            return CANARY_PASS;
        if (g->high < 0)
            return CANARY_SLOWER;
    }
    if (!last)
        return CANARY_MORE;
    bool resolves = expected > 0.5 * (g->high - g->low);
    return g->pairs >= PAIRS_LEAST && !resolves && g->low > harmless ? CANARY_PASS : CANARY_SLOWER;
}

/* An interval that still holds a gain has not refused anything: noise did. Nor have a few pairs, or
 * none: so it is where one side's steps have no graph, because the device is short of memory, or no
 * two steps carry the same. */
bool canary_unresolved(const struct gain *g)
{
    return g->pairs < PAIRS_LEAST || (g->mean > 0 && g->high > 0);
}

/* ---- the run -------------------------------------------------------------------------------- */

/* What one step can use of the candidates, and its steps. */
struct cell {
    uint32_t members;        /* as bits */
    const struct slot *slot; /* of its candidates' slots the one that fewest steps use */
    int analyses;
    struct patience patience;
    struct gain gain;
    double step_s;
    enum stage_result r; /* RUNNING: not decided yet */
};

struct canary_trial {
    const struct stage_env *env;
    struct candidate *const *c; /* [n] */
    int n, cells;
    struct canary canary;
    struct cell cell[OVERRIDES_MOST];
    struct hook audit[OVERRIDES_MOST]; /* [n], installed one after the other */
    int audited;                       /* which one is; -1: none */
    int32_t audit_left;                /* of it, when it was */
};

static bool same_m(const struct canary_trial *t, int i, int k)
{
    return t->c[i]->slot->m_index == t->c[k]->slot->m_index;
}

static void add_cell(struct canary_trial *t, uint32_t members, const struct slot *slot,
                     double timeout_s)
{
    for (int i = 0; i < t->cells; i++)
        if (t->cell[i].members == members)
            return;
    struct cell *x = &t->cell[t->cells];
    *x = (struct cell){.members = members, .slot = slot, .r = STAGE_RUNNING};
    patience_begin(&x->patience, t->env, slot, timeout_s);
    t->canary.cell[t->cells++] = members;
    t->canary.cells = t->cells;
}

/* For each attention candidate a cell with all others of its M bucket; where there is none, the
 * bucket is a cell. */
static void open_cells(struct canary_trial *t, double timeout_s)
{
    for (int i = 0; i < t->n; i++) {
        bool attention = t->c[i]->slot->region == REGION_ATTN, left = false;
        uint32_t members = 1u << i;
        for (int k = 0; k < t->n; k++) {
            bool other = t->c[k]->slot->region == REGION_ATTN;
            if (same_m(t, i, k) && !other)
                members |= 1u << k;
            left |= same_m(t, i, k) && other && !attention; /* a cell of that one has it */
        }
        if (!left)
            add_cell(t, members, t->c[i]->slot, timeout_s);
    }
}

/* A cell that has the candidate, and is open. */
static bool is_open(const struct canary_trial *t, int i)
{
    bool some = false;
    for (int k = 0; k < t->cells; k++)
        some |= (t->cell[k].members >> i & 1) && t->cell[k].r == STAGE_RUNNING;
    return some;
}

/* The next one that still has steps to come is audited. */
static void audit_next(struct canary_trial *t)
{
    for (int k = 1; k <= t->n; k++) {
        int i = (t->audited + k) % t->n;
        if (!is_open(t, i))
            continue;
        t->audit_left = atomic_load(&t->audit[i].left);
        if (i != t->audited)
            t->audited = t->env->ops->hook(t->env->backend, &t->audit[i]) == 0 ? i : -1;
        return;
    }
}

static void trial_open(struct canary_trial *t, double timeout_s)
{
    struct canary *k = &t->canary;
    int every = target_of(t->env->machine->kind)->canary_audit_every / t->n;
    k->seed = (uint64_t)clock_ns();
    open_cells(t, timeout_s);
    k->want = steps_at[ANALYSES - 1] * t->cells;
    k->step = xcalloc((size_t)k->want, sizeof *k->step);
    k->candidates.n = t->n;
    for (int i = 0; i < t->n; i++) {
        k->candidates.of[i].slot = t->c[i]->slot;
        k->candidates.of[i].kernel = t->c[i]->kernel;
        t->audit[i] = (struct hook){.kind = HOOK_COMPARE,
                                    .slot = t->c[i]->slot,
                                    .kernel = t->c[i]->slot->eager,
                                    .served = t->c[i]->kernel,
                                    .every = every > 1 ? every : 1};
        atomic_init(&t->audit[i].left, k->want);
    }
    t->audited = -1;
    audit_next(t);
    engine_canary(t->env->engine, k);
}

static void trial_close(struct canary_trial *t)
{
    engine_canary(t->env->engine, NULL);
    if (t->audited >= 0)
        t->env->ops->hook(t->env->backend, NULL);
    free(t->canary.step);
}

static double median_step_s(const struct canary_step *step, int32_t n, bool candidate)
{
    double *v = xmalloc((size_t)n * sizeof *v + 1);
    int k = 0;
    for (int32_t i = 0; i < n; i++)
        if (step[i].candidate == candidate)
            v[k++] = (double)step[i].ns * 1e-9;
    double m = stats_median(v, k);
    free(v);
    return m;
}

/* What the benches promise for a whole step. */
static double promised(const struct canary_trial *t, const struct cell *x, double step_s)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) {
        const struct evidence *e = &t->c[i]->evidence;
        if (!(x->members >> i & 1))
            continue;
        double runs = slot_runs(t->c[i]->slot, t->env->model->shape.layers);
        double share = step_s > 0 ? fmin(1, runs * e->incumbent_s / step_s) : 0;
        sum += share * e->bench.low / (1 + fmax(e->bench.low, 0));
    }
    return sum;
}

static int32_t count_steps(const struct canary_trial *t, int cell)
{
    int32_t n = 0, all = atomic_load_explicit(&t->canary.have, memory_order_acquire);
    for (int32_t i = 0; i < all; i++)
        n += t->canary.step[i].cell == cell;
    return n;
}

/* The cell's steps, in the order in which they came. Caller frees. */
static struct canary_step *steps_of(const struct canary_trial *t, int cell, int32_t *n)
{
    int32_t all = atomic_load_explicit(&t->canary.have, memory_order_acquire);
    struct canary_step *step = xmalloc(((size_t)all + 1) * sizeof *step);
    *n = 0;
    for (int32_t i = 0; i < all; i++)
        if (t->canary.step[i].cell == cell)
            step[(*n)++] = t->canary.step[i];
    return step;
}

static enum canary_verdict analyse(struct canary_trial *t, int cell, bool last)
{
    struct cell *x = &t->cell[cell];
    int32_t n;
    struct canary_step *step = steps_of(t, cell, &n);
    double *a = xcalloc((size_t)n + 2, sizeof *a), *b = a + n / 2 + 1;
    int pairs = canary_pairs(step, n, a, b);
    x->gain = stats_gain(a, b, pairs, 1 - 0.05 / ANALYSES, t->canary.seed);
    x->step_s = median_step_s(step, n, true);
    double promise = promised(t, x, median_step_s(step, n, false));
    x->analyses++;
    free(a);
    free(step);
    return canary_decide(&x->gain, promise, t->env->config->specializer_min_gain, last);
}

/* ---- what each of them hears ----------------------------------------------------------------- */

/* It alone is at fault; what the steps of its bucket took was its doing, too. */
static void blame(struct canary_trial *t, int i, enum stage_result *r)
{
    for (int k = 0; k < t->n; k++)
        if (same_m(t, i, k) && r[k] != STAGE_REFUSE && r[k] != STAGE_STOPPED)
            r[k] = STAGE_RUNNING;
    r[i] = STAGE_REFUSE;
    t->c[i]->steps = STEPS_UNSEEN;
}

/* After the trial was closed: the audits are ours to read. Half of the steps were the candidate's.
 */
static void audit_verdicts(struct canary_trial *t, enum stage_result *r)
{
    for (int i = 0; i < t->n; i++) {
        char what[160];
        const char *wrong = NULL;
        if (t->audit[i].comparisons > 0)
            wrong = compare_verdict(t->env, &t->audit[i], &t->c[i]->evidence, what, sizeof what);
        if (wrong) {
            candidate_explain(t->c[i], STAGE_CANARY, CAUSE_OTHER, 0, "audit: %.160s", wrong);
            blame(t, i, r);
            dispatch_distrust(t->env->dispatch);
        }
    }
}

/* One that was slower alone, or could not be told apart. */
static enum stage_result slower(struct candidate *c)
{
    const struct gain *g = &c->evidence.canary;
    bool unresolved = canary_unresolved(g);
    candidate_explain(c, STAGE_CANARY, CAUSE_GAIN, g->mean,
                      "whole steps %+.2f %% [%+.2f, %+.2f] over %d pairs", g->mean * 100,
                      g->low * 100, g->high * 100, g->pairs);
    c->steps = !unresolved ? STEPS_SLOWER : g->pairs > 0 ? STEPS_UNDECIDED : STEPS_UNSEEN;
    return unresolved ? STAGE_RETRY : STAGE_REFUSE;
}

/* Of the cells that have the candidate the one that passed, or else the first. */
static int cell_for(const struct canary_trial *t, int i)
{
    int found = -1;
    for (int k = 0; k < t->cells; k++)
        if ((t->cell[k].members >> i & 1) &&
            (found < 0 || (t->cell[k].r == STAGE_PASS && t->cell[found].r != STAGE_PASS)))
            found = k;
    return found;
}

/* A cell of its bucket was refused, or left open when a step failed. */
static bool doubted(const struct canary_trial *t, int i)
{
    bool some = false;
    for (int k = 0; k < t->cells; k++) {
        enum stage_result r = t->cell[k].r;
        some |= (r == STAGE_REFUSE || r == STAGE_RUNNING) &&
                same_m(t, i, __builtin_ctz(t->cell[k].members));
    }
    return some;
}

static enum stage_result verdict(struct canary_trial *t, int i)
{
    struct candidate *c = t->c[i];
    int at = cell_for(t, i), alone = 1;
    const struct cell *x = &t->cell[at];
    for (int k = 0; k < t->n; k++)
        alone &= k == i || !same_m(t, i, k);
    if (x->analyses > 0) {
        c->evidence.canary = x->gain;
        c->evidence.step_s = x->step_s;
    }
    c->evidence.together = alone ? 0 : __builtin_popcount(x->members);
    if (t->n == 1 && x->r == STAGE_RUNNING && atomic_load(&t->canary.failed)) {
        candidate_explain(c, STAGE_CANARY, CAUSE_OTHER, 0, "a step failed with it");
        return STAGE_REFUSE;
    }
    if (x->r == STAGE_REFUSE && alone)
        return slower(c);
    if (doubted(t, i))
        return STAGE_RUNNING;
    if (x->r == STAGE_RETRY)
        candidate_explain(c, STAGE_CANARY, CAUSE_OTHER, 0, "%d steps, then %llu without %s",
                          (int)count_steps(t, at),
                          (unsigned long long)patience_passed(&x->patience), x->slot->name);
    return x->r;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void decide(struct canary_trial *t, int cell, enum stage_result r)
{
    t->cell[cell].r = r;
    atomic_fetch_or(&t->canary.decided, 1u << cell);
}

/* Looks at one cell: it is decided, or goes on. */
static void look(struct canary_trial *t, int cell)
{
    struct cell *x = &t->cell[cell];
    int32_t have = count_steps(t, cell);
    /* A hundred steps or more are enough for a last analysis once the time is over. */
    bool late = have >= steps_at[1] && patience_spent(&x->patience);
    if (have < steps_at[x->analyses] && !late) {
        if (patience_over(&x->patience))
            decide(t, cell, STAGE_RETRY);
        return;
    }
    enum canary_verdict v = analyse(t, cell, late || x->analyses == ANALYSES - 1);
    if (v != CANARY_MORE)
        decide(t, cell, v == CANARY_PASS ? STAGE_PASS : STAGE_REFUSE);
}

static bool any_broken(struct canary_trial *t)
{
    bool some = false;
    for (int i = 0; i < t->n; i++)
        some |= live_broken(t->env, t->c[i], STAGE_CANARY);
    return some;
}

/* Leaves cells open when a step failed or an executor broke: there is no verdict on time. */
static void wait_for_verdicts(struct canary_trial *t)
{
    for (bool open = true; open;) {
        bool stopped = !live_pause(t->env);
        if (!stopped && (atomic_load(&t->canary.failed) || any_broken(t)))
            return;
        open = false;
        for (int k = 0; k < t->cells; k++) {
            if (t->cell[k].r == STAGE_RUNNING && stopped)
                decide(t, k, STAGE_STOPPED);
            else if (t->cell[k].r == STAGE_RUNNING)
                look(t, k);
            open |= t->cell[k].r == STAGE_RUNNING;
        }
        if (t->n > 1 && t->audited >= 0 && atomic_load(&t->audit[t->audited].left) < t->audit_left)
            audit_next(t);
    }
}

void canary_run_set(const struct stage_env *env, struct candidate *const *c, int n,
                    double timeout_s, enum stage_result *r)
{
    struct canary_trial *t = xcalloc(1, sizeof *t);
    t->env = env;
    t->c = c;
    t->n = n;
    for (int i = 0; i < n; i++)
        c[i]->steps = STEPS_UNSEEN;
    live_expected(env);
    trial_open(t, timeout_s);
    wait_for_verdicts(t);
    trial_close(t);
    for (int i = 0; i < n; i++)
        r[i] = verdict(t, i);
    audit_verdicts(t, r);
    for (int i = 0; i < n; i++) /* after its last step was recorded */
        if (live_broken(env, c[i], STAGE_CANARY))
            blame(t, i, r);
    free(t);
}

enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    enum stage_result r;
    canary_run_set(env, &c, 1, timeout_s, &r);
    return r;
}

bool canary_may_join(struct candidate *const *set, int n, const struct candidate *c)
{
    bool may = n < OVERRIDES_MOST && region_info(c->slot->region)->parts == 0;
    for (int i = 0; i < n; i++)
        may &= set[i]->slot != c->slot && region_info(set[i]->slot->region)->parts == 0;
    return may;
}
