/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - active kernels, held to what they promised.
 *
 * Audit: one step in specializer.watch_every re-runs the eager kernel beside an active one, on the
 * step's real inputs, and compares; slots take turns. Drift: runs of a slot are averaged over
 * windows; the first window after a publish is the promise. A window that is a quarter slower at
 * like tokens and context is no proof (another tenant, a cooler clock), so it only calls for a
 * paired bench against eager, and the bench decides.
 *
 * A kernel that fails leaves at once: eager serves from the next step, and then we look again.
 *
 * Frozen, only audits go on: a wrong kernel must not serve, but a bench would lend engine time that
 * the operator wants for serving alone.
 */
#include <math.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/pipeline/stages.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/watch.h"

enum { WINDOW_RUNS = 3000 };
#define DRIFT_FACTOR 1.25
#define HOOK_PATIENCE_S 20
#define RECHECK_EVERY_S 120

/* ---- audits ---------------------------------------------------------------------------------- */

void watch_stop(struct specializer *s)
{
    if (s->audited)
        s->env.ops->hook(s->env.backend, NULL);
    s->audited = NULL;
}

/* Counts a compared live run, and rolls the kernel back if its output was wrong; not if an operator
 * has swapped the slot since, because then another kernel serves. */
static void conclude_audit(struct specializer *s, struct slot_search *p)
{
    char buf[160];
    pthread_mutex_lock(&s->lock);
    struct candidate *c = p->locked.active;
    const char *wrong = NULL;
    if (c && s->audit.comparisons > 0 && strcmp(c->key, s->audited_key) == 0) {
        wrong = compare_verdict(&s->env, &s->audit, &c->evidence, buf, sizeof buf);
        p->locked.audits += s->audit.comparisons;
        atomic_fetch_add(&s->counts.audits, (uint64_t)s->audit.comparisons);
        atomic_fetch_add(&s->counts.mismatches, wrong != NULL);
        p->locked.suspect -= !wrong && p->locked.suspect > 0;
    }
    if (wrong) {
        fleet_wrong(s->fleet, c->key, p->slot->name, wrong);
        swap_out_locked(s, p, LIFE_ROLLED_BACK, ROLLBACK_AUDIT, wrong, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}

static struct slot_search *next_to_audit(struct specializer *s)
{
    struct slot_search *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches && !found; i++) {
        s->locked.watch_at = (s->locked.watch_at + 1) % s->slot_searches;
        struct slot_search *p = &s->slot_search[s->locked.watch_at];
        if (p->locked.active && s->observe.slot[p->index].share > 0)
            found = p;
    }
    for (int i = 0; i < s->slot_searches; i++) /* a slot whose kernel is in doubt goes first */
        if (s->slot_search[i].locked.suspect > 0 && s->slot_search[i].locked.active)
            found = &s->slot_search[i];
    if (found)
        snprintf(s->audited_key, sizeof s->audited_key, "%s", found->locked.active->key);
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void audit_poll(struct specializer *s)
{
    int64_t now = clock_ns();
    if (s->audited) {
        bool done = atomic_load(&s->audit.left) == 0;
        if (!done && now - s->audit_since_ns < HOOK_PATIENCE_S * INT64_C(1000000000))
            return;
        struct slot_search *p = s->audited;
        watch_stop(s);
        if (done)
            conclude_audit(s, p);
    }
    struct slot_search *p = next_to_audit(s);
    if (!p)
        return;
    int32_t every = (int32_t)s->config->specializer_watch_every *
                    target_of(s->env.machine->kind)->watch_every_factor;
    s->audit = (struct hook){.kind = HOOK_COMPARE,
                             .slot = p->slot,
                             .kernel = p->slot->eager,
                             .every = p->locked.suspect > 0 ? 1 : every};
    atomic_init(&s->audit.left, 1);
    s->audit_since_ns = now;
    if (s->env.ops->hook(s->env.backend, &s->audit) == 0)
        s->audited = p;
}

/* ---- executors ------------------------------------------------------------------------------- */

/* Writes into store and log that a kernel broke. Steps have not used it since it did. */
static void broken_poll(struct specializer *s)
{
    for (int i = 0; s->env.ops->broken && i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        pthread_mutex_lock(&s->lock);
        const char *why =
            p->locked.active ? s->env.ops->broken(s->env.backend, p->locked.active->kernel) : NULL;
        char words[200];
        if (why) {
            snprintf(words, sizeof words, "its executor: %.180s", why);
            swap_out_locked(s, p, LIFE_ROLLED_BACK, ROLLBACK_EXECUTOR, words, NULL);
        }
        if (p->locked.previous && s->env.ops->broken(s->env.backend, p->locked.previous->kernel)) {
            candidate_drop_locked(s, p->locked.previous);
            p->locked.previous = NULL;
        }
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- drift ----------------------------------------------------------------------------------- */

static bool like(double a, double b)
{
    return fabs(a - b) <= 0.2 * fmax(a, b);
}

/* Closes the slot's window if it is full; true if it was much slower than promised. */
static bool window_drifted(struct slot_search *p)
{
    struct slot_counters *c = &p->slot->counters;
    struct window now = {atomic_load(&c->runs), atomic_load(&c->ns), atomic_load(&c->tokens),
                         atomic_load(&c->context)};
    struct window old = p->window;
    if (old.runs == 0 || now.runs - old.runs < WINDOW_RUNS) {
        if (old.runs == 0)
            p->window = now;
        return false;
    }
    double runs = (double)(now.runs - old.runs);
    double run_s = (double)(now.ns - old.ns) * 1e-9 / runs;
    double tokens = (double)(now.tokens - old.tokens) / runs;
    double context = (double)(now.context - old.context) / runs;
    p->window = now;
    if (p->promise_s <= 0) {
        p->promise_s = run_s;
        p->promise_tokens = tokens;
        p->promise_context = context;
        return false;
    }
    return run_s > DRIFT_FACTOR * p->promise_s && like(tokens, p->promise_tokens) &&
           like(context, p->promise_context);
}

/* Measures the active kernel against eager again; a loss rolls it back. */
static void recheck(struct specializer *s, struct slot_search *p)
{
    if (!slot_search_inputs(s, p))
        return;
    struct candidate copy;
    if (!slot_search_serving(s, p, &copy)) /* an operator has swapped the slot meanwhile */
        return;
    enum stage_result r = bench_run(&s->env, &copy, p->slot->eager, p->input[0], BENCH_QUICK);
    store_trace(s->store, p->slot->name, copy.key, "rechecked", NULL,
                "slower than promised; against eager %+.1f %% [%+.1f, %+.1f]",
                copy.evidence.bench.mean * 100, copy.evidence.bench.low * 100,
                copy.evidence.bench.high * 100);
    bool slower = r == STAGE_REFUSE && copy.evidence.bench.high < 0;
    pthread_mutex_lock(&s->lock);
    if (slower && atomic_load(&p->slot->kernel) == copy.kernel)
        swap_out_locked(s, p, LIFE_ROLLED_BACK, ROLLBACK_DRIFT, "no faster than eager any more",
                        NULL);
    else
        p->promise_s = 0; /* the machine or the mix changed: this is the new normal */
    pthread_mutex_unlock(&s->lock);
}

static void drift_poll(struct specializer *s)
{
    int64_t now = clock_ns();
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        pthread_mutex_lock(&s->lock);
        bool drifted = p->locked.active && window_drifted(p);
        pthread_mutex_unlock(&s->lock);
        if (!drifted || now - p->rechecked_ns < RECHECK_EVERY_S * INT64_C(1000000000))
            continue;
        p->rechecked_ns = now;
        recheck(s, p);
    }
}

void watch_poll(struct specializer *s)
{
    broken_poll(s);
    audit_poll(s);
    if (atomic_load(&s->mode) != SPECIALIZER_FREEZE)
        drift_poll(s);
}
