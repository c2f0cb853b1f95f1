/* SPDX-License-Identifier: Apache-2.0 */
/* canary.c - whole live steps decide.
 *
 * The engine tosses a coin for each step that uses the slot: incumbent or candidate. Steps differ
 * by what they carry, so a step is paired with the one before it that had the same m and nearly the
 * same context (16 positions or 5 %, and in the same bucket: beyond its end attention is another
 * slot's kernel), at most 24 steps away, if the coin fell otherwise there.
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
 * promise is large enough to be seen, it must be seen.
 *
 * Half of the steps answer requests with the candidate's outputs, so beside one in eight of these a
 * hook runs eager and compares; a bad comparison makes the verdict a refusal.
 */
#include "specializer/pipeline/canary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/clock.h"
#include "specializer/candidate/live.h"
#include "specializer/candidate/stats.h"
#include "specializer/pipeline/stages.h"

enum { ANALYSES = 4, WINDOW = 24, PAIRS_LEAST = 10 };
static const int32_t steps_at[ANALYSES] = {32, 96, 288, 864};
static const double harmless = -0.005;

/* ---- pairs ---------------------------------------------------------------------------------- */

static bool alike(const struct canary_step *a, const struct canary_step *b)
{
    int32_t longer = a->context > b->context ? a->context : b->context;
    int32_t apart = abs(a->context - b->context);
    return a->m == b->m && (apart <= 16 || apart <= longer / 20) &&
           context_bucket_of(a->context) == context_bucket_of(b->context);
}

/* The last step before `i` that carried the same, or -1. */
static int32_t previous(const struct canary_step *step, int32_t i)
{
    for (int32_t j = i - 1; j >= 0 && j >= i - WINDOW; j--)
        if (alike(&step[i], &step[j]))
            return j;
    return -1;
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
        incumbent[pairs] = (double)step[later ? j : i].ns;
        candidate[pairs++] = (double)step[later ? i : j].ns;
        used[i] = used[j] = true;
    }
    free(used);
    return pairs;
}

enum canary_verdict canary_decide(const struct gain *g, double expected, bool last)
{
    if (g->pairs >= PAIRS_LEAST) {
        if (g->low > 0)
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

struct canary_trial {
    const struct stage_env *env;
    struct candidate *c;
    struct canary canary;
    struct hook audit;
    bool audited; /* the audit is installed */
    struct patience patience;
};

static void trial_open(struct canary_trial *t)
{
    struct canary *k = &t->canary;
    k->slot = t->c->slot;
    k->candidate = t->c->kernel;
    k->seed = (uint64_t)clock_ns();
    k->want = steps_at[ANALYSES - 1];
    k->step = xcalloc((size_t)k->want, sizeof *k->step);
    t->audit = (struct hook){.kind = HOOK_COMPARE,
                             .slot = k->slot,
                             .kernel = k->slot->eager,
                             .served = k->candidate,
                             .every = target_of(t->env->machine->kind)->canary_audit_every};
    atomic_init(&t->audit.left, k->want);
    t->audited = t->env->ops->hook(t->env->backend, &t->audit) == 0;
    engine_canary(t->env->engine, k);
}

static void trial_close(struct canary_trial *t)
{
    engine_canary(t->env->engine, NULL);
    if (t->audited)
        t->env->ops->hook(t->env->backend, NULL);
    free(t->canary.step);
}

static enum stage_result wait_for(struct canary_trial *t, int32_t steps)
{
    while (atomic_load_explicit(&t->canary.have, memory_order_acquire) < steps) {
        if (!live_pause(t->env))
            return STAGE_STOPPED;
        if (atomic_load(&t->canary.failed)) {
            candidate_explain(t->c, STAGE_CANARY, CAUSE_OTHER, 0, "a step failed with it");
            return STAGE_REFUSE;
        }
        if (live_broken(t->env, t->c, STAGE_CANARY))
            return STAGE_REFUSE;
        bool enough = atomic_load(&t->canary.have) >= steps_at[1];
        if (patience_over(&t->patience) || (enough && patience_spent(&t->patience)))
            return STAGE_RETRY;
    }
    return STAGE_PASS;
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

/* What the bench promises for a whole step. */
static double promised(const struct canary_trial *t, double step_s)
{
    const struct evidence *e = &t->c->evidence;
    double runs = region_runs(t->c->slot->region, t->env->model->shape.layers);
    double share = step_s > 0 ? fmin(1, runs * e->incumbent_s / step_s) : 0;
    return share * e->bench.low / (1 + fmax(e->bench.low, 0));
}

static enum canary_verdict analyse(struct canary_trial *t, bool last)
{
    struct evidence *e = &t->c->evidence;
    int32_t n = atomic_load_explicit(&t->canary.have, memory_order_acquire);
    double *a = xcalloc((size_t)n + 2, sizeof *a), *b = a + n / 2 + 1;
    int pairs = canary_pairs(t->canary.step, n, a, b);
    e->canary = stats_gain(a, b, pairs, 1 - 0.05 / ANALYSES, t->canary.seed);
    e->step_s = median_step_s(t->canary.step, n, true);
    free(a);
    return canary_decide(&e->canary, promised(t, median_step_s(t->canary.step, n, false)), last);
}

/* After the trial was closed: the audit is ours to read. */
static enum stage_result audit_verdict(struct canary_trial *t, enum stage_result r)
{
    char what[160];
    const char *wrong = NULL;
    if (t->audit.comparisons > 0)
        wrong = compare_verdict(t->env, &t->audit, &t->c->evidence, what, sizeof what);
    if (!wrong)
        return r;
    candidate_explain(t->c, STAGE_CANARY, CAUSE_OTHER, 0, "audit: %.160s", wrong);
    t->c->steps = STEPS_UNSEEN; /* it is wrong, whatever its time */
    return STAGE_REFUSE;
}

enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    struct canary_trial *t = xcalloc(1, sizeof *t);
    t->env = env;
    t->c = c;
    c->steps = STEPS_UNSEEN;
    patience_begin(&t->patience, env, c->slot, timeout_s);
    live_expected(env);
    trial_open(t);
    enum stage_result r = STAGE_PASS;
    enum canary_verdict verdict = CANARY_MORE;
    for (int i = 0; i < ANALYSES && verdict == CANARY_MORE && r == STAGE_PASS; i++) {
        r = wait_for(t, steps_at[i]);
        /* A hundred steps or more are enough for a last analysis once the time is over. */
        bool late = r == STAGE_RETRY && atomic_load(&t->canary.have) >= steps_at[1];
        if (late)
            r = STAGE_PASS;
        if (r == STAGE_PASS)
            verdict = analyse(t, late || i == ANALYSES - 1);
    }
    const struct gain *g = &c->evidence.canary;
    if (r == STAGE_PASS && verdict == CANARY_SLOWER) {
        bool unresolved = canary_unresolved(g);
        candidate_explain(c, STAGE_CANARY, CAUSE_GAIN, g->mean,
                          "whole steps %+.2f %% [%+.2f, %+.2f] over %d pairs", g->mean * 100,
                          g->low * 100, g->high * 100, g->pairs);
        r = unresolved ? STAGE_RETRY : STAGE_REFUSE;
        c->steps = !unresolved ? STEPS_SLOWER : g->pairs > 0 ? STEPS_UNDECIDED : STEPS_UNSEEN;
    } else if (r == STAGE_RETRY) {
        candidate_explain(c, STAGE_CANARY, CAUSE_OTHER, 0, "%d steps, then %llu without %s",
                          (int)atomic_load(&t->canary.have),
                          (unsigned long long)patience_passed(&t->patience), c->slot->name);
    }
    trial_close(t);
    if (live_broken(env, c, STAGE_CANARY)) { /* after its last step was recorded */
        c->steps = STEPS_UNSEEN;
        r = STAGE_REFUSE;
    } else {
        r = audit_verdict(t, r);
    }
    free(t);
    return r;
}
