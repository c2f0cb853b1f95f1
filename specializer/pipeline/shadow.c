/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.c - the candidate beside the incumbent, on real steps, before any output of it is used.
 *
 * First the model as a whole: item 9 of the admission, logits on a fixed prompt set, in a probe
 * process, or where the backend can check the whole model on the engine's (endcheck_live.c). It
 * comes here and not with the other checks because it costs as much as all of them and only the
 * fastest of a batch gets this far.
 *
 * Then a hook: on some live steps, after the incumbent ran in one layer, the candidate runs on the
 * same inputs into scratch outputs and both are compared on the engine thread. Eight comparisons,
 * one matching step in four; of steps with many tokens, which are rare and long, each one. If
 * traffic stops, what was seen is forgotten and the stage is retried.
 *
 * How far apart may they be? Each may be `factor` times eager's error from the truth, so twice that
 * from each other; eager's error on live inputs is not known here (the oracle is too slow), only
 * its largest in the probe, whose inputs were meant to be worse than life. Doubled once more for
 * what they missed, the limit is still thousands of times below any precision downgrade.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "specializer/admission/comparator.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe.h"
#include "specializer/candidate/live.h"
#include "specializer/pipeline/stages.h"

enum { COMPARISONS = 8, EVERY = 4, WIDE = 64 };
static const double apart = 8; /* times eager's largest error in the probe */
static const double unit = 0x1p-24;

const char *compare_verdict(const struct stage_env *env, const struct hook *hook,
                            const struct evidence *evidence, char *buf, size_t n)
{
    bool reduced = numerics_allows(env->numerics, PRECISION_BF16) && !evidence->bit_equal;
    /* Twice what the probe found, which is within what it declares; at least twice int8's. */
    double max = apart * fmax(evidence->eager_max, 4 * unit) +
                 (reduced ? 2 * fmax(precision_max(PRECISION_INT8), evidence->own_max) : 0);
    double rms = apart * fmax(evidence->eager_rms, unit) +
                 (reduced ? 2 * fmax(precision_rms(PRECISION_INT8), evidence->own_rms) : 0);
    int bad = hook->kernel->origin == ORIGIN_EAGER ? hook->served_nonfinite : hook->nonfinite;
    if (bad > 0)
        snprintf(buf, n, "outputs not finite in %d of %d comparisons", bad, hook->comparisons);
    else if (env->numerics == NUMERICS_BIT_EQUAL && hook->different > 0)
        snprintf(buf, n, "other bits in %d of %d comparisons", hook->different, hook->comparisons);
    else if (!(hook->worst_max <= max))
        snprintf(buf, n, "largest distance %.3g of a row's scale, limit %.3g", hook->worst_max,
                 max);
    else if (!(hook->worst_rms <= rms))
        snprintf(buf, n, "rms distance %.3g of a row's, limit %.3g", hook->worst_rms, rms);
    else
        return NULL;
    return buf;
}

/* The whole model's logits with the candidate, in a probe process. */
static enum stage_result whole_model(const struct stage_env *env, struct candidate *c)
{
    struct err err = {""};
    struct probe *p = probe_start(env, c, PROBE_END, NULL, 0, &err);
    if (!p) {
        candidate_explain(c, STAGE_SHADOW, CAUSE_OTHER, 0, "%.220s", err.msg);
        return STAGE_RETRY;
    }
    enum stage_result r;
    while ((r = probe_poll(p)) == STAGE_RUNNING)
        if (!live_pause(env)) {
            r = STAGE_STOPPED;
            break;
        }
    probe_end(p);
    return r;
}

static enum stage_result watch_hook(const struct stage_env *env, struct candidate *c,
                                    struct hook *t, struct patience *patience)
{
    while (atomic_load_explicit(&t->left, memory_order_acquire) > 0) {
        if (!live_pause(env))
            return STAGE_STOPPED;
        if (live_broken(env, c, STAGE_SHADOW))
            return STAGE_REFUSE;
        if (patience_over(patience))
            return STAGE_RETRY;
    }
    return STAGE_PASS;
}

enum stage_result shadow_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    char what[160];
    enum stage_result r = STAGE_PASS;
    /* One rank's logits know nothing of reduce. */
    if (!c->whole && c->slot->region != REGION_REDUCE)
        r = env->ops->check_model ? end_check_live(env, c) : whole_model(env, c);
    if (r != STAGE_PASS)
        return r;
    struct patience patience;
    struct hook t = {.kind = HOOK_COMPARE, .slot = c->slot, .kernel = c->kernel, .every = EVERY};
    if (target_of(env->machine->kind)->shadow_wide_always && c->slot->m >= WIDE)
        t.every = 1;
    atomic_init(&t.left, COMPARISONS);
    live_expected(env);
    patience_begin(&patience, env, c->slot, timeout_s);
    if (env->ops->hook(env->backend, &t) != 0) {
        candidate_explain(c, STAGE_SHADOW, CAUSE_OTHER, 0, "the backend took no hook");
        return STAGE_RETRY;
    }
    r = watch_hook(env, c, &t, &patience);
    env->ops->hook(env->backend, NULL); /* t is ours again */
    struct evidence *e = &c->evidence;
    e->shadow_runs = t.comparisons;
    e->shadow_different = t.different;
    e->shadow_max = t.worst_max;
    e->shadow_rms = t.worst_rms;
    const char *wrong = t.comparisons > 0 ? compare_verdict(env, &t, e, what, sizeof what) : NULL;
    if (live_broken(env, c, STAGE_SHADOW))
        return STAGE_REFUSE;
    if (wrong) {
        candidate_explain(c, STAGE_SHADOW, CAUSE_OTHER, 0, "%.160s", wrong);
        return STAGE_REFUSE;
    }
    if (r == STAGE_RETRY)
        candidate_explain(c, STAGE_SHADOW, CAUSE_OTHER, 0,
                          "%d of %d comparisons, then %llu steps without %s", t.comparisons,
                          COMPARISONS, (unsigned long long)patience_passed(&patience),
                          c->slot->name);
    return r;
}
