/* SPDX-License-Identifier: Apache-2.0 */
/* specializer_metrics.c - Prometheus text of the specialization metrics (docs/metrics.md). Labels
 * are slots, stages and outcomes: bounded sets, never shapes or text. */
#include <string.h>

#include "config/table.h"
#include "specializer/admission/prober.h"
#include "specializer/specializer_private.h"

const char *outcome_name(enum stage_result r)
{
    static const char *const names[] = {"running", "pass", "refuse", "retry", "stopped"};
    EVERY_ROW(names, OUTCOMES);
    return names[r];
}

static void value(FILE *out, const char *name, const char *type, const char *help, double v)
{
    metric_head(out, name, type, help);
    metric_value(out, name, NULL, v);
}

static void put_funnel(struct specializer *s, FILE *out)
{
    char label[80];
    metric_head(out, "specializer_candidates_total", "counter", "Candidates by stage and outcome");
    for (int i = 0; i < STAGES; i++)
        for (int r = STAGE_PASS; r <= STAGE_RETRY; r++) {
            snprintf(label, sizeof label, "stage=\"%s\",outcome=\"%s\"", stage_name((enum stage)i),
                     outcome_name((enum stage_result)r));
            metric_value(out, "specializer_candidates_total", label,
                         (double)atomic_load(&s->counts.stage[i][r]));
        }
    metric_head(out, "specializer_refusals_total", "counter", "Refused candidates by reason");
    uint64_t impossible = atomic_load(&s->counts.impossible);
    for (int i = 0; i < STAGES; i++) {
        uint64_t n = atomic_load(&s->counts.stage[i][STAGE_REFUSE]);
        if (i == STAGE_BENCH)
            n = n > impossible ? n - impossible : 0;
        snprintf(label, sizeof label, "reason=\"%s\"", stage_name((enum stage)i));
        metric_value(out, "specializer_refusals_total", label, (double)n);
    }
    metric_value(out, "specializer_refusals_total", "reason=\"impossible\"", (double)impossible);
    metric_head(out, "specializer_build_seconds", "histogram", "Time of one build");
    metric_histogram(out, "specializer_build_seconds", NULL, &s->counts.build_seconds);
}

static void put_swaps(struct specializer *s, FILE *out)
{
    static const char *const kinds[] = {"audit",   "drift",    "operator",
                                        "restore", "executor", "crash"};
    EVERY_ROW(kinds, ROLLBACKS);
    uint64_t back = 0;
    char label[80];
    metric_head(out, "kernel_rollbacks_total", "counter", "Kernels taken out of service by reason");
    for (int i = 0; i < ROLLBACKS; i++) {
        uint64_t n = atomic_load(&s->counts.rolled_back[i]);
        back += n;
        snprintf(label, sizeof label, "reason=\"%s\"", kinds[i]);
        metric_value(out, "kernel_rollbacks_total", label, (double)n);
    }
    metric_head(out, "kernel_swaps_total", "counter", "Kernels put into or taken out of a slot");
    metric_value(out, "kernel_swaps_total", "result=\"published\"",
                 (double)atomic_load(&s->counts.published));
    metric_value(out, "kernel_swaps_total", "result=\"restored\"",
                 (double)atomic_load(&s->counts.restored));
    metric_value(out, "kernel_swaps_total", "result=\"rolled_back\"", (double)back);
}

/* Points that won on other machines: how many were tried here, and how many won here as well. */
static void put_known(struct specializer *s, FILE *out)
{
    static const char *const names[] = {"tried", "published"};
    EVERY_ROW(names, KNOWN_COUNTS);
    char label[40];
    metric_head(out, "specializer_known_points_total", "counter",
                "Points that are known to have won on such a machine: `tried` here, `published` "
                "here");
    for (int i = 0; i < KNOWN_COUNTS; i++) {
        snprintf(label, sizeof label, "result=\"%s\"", names[i]);
        metric_value(out, "specializer_known_points_total", label,
                     (double)atomic_load(&s->counts.known[i]));
    }
}

/* The process that probes a device's kernels. */
static void put_prober(const struct prober *p, FILE *out)
{
    struct prober_counts n = prober_counts(p);
    metric_head(out, "probe_starts_total", "counter", "Processes started to probe a GPU's kernels");
    metric_value(out, "probe_starts_total", NULL, (double)n.starts);
    metric_head(out, "probe_slices_total", "counter", "Slices of device time that they were given");
    metric_value(out, "probe_slices_total", NULL, (double)n.slices);
    metric_head(out, "probe_late_slices_total", "counter", "Slices not given back in time");
    metric_value(out, "probe_late_slices_total", NULL, (double)n.late);
}

/* One sample a specialized slot. */
static void put_slots_locked(struct specializer *s, FILE *out)
{
    char label[160];
    metric_head(out, "kernel_active_info", "gauge", "The kernel in a slot that is not eager");
    for (int i = 0; i < s->slot_searches; i++) {
        const struct slot_search *p = &s->slot_search[i];
        if (!p->locked.active)
            continue;
        snprintf(label, sizeof label, "slot=\"%s\",kernel=\"%s\",origin=\"%s\"", p->slot->name,
                 p->locked.active->key, origin_name(p->locked.active->origin));
        metric_value(out, "kernel_active_info", label, 1);
    }
    metric_head(out, "kernel_gain_ratio", "gauge",
                "Measured speed of a slot over the eager kernel");
    for (int i = 0; i < s->slot_searches; i++) {
        const struct slot_search *p = &s->slot_search[i];
        if (!p->locked.active)
            continue;
        snprintf(label, sizeof label, "slot=\"%s\"", p->slot->name);
        metric_value(out, "kernel_gain_ratio", label, 1 + p->locked.gain_eager);
    }
    value(out, "time_saved_seconds_total", "counter",
          "Time that steps did not take thanks to specialized kernels, by their measured gains",
          s->locked.saved_s);
}

/* 1 also while it sleeps: it would search if something were worth it. */
static bool searching(struct specializer *s)
{
    int doing = atomic_load(&s->doing);
    return atomic_load(&s->mode) == SPECIALIZER_RUN &&
           (doing == DOING_SEARCH || doing == DOING_SLEEP || doing == DOING_CAPPED ||
            doing == DOING_YIELD);
}

void specializer_metrics(struct specializer *s, FILE *out)
{
    put_funnel(s, out);
    put_swaps(s, out);
    put_known(s, out);
    bool ready = atomic_load(&s->ready); /* prober and agent are set up before that */
    put_prober(ready ? s->env.prober : NULL, out);
    adviser_metrics(s->adviser, out);
    agent_metrics(ready ? s->agent : NULL, out);
    fleet_metrics(ready ? s->fleet : NULL, out);
    value(out, "audit_comparisons_total", "counter",
          "Live runs of active kernels compared with eager",
          (double)atomic_load(&s->counts.audits));
    value(out, "audit_mismatches_total", "counter", "Audits that found an active kernel wrong",
          (double)atomic_load(&s->counts.mismatches));
    value(out, "store_errors_total", "counter", "Calls of the specializer's store that failed",
          (double)store_errors(s->store));
    value(out, "specializer_searching", "gauge",
          "1 while the specializer searches, or would if something were worth it", searching(s));
    value(out, "specializer_frozen", "gauge", "1 while an operator or the configuration froze it",
          atomic_load(&s->mode) == SPECIALIZER_FREEZE);
    if (!ready)
        return;
    value(out, "specializer_compiler_available", "gauge", "1 if there is a compiler to build with",
          s->has_compiler);
    value(out, "specializer_slice_seconds_total", "counter",
          "Time that the engine lent to the specializer",
          (double)engine_slice_ns(s->engine) * 1e-9);
    pthread_mutex_lock(&s->lock);
    put_slots_locked(s, out);
    pthread_mutex_unlock(&s->lock);
}
