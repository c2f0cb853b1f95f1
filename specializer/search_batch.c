/* SPDX-License-Identifier: Apache-2.0 */
/* search_batch.c - one batch of candidates from proposal to bench.
 *
 *   propose -> build (child, several) -> probe (child, one) -> load -> bench
 *   the fastest that passed is promoted: promotion.c
 *
 * The pipeline moves the trials; here are the rules of a batch: what may begin, and what becomes of
 * an answer. Children are started and polled from search_batch_children(), which the blocking
 * stages call while they wait: the compiler works on the next candidate while this one is measured.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/admission/prober.h"
#include "specializer/batch_header.h"
#include "specializer/retrial.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/unbuilt.h"
#include "specializer/why.h"

#define UNDECIDED_NS INT64_C(5000000000)

/* ---- what may be tried ---------------------------------------------------------------------- */

/* Begins the life of a candidate again, in the store and here. If the kernel that an operator could
 * roll back to is this very one, it is dropped from the slot: a candidate on trial may be neither
 * active nor its own predecessor. */
static bool begin_anew(struct specializer *s, struct candidate *c, const char *why, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    struct slot_search *p = slot_search_find(s, c->slot->name);
    bool ok = life_move(s->store, c, LIFE_PROPOSED, why, NULL, err) == 0;
    if (ok && p->locked.previous && strcmp(p->locked.previous->key, c->key) == 0) {
        candidate_drop_locked(s, p->locked.previous);
        p->locked.previous = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* Looks the candidate up in the store, and begins its life again if it may be tried again. Returns
 * what search_batch_admit() does. */
static int admit_known(struct specializer *s, struct candidate *c, const struct record *row,
                       struct err *err)
{
    candidate_recall(c, row);
    if (c->state == LIFE_ROLLED_BACK && c->evidence.refusal.cause == CAUSE_AUDIT)
        life_move(s->store, c, LIFE_REFUSED, "found wrong while it served", NULL,
                  err); /* the process ended between the two moves */
    const struct slot_search *p = slot_search_find(s, c->slot->name);
    const bool again = c->evidence.lost.n > 0, fresh = c->state == LIFE_PROPOSED;
    bool may = !record_deadly(row) && (!again || retrial_allowed(s, p, &c->evidence.lost)) &&
               (fresh || life_allowed(c->state, LIFE_PROPOSED));
    bool failed =
        may && !fresh && !begin_anew(s, c, again ? "tried again" : "looked at again", err);
    c->evidence = (struct evidence){.lost = c->evidence.lost};
    candidate_unexplain(c);
    return failed ? -1 : may;
}

int search_batch_admit(struct specializer *s, struct candidate *c, const char *why)
{
    struct record *row = xcalloc(1, sizeof *row);
    struct err err = {""};
    int may = 0, known = store_get(s->store, c->key, row, &err);
    if (known > 0)
        free(row->log);
    pthread_mutex_lock(&s->lock);
    bool disabled =
        is_disabled_locked(s, c->key, c->template->id); /* its state in the store stays as it is */
    pthread_mutex_unlock(&s->lock);
    if (!disabled && known > 0) {
        may = admit_known(s, c, row, &err);
    } else if (!disabled && known == 0) { /* the row of the proposal itself */
        candidate_record(c, row);
        may = store_move(s->store, row, LIFE_PROPOSED, why, NULL, &err) == 0 ? 1 : -1;
    } else if (known < 0) {
        may = -1;
    }
    if (may < 0 && log_due(&s->unwritten))
        log_error("specializer", "%s: %s (%llu times)", c->name, err.msg,
                  (unsigned long long)atomic_load(&s->unwritten));
    free(row);
    return may;
}

/* The stage failed for a reason that a second try at once would meet again, as a full disk or a
 * probe that cannot start. Other slots go first. */
void search_batch_later(struct slot_search *p)
{
    p->not_before_ns = clock_ns() + UNDECIDED_NS;
}

static const struct pipeline_rules rules;

void search_batch_add(struct specializer *s, struct slot_search *p, struct candidate *c,
                      struct proposal from)
{
    struct search_batch *r = &s->batch;
    if (!r->slot_search)
        *r = (struct search_batch){
            .slot_search = p,
            .pipeline = {
                .rules = &rules, .ctx = s, .env = &s->env, .marks = s->store, .last = STAGE_BENCH}};
    r->trial[r->n++] =
        (struct trial){.c = c, .slot_search = p, .from = from, .since_ns = clock_ns()};
    pthread_mutex_lock(&s->lock);
    p->locked.candidates++;
    pthread_mutex_unlock(&s->lock);
}

bool search_batch_has(const struct specializer *s, const struct slot_search *p)
{
    const struct search_batch *r = &s->batch;
    bool has = p == r->slot_search;
    for (int i = 0; i < r->n && !has; i++)
        has = r->trial[i].slot_search == p && !pipeline_over(&r->pipeline, &r->trial[i]);
    return has;
}

/* ---- how a trial ends ----------------------------------------------------------------------- */

/* The candidate is at fault: it leaves the batch and is not tried again under this key. */
static void refuse(struct specializer *s, struct trial *t)
{
    s->batch.decided = true;
    opening_measured(&s->batch.expects, t->slot_search->index, 1);
    t->from.by->learn(s, t->slot_search, t->from.id, t->c, t->c->evidence.speed);
    candidate_refuse(s, t->c, t->at, LIFE_REFUSED);
    t->c = NULL;
}

/* The probe could load the object, so it is this process that has no room for packed weights
 * (specializer.pack_mib). The candidate is not tried again before the next start, which may have
 * more room, so nothing is written against it. */
static void leave_unloaded(struct specializer *s, struct trial *t)
{
    struct slot_search *p = t->slot_search;
    s->batch.decided = true;
    count_stage(s, STAGE_LOAD, STAGE_REFUSE);
    store_trace(s->store, p->slot->name, t->c->key, "not_loaded", NULL, "%s", t->c->reason);
    t->from.by->learn(s, p, t->from.id, t->c, 0);
    pthread_mutex_lock(&s->lock);
    p->locked.refusals++;
    why_note_locked(p, LIFE_REFUSED, t->c);
    pthread_mutex_unlock(&s->lock);
    candidate_drop(s, t->c);
    t->c = NULL;
}

/* Drops a trial that decided nothing, so that the proposal may be made again. */
static void forget(struct specializer *s, struct trial *t)
{
    pthread_mutex_lock(&s->lock);
    why_undecided_locked(t->slot_search, t->c);
    pthread_mutex_unlock(&s->lock);
    t->from.by->forget(s, t->slot_search, t->from.id);
    if (s->batch.opening)
        search_batch_later(t->slot_search);
    candidate_drop(s, t->c);
    t->c = NULL;
}

/* Writes the state that the stage has reached; if that fails, the candidate goes no further. */
static bool move(struct specializer *s, struct trial *t)
{
    struct err err;
    if (life_move(s->store, t->c, pipeline_reached(t->at), NULL, NULL, &err) == 0) {
        atomic_store(&s->unwritten, 0);
        return true;
    }
    if (log_due(&s->unwritten))
        log_error("specializer", "%s (%llu times)", err.msg,
                  (unsigned long long)atomic_load(&s->unwritten));
    forget(s, t);
    return false;
}

/* ---- the rules of a batch: children ---------------------------------------------------------- */

bool search_batch_may_build(struct specializer *s)
{
    int64_t now = clock_ns();
    if (s->hour_ns == 0 || now - s->hour_ns > 3600 * INT64_C(1000000000)) {
        s->hour_ns = now;
        s->hour_builds = 0;
    }
    return s->hour_builds < s->config->specializer_builds_per_hour;
}

/* Children run on half of the cores, or on all where compute threads keep to theirs. In an opening
 * no more are started than have one each, those of the first slots first: one more would only make
 * the first take longer. */
static bool has_core(const struct specializer *s)
{
    const struct pipeline *p = &s->batch.pipeline;
    int running = p->children[STAGE_BUILD] + p->children[STAGE_PROBE] + (s->header != NULL);
    int cores = machine_threads(s->config) / (s->env.machine->pinned ? 1 : 2);
    return !s->batch.opening || running < (cores > 1 ? cores : 1);
}

/* In an opening the probe tries the whole model too, unless a process of its own probes. */
static bool probes_whole(const struct specializer *s)
{
    return s->batch.opening && !s->env.prober;
}

static bool room(const struct pipeline *p, enum stage stage)
{
    struct specializer *s = p->ctx;
    if (stage == STAGE_BUILD &&
        (p->children[stage] >= s->build_jobs ||
         (s->batch.opening && s->hour_builds > 0 && batch_header_wanted(s))))
        return false;
    return has_core(s) && (stage == STAGE_BUILD || s->batch.opening || p->children[stage] == 0);
}

static enum stage_result enter_build(struct specializer *s, struct trial *t)
{
    if (pipeline_has_object(s->store, t->c))
        return move(s, t) ? STAGE_PASS : STAGE_RETRY;
    if ((s->has_compiler || t->c->template->library) && search_batch_may_build(s))
        return STAGE_RUNNING;
    forget(s, t);
    return STAGE_RETRY;
}

static enum stage_result enter(struct pipeline *p, struct trial *t)
{
    struct specializer *s = p->ctx;
    struct slot_search *of = t->slot_search;
    if (t->at == STAGE_BUILD)
        return enter_build(s, t);
    if (t->at == STAGE_PROBE) {
        t->probe.depth = probes_whole(s) ? PROBE_WHOLE : PROBE_FULL;
        t->probe.input = (const struct capture *const *)of->input;
        t->probe.inputs = of->inputs;
    } else if (t->at == STAGE_BENCH) {
        pthread_mutex_lock(&s->lock);
        t->bench.against = of->locked.active ? of->locked.active->kernel : of->slot->eager;
        t->bench.base = 1 + of->locked.gain_eager;
        pthread_mutex_unlock(&s->lock);
        t->bench.input = of->input[0];
        t->bench.kind = s->batch.opening || s->batch.first ? BENCH_OPENING : BENCH_FULL;
    }
    return STAGE_RUNNING;
}

static void began(struct pipeline *p, struct trial *t, const struct err *err)
{
    struct specializer *s = p->ctx;
    if (err) {
        if (log_due(&s->unstarted))
            log_warn("specializer", "%s of %s: %s (%llu times)", stage_name(t->at), t->c->name,
                     err->msg, (unsigned long long)atomic_load(&s->unstarted));
        forget(s, t);
    } else if (t->at == STAGE_BUILD) {
        atomic_store(&s->unstarted, 0);
        s->hour_builds++;
    }
}

static bool child_came(struct specializer *s, struct trial *t, enum stage_result r)
{
    const struct evidence *e = &t->c->evidence;
    if (t->at == STAGE_BUILD && e->build_s > 0)
        histogram_observe(&s->counts.build_seconds, e->build_s);
    if (t->at == STAGE_BUILD && r == STAGE_RETRY)
        r = unbuilt_came(&s->unbuilt, t->c);
    if (t->at == STAGE_PROBE && r == STAGE_RETRY && t->c->probe_died)
        r = unprobed_came(s->store, t->c);
    if (t->at == STAGE_PROBE)
        t->c->whole = r == STAGE_PASS && probes_whole(s);
    if (t->at == STAGE_PROBE && r == STAGE_PASS && s->numerics == NUMERICS_BIT_EQUAL &&
        !e->bit_equal) {
        candidate_explain(t->c, STAGE_PROBE, CAUSE_OTHER, 0,
                          "outputs are not those of the eager kernel bit for bit");
        r = STAGE_REFUSE;
    }
    if (r == STAGE_REFUSE) {
        refuse(s, t);
        return false;
    }
    count_stage(s, t->at, r);
    if (r == STAGE_PASS)
        return move(s, t);
    forget(s, t);
    return false;
}

void search_batch_children(struct specializer *s)
{
    struct search_batch *r = &s->batch;
    batch_header_poll(s);
    if (!r->slot_search)
        return;
    bool working = atomic_load(&s->mode) == SPECIALIZER_RUN && !atomic_load(&s->stop) &&
                   (!s->config->specializer_idle_only || engine_load(s->engine) == 0);
    prober_hold(s->env.prober, !working);
    for (int i = 0; i < r->n; i++)
        pipeline_advance(&r->pipeline, &r->trial[i], working);
    if (working && has_core(s))
        batch_header_start(s);
}

/* ---- the rules of a batch: the bench -------------------------------------------------------- */

static bool load_came(struct specializer *s, struct trial *t, enum stage_result r)
{
    if (r == STAGE_REFUSE) {
        leave_unloaded(s, t);
        return false;
    }
    count_stage(s, STAGE_LOAD, r);
    if (r != STAGE_PASS)
        forget(s, t);
    return r == STAGE_PASS;
}

static bool bench_came(struct specializer *s, struct trial *t, enum stage_result r)
{
    struct candidate *c = t->c;
    if (r == STAGE_STOPPED && atomic_load(&s->mode) == SPECIALIZER_PAUSE)
        return false; /* a paused bench begins anew when the pause is over */
    bool same = atomic_load(&t->slot_search->slot->kernel) == t->bench.against;
    if (r == STAGE_PASS || r == STAGE_REFUSE) {
        snprintf(c->evidence.against, sizeof c->evidence.against, "%s", t->bench.against->id);
        c->evidence.speed = fmax(0, t->bench.base * (1 + c->evidence.bench.mean));
        t->from.by->benched(s, t->slot_search, t->from.id, c);
        opening_measured(&s->batch.expects, t->slot_search->index, c->evidence.speed);
    }
    if (r == STAGE_REFUSE) {
        refuse(s, t);
        return false;
    }
    if (r != STAGE_PASS || !same) {
        count_stage(s, STAGE_BENCH, STAGE_RETRY);
        forget(s, t);
        return false;
    }
    if (!move(s, t))
        return false;
    count_stage(s, STAGE_BENCH, STAGE_PASS);
    s->batch.decided = true;
    t->from.by->learn(s, t->slot_search, t->from.id, c, c->evidence.speed);
    return true;
}

static bool came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    return t->at == STAGE_BENCH  ? bench_came(p->ctx, t, r)
           : t->at == STAGE_LOAD ? load_came(p->ctx, t, r)
                                 : child_came(p->ctx, t, r);
}

static const struct pipeline_rules rules = {room, enter, began, came};

/* The candidate that was promoted before, if there is one, returns to the batch. */
static void promote(struct slot_search *p, struct trial *t)
{
    struct trial before = p->promoted;
    p->promoted = *t;
    p->promoted_ns = clock_ns();
    p->not_before_ns = 0;
    *t = before;
}

/* Whether c goes to live steps without the rest of its batch: nobody else does yet, or one that has
 * not begun with them and was slower against the same kernel. */
static bool leads(const struct slot_search *p, const struct candidate *c)
{
    const struct candidate *f = p->promoted.c;
    return c->evidence.bench.low >= CLEAR_GAIN &&
           (!f || (p->promoted.at == STAGE_SHADOW && f->retries == 0 &&
                   strcmp(f->evidence.against, c->evidence.against) == 0 &&
                   f->evidence.bench.low < c->evidence.bench.low));
}

/* Who is benched next. In an opening the shortest bench goes first: that of the head takes several
 * slices, between which steps go by, and the others, and live steps with them, would wait. */
static struct trial *next_ready(struct specializer *s)
{
    struct search_batch *r = &s->batch;
    struct trial *next = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < r->n; i++) {
        struct trial *t = &r->trial[i];
        if (pipeline_ready(&r->pipeline, t) &&
            (!next ||
             (r->opening && t->slot_search->locked.run_s < next->slot_search->locked.run_s)))
            next = t;
    }
    pthread_mutex_unlock(&s->lock);
    return next;
}

bool search_batch_has_ready(struct specializer *s)
{
    return next_ready(s) != NULL;
}

bool search_batch_bench(struct specializer *s)
{
    struct search_batch *r = &s->batch;
    struct trial *t = next_ready(s);
    if (!t)
        return false;
    pipeline_block(&r->pipeline, t);
    if (t->c && pipeline_over(&r->pipeline, t) &&
        (r->opening ? !t->slot_search->promoted.c : leads(t->slot_search, t->c)))
        promote(t->slot_search, t);
    return true;
}

bool search_batch_over(const struct specializer *s)
{
    int over = 0;
    for (int i = 0; i < s->batch.n; i++)
        over += pipeline_over(&s->batch.pipeline, &s->batch.trial[i]);
    return !s->batch.slot_search || over == s->batch.n;
}

/* ---- the end of a batch --------------------------------------------------------------------- */

/* True if the gain of the candidate was measured against the kernel that is in the slot now. */
static bool comparable(const struct slot_search *p, const struct candidate *c)
{
    return strcmp(c->evidence.against, atomic_load(&p->slot->kernel)->id) == 0;
}

void search_batch_close(struct specializer *s)
{
    struct slot_search *p = s->batch.slot_search;
    struct trial *best = NULL;
    double correlation = cost_correlation(&s->cost, -1);
    pthread_mutex_lock(&s->lock);
    s->locked.correlation = isnan(correlation) ? -2 : correlation;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->batch.n; i++) {
        struct trial *t = &s->batch.trial[i];
        if (t->c && comparable(p, t->c) &&
            (!best || t->c->evidence.bench.low > best->c->evidence.bench.low))
            best = t;
    }
    if (best && !s->batch.opening && !p->promoted.c)
        promote(p, best);
    for (int i = 0; i < s->batch.n; i++) {
        struct candidate *c = s->batch.trial[i].c;
        if (c) { /* stays `benched` in the store: a runner-up, not a refusal */
            store_trace(s->store, c->slot->name, c->key, "runner_up", NULL, "another was faster");
            candidate_drop(s, c);
        }
    }
    if (p && !s->batch.opening && !s->batch.decided)
        search_batch_later(p);
    s->batch = (struct search_batch){0};
}

void search_batch_abandon(struct specializer *s)
{
    struct search_batch *r = &s->batch;
    for (int i = 0; r->slot_search && i < r->n; i++) {
        struct trial *t = &r->trial[i];
        pipeline_stop(&r->pipeline, t);
        if (!pipeline_over(&r->pipeline, t))
            forget(s, t);
        else
            candidate_drop(s, t->c);
    }
    s->batch = (struct search_batch){0};
}

void search_batch_forget(struct specializer *s)
{
    search_batch_abandon(s);
    for (int i = 0; i < s->slot_searches; i++)
        if (s->slot_search[i].promoted.c)
            promotion_forget(s, &s->slot_search[i]);
}
