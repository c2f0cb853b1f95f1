/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - is it faster, and may that be believed?
 *
 * The backend times incumbent and candidate A-B-B-A on rotating layers, in slices on the engine
 * thread, so machine noise hits both. The paired ratios go through the signed-rank interval of
 * stats.c. Looking at the samples as they come in, and stopping when the answer pleases, would
 * find gains in noise; so there are three analyses (16, 48, 144 pairs) and each uses 1 - 0.05 / 3
 * for its confidence (Bonferroni). Clear losers, which most candidates are, cost 16 pairs. In an
 * opening there is one more, of 10 pairs, and each uses 1 - 0.05 / 4: its candidates are alone in
 * their slots, so nobody compares their intervals, they are mostly far better than eager, and a
 * pair of the head is as long as half of a step.
 *
 * The bench picks winners among many, so the gain it reports for them is biased upwards by the
 * luck of the winner; the canary, on other samples, has the last word.
 */
#include "specializer/pipeline/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "specializer/candidate/live.h"
#include "specializer/candidate/stats.h"
#include "specializer/pipeline/bound.h"
#include "specializer/pipeline/stages.h"

const struct bench_plan bench_plan[BENCH_KINDS] = {
    [BENCH_FULL] = {3, {16, 48, 144}},
    [BENCH_OPENING] = {4, {10, 20, 48, 144}},
    [BENCH_QUICK] = {2, {8, 16}},
};

enum bench_verdict bench_decide(const struct gain *g, double wanted, bool last)
{
    if (g->low >= wanted)
        return BENCH_FASTER;
    return g->high < wanted || last ? BENCH_SLOWER : BENCH_MORE;
}

/* ---- the speed-of-light bound --------------------------------------------------------------- */

static struct region_cost cost_of(const struct model *model, const struct capture *c)
{
    int64_t positions = 0;
    for (int32_t i = 0; c->span && i < c->spans; i++)
        positions += c->span[i].context;
    int32_t spans = c->spans > 0 ? c->spans : 1, m = c->step_m > c->m ? c->step_m : c->m;
    return plan_cost(model, c->region, c->layer, m, spans, positions / spans, m);
}

static double least_seconds(const struct stage_env *env, const struct region_cost *cost,
                            const struct slot *slot)
{
    const int64_t bytes = (int64_t)machine_weight_bytes(env->machine, cost);
    if (target_of(env->machine->kind)
            ->bandwidth_uncached) /* its read peak is over all weights: no cache in it */
        return bound_seconds(env->machine, cost, bytes * env->model->shape.layers / 8,
                             env->machine->read_bandwidth);
    return bound_seconds(env->machine, cost, bytes * slot_runs(slot, env->model->shape.layers),
                         env->cache_bandwidth);
}

/* ---- what steps run beside it --------------------------------------------------------------- */

/* What is in the slot of region r of the same steps. */
static const struct kernel *beside(const struct stage_env *env, const struct slot *slot,
                                   enum region r, int32_t context)
{
    struct slot *at = dispatch_slot(env->dispatch, r, slot_layer(slot), slot->m, context);
    return at ? slot_kernel(at) : NULL;
}

/* A kernel is timed as steps of now would run it, not as others might. */
static struct bench_job job_of(const struct stage_env *env, const struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs)
{
    struct bench_job job = {.slot = c->slot, .a = incumbent, .b = c->kernel, .inputs = inputs};
    const enum region r = c->slot->region, after = region_info(r)->feeds;
    const struct kernel *k = after ? beside(env, c->slot, after, 0) : NULL;
    job.after16 = k && k->reads16;
    for (int before = 0; before < REGION_COUNT; before++)
        if (r != REGION_EMBED && region_info((enum region)before)->feeds == r) {
            k = beside(env, c->slot, (enum region)before, inputs->context);
            job.before16 = k && k->leaves16;
        }
    return job;
}

/* ---- sampling ------------------------------------------------------------------------------- */

struct slices {
    const struct stage_env *env;
    struct bench_job *job;
    int result;
    struct err err;
};

/* One slice, then back to the specializer's thread, which has children to look after. */
static int one_slice(void *ctx, int64_t budget_ns)
{
    struct slices *s = ctx;
    s->result = s->env->ops->bench(s->env->backend, s->job, budget_ns, &s->err);
    return 1;
}

/* Until `want` pairs are in. */
static enum stage_result sample(struct slices *s, int want)
{
    s->job->want = want;
    s->result = 0;
    while (s->job->have < want && s->result == 0) {
        if (engine_slices(s->env->engine, one_slice, s) < 0 || atomic_load(s->env->stop))
            return STAGE_STOPPED;
        s->env->tick(s->env->tick_ctx);
    }
    return s->result < 0 ? STAGE_RETRY : STAGE_PASS;
}

static struct gain gain_of(const struct bench_job *job, double confidence)
{
    double *a = xmalloc((size_t)job->have * 2 * sizeof *a + 1), *b = a + job->have;
    for (int32_t i = 0; i < job->have; i++) {
        a[i] = (double)job->a_ns[i];
        b[i] = (double)job->b_ns[i];
    }
    struct gain g = stats_gain(a, b, job->have, confidence, 1);
    free(a);
    return g;
}

static double median_s(const float *ns, int32_t n)
{
    double *v = xmalloc((size_t)n * sizeof *v + 1);
    for (int32_t i = 0; i < n; i++)
        v[i] = (double)ns[i] * 1e-9;
    double m = stats_median(v, n);
    free(v);
    return m;
}

static enum stage_result decide(struct candidate *c, enum bench_verdict verdict, double wanted,
                                double least_s)
{
    struct evidence *e = &c->evidence;
    e->impossible = e->own_s < least_s;
    if (e->impossible) {
        candidate_explain(c, STAGE_BENCH, CAUSE_IMPOSSIBLE, e->own_s / least_s,
                          "impossible: %.3g us a run where the machine cannot be below %.3g us",
                          e->own_s * 1e6, least_s * 1e6);
        return STAGE_REFUSE;
    }
    if (verdict == BENCH_FASTER)
        return STAGE_PASS;
    candidate_explain(c, STAGE_BENCH, CAUSE_GAIN, e->bench.mean,
                      "gain %+.1f %% [%+.1f, %+.1f] over %d pairs, wanted %+.1f %%",
                      e->bench.mean * 100, e->bench.low * 100, e->bench.high * 100, e->bench.pairs,
                      wanted * 100);
    return STAGE_REFUSE;
}

static void take_evidence(const struct stage_env *env, struct candidate *c,
                          const struct bench_job *job, const struct region_cost *cost)
{
    struct evidence *e = &c->evidence;
    e->incumbent_s = median_s(job->a_ns, job->have);
    e->own_s = median_s(job->b_ns, job->have);
    e->roofline_s = roofline_s(env->machine, cost);
    snprintf(e->against, sizeof e->against, "%s", job->a->id);
}

enum { WARM_PAIRS = 6 };

/* What a text takes when its weights need not be read from memory tells whoever writes the next one
 * which part of its time is computing. Nothing is decided by it, so a failure is none here. */
static void measure_warm(const struct stage_env *env, struct candidate *c,
                         const struct kernel *incumbent, const struct capture *inputs)
{
    float a_ns[WARM_PAIRS], b_ns[WARM_PAIRS];
    struct bench_job job = {.slot = c->slot,
                            .a = incumbent,
                            .b = c->kernel,
                            .inputs = inputs,
                            .one_layer = true,
                            .a_ns = a_ns,
                            .b_ns = b_ns};
    struct slices s = {.env = env, .job = &job};
    if (!c->body[0] || !target_of(env->machine->kind)->benches_one_layer)
        return;
    if ((!env->ops->bench_begin || env->ops->bench_begin(env->backend, &job, &s.err) == 0) &&
        sample(&s, WARM_PAIRS) == STAGE_PASS) {
        c->evidence.warm_base_s = median_s(a_ns, WARM_PAIRS);
        c->evidence.warm_s = median_s(b_ns, WARM_PAIRS);
    }
    env->ops->bench_end(env->backend, &job);
}

enum stage_result bench_run(const struct stage_env *env, struct candidate *c,
                            const struct kernel *incumbent, const struct capture *inputs,
                            enum bench_kind kind)
{
    int analyses = bench_plan[kind].analyses;
    const int *pairs = bench_plan[kind].pairs;
    double wanted = env->config->specializer_min_gain;
    if (kind == BENCH_QUICK)
        wanted = fmin(wanted, 0);
    int most = pairs[analyses - 1];
    struct region_cost cost = cost_of(env->model, inputs);
    double least_s = least_seconds(env, &cost, c->slot);
    struct bench_job job = job_of(env, c, incumbent, inputs);
    job.a_ns = xcalloc((size_t)most, sizeof *job.a_ns);
    job.b_ns = xcalloc((size_t)most, sizeof *job.b_ns);
    struct slices s = {.env = env, .job = &job};
    enum stage_result result = STAGE_PASS;
    if (env->ops->bench_begin && env->ops->bench_begin(env->backend, &job, &s.err) != 0)
        result = STAGE_RETRY;
    enum bench_verdict verdict = BENCH_MORE;
    for (int i = 0; i < analyses && verdict == BENCH_MORE && result == STAGE_PASS; i++) {
        result = sample(&s, pairs[i]);
        if (result != STAGE_PASS)
            break;
        c->evidence.bench = gain_of(&job, 1 - 0.05 / analyses);
        verdict = bench_decide(&c->evidence.bench, wanted, i == analyses - 1);
    }
    if (result == STAGE_PASS) {
        take_evidence(env, c, &job, &cost);
        result = decide(c, verdict, wanted, least_s);
    } else if (result == STAGE_RETRY) {
        candidate_explain(c, STAGE_BENCH, CAUSE_OTHER, 0, "%.200s", s.err.msg);
        if (live_broken(env, c, STAGE_BENCH))
            result = STAGE_REFUSE;
    }
    env->ops->bench_end(env->backend, &job);
    if (c->evidence.own_s > 0 && !c->evidence.impossible)
        measure_warm(env, c, incumbent, inputs);
    free(job.a_ns);
    free(job.b_ns);
    return result;
}

enum stage_result bench_sample(const struct stage_env *env, struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs,
                               int pairs)
{
    struct region_cost cost = cost_of(env->model, inputs);
    struct bench_job job = job_of(env, c, incumbent, inputs);
    job.a_ns = xcalloc((size_t)pairs, sizeof *job.a_ns);
    job.b_ns = xcalloc((size_t)pairs, sizeof *job.b_ns);
    struct slices s = {.env = env, .job = &job};
    enum stage_result result = sample(&s, pairs);
    if (result == STAGE_PASS) {
        c->evidence.bench = gain_of(&job, 0.95);
        take_evidence(env, c, &job, &cost);
    } else if (result == STAGE_RETRY) {
        candidate_explain(c, STAGE_BENCH, CAUSE_OTHER, 0, "%.200s", s.err.msg);
    }
    env->ops->bench_end(env->backend, &job);
    free(job.a_ns);
    free(job.b_ns);
    return result;
}
