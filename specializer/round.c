/* SPDX-License-Identifier: Apache-2.0 */
/* round.c - one batch of candidates from proposal to bench.
 *
 *   propose -> build (child, several) -> probe (child, one) -> load -> bench
 *   the fastest that passed is promoted: promotion.c
 *
 * Children are started and polled from round_children(), which the blocking stages call while they
 * wait: the compiler works on the next candidate while this one is measured.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/admission/prober.h"
#include "specializer/retrial.h"
#include "specializer/specializer_private.h"
#include "specializer/stages.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/why.h"

#define UNDECIDED_NS INT64_C(5000000000)

/* ---- proposing ----------------------------------------------------------------------------- */

void round_learn(struct specializer *s, struct place *p, int32_t id, const struct candidate *c,
                 double speed)
{
    if (id < 0 && c->evidence.impossible)
        speed = 0; /* a broken measurement must not lead the tree */
    if (id >= 0)
        search_learn(&p->search, id, speed);
    else if (c == p->promoted)
        agent_revise(s->agent, p->slot->name, -1 - id, speed, c->reason);
    else
        agent_learn(s->agent, -1 - id, speed, c->reason, candidate_words(c));
}

static void forget(struct specializer *s, struct place *p, int32_t id)
{
    if (id >= 0)
        search_forget(&p->search, id);
    else
        agent_forget(s->agent, -1 - id);
}

/* Back to the beginning, in the store and here: what an operator could have rolled back to is this
 * very kernel, and nothing may have it active while it is on trial, nor be its own predecessor. */
static bool begin_anew(struct specializer *s, struct candidate *c, const char *why, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    struct place *p = place_find(s, c->slot->name);
    bool ok = life_move(s->store, c, LIFE_PROPOSED, why, NULL, err) == 0;
    if (ok && p->previous && strcmp(p->previous->key, c->key) == 0) {
        candidate_drop(s, p->previous);
        p->previous = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* What the store knows of a candidate, and a new beginning if it may have one: as round_admit(). */
static int admit_known(struct specializer *s, struct candidate *c, const struct record *row,
                       struct err *err)
{
    candidate_recall(c, row);
    const struct place *p = place_find(s, c->slot->name);
    const bool again = c->evidence.lost.n > 0, fresh = c->state == LIFE_PROPOSED;
    bool may = row->deaths < DEATHS_MOST && (!again || retrial_allowed(s, p, &c->evidence.lost)) &&
               (fresh || life_allowed(c->state, LIFE_PROPOSED));
    bool failed =
        may && !fresh && !begin_anew(s, c, again ? "tried again" : "looked at again", err);
    c->evidence = (struct evidence){.lost = c->evidence.lost};
    c->reason[0] = 0;
    return failed ? -1 : may;
}

int round_admit(struct specializer *s, struct candidate *c, const char *why)
{
    struct record *row = xcalloc(1, sizeof *row);
    struct err err = {""};
    int may = 0, known = store_get(s->store, c->key, row, &err);
    if (known > 0)
        free(row->log);
    pthread_mutex_lock(&s->lock);
    bool disabled = is_disabled(s, c->key, c->template->id); /* and stays what it is in the store */
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

/* The candidate for a proposed point, with the store's word on it; NULL if it must not be tried
 * (*may: 0), or not now. */
static struct candidate *candidate_for(struct specializer *s, struct place *p, int32_t id, int *may)
{
    struct point point;
    space_point(p->space, id, &point);
    const struct template *t = space_template(p->space, id);
    struct candidate *c = candidate_new(&s->keys, t, &point, space_facts(p->space), p->slot);
    c->predicted_s = space_predicted(p->space, id);
    c->risk = advice_risk(&p->advice, id);
    *may = round_admit(s, c, p->advice.label);
    if (*may > 0)
        return c;
    candidate_free(c);
    return NULL;
}

/* Nothing was learnt that would come out otherwise at once: the disk is full, or a probe cannot
 * start. Others go first. */
static void come_back_later(struct place *p)
{
    p->not_before_ns = clock_ns() + UNDECIDED_NS;
}

bool round_start(struct specializer *s, struct place *p)
{
    struct round *r = &s->round;
    int32_t id[BATCH];
    int may = 1;
    if (!place_open(s, p))
        return false;
    consult(s, p);
    place_firsts(s, p);
    /* The first batch is the one point that is best known to be good, if there is one: every slot
     * gets a decent kernel before any slot gets the best one. */
    bool known = p->search.tried == 0 && p->search.firsts > 0;
    int want = known ? 1 : BATCH;
    int n = s->strategy->propose(p->strategy, &p->search, id, want);
    advice_defer(&p->advice, id, n);
    search_pending(&p->search, id, n);
    *r = (struct round){.place = p};
    for (int i = 0; i < n; i++) {
        struct candidate *c = may < 0 ? NULL : candidate_for(s, p, id[i], &may);
        if (c)
            r->item[r->n++] = (struct item){.c = c, .id = id[i], .stage = ITEM_BUILD};
        else if (may < 0) /* the store takes nobody now */
            search_forget(&p->search, id[i]);
        else
            search_learn(&p->search, id[i], 0);
    }
    pthread_mutex_lock(&s->lock);
    p->candidates += r->n;
    pthread_mutex_unlock(&s->lock);
    if (r->n == 0)
        r->place = NULL;
    if (r->n == 0 && may < 0)
        come_back_later(p);
    return n > 0;
}

/* ---- children ------------------------------------------------------------------------------ */

/* The candidate is at fault: it leaves the round and is not tried again under this key. */
static void item_refuse(struct specializer *s, struct item *it, enum stage stage)
{
    s->round.decided = true;
    round_learn(s, s->round.place, it->id, it->c, it->c->evidence.speed);
    candidate_refuse(s, it->c, stage, LIFE_REFUSED);
    it->c = NULL;
    it->stage = ITEM_DONE;
}

/* The probe could load it, so it is this process that has no room (specializer.pack_mib). It is not
 * tried again here; another start, perhaps with more, knows nothing against it. */
static void item_unloadable(struct specializer *s, struct item *it)
{
    struct place *p = s->round.place;
    s->round.decided = true;
    count_stage(s, STAGE_LOAD, STAGE_REFUSE);
    store_trace(s->store, p->slot->name, it->c->key, "not_loaded", NULL, "%s", it->c->reason);
    round_learn(s, p, it->id, it->c, 0);
    pthread_mutex_lock(&s->lock);
    p->refusals++;
    why_note(p, LIFE_REFUSED, it->c);
    pthread_mutex_unlock(&s->lock);
    candidate_drop(s, it->c);
    it->c = NULL;
    it->stage = ITEM_DONE;
}

/* Nothing was decided: the point may be proposed again. */
static void item_forget(struct specializer *s, struct item *it)
{
    pthread_mutex_lock(&s->lock);
    why_undecided(s->round.place, it->c);
    pthread_mutex_unlock(&s->lock);
    forget(s, s->round.place, it->id);
    candidate_drop(s, it->c);
    it->c = NULL;
    it->stage = ITEM_DONE;
}

/* Moves on in the store; without that the candidate goes no further. */
static bool item_move(struct specializer *s, struct item *it, enum life to)
{
    struct err err;
    if (life_move(s->store, it->c, to, NULL, NULL, &err) == 0) {
        atomic_store(&s->unwritten, 0);
        return true;
    }
    if (log_due(&s->unwritten))
        log_error("specializer", "%s (%llu times)", err.msg,
                  (unsigned long long)atomic_load(&s->unwritten));
    item_forget(s, it);
    return false;
}

bool round_may_build(struct specializer *s)
{
    int64_t now = clock_ns();
    if (s->hour_ns == 0 || now - s->hour_ns > 3600 * INT64_C(1000000000)) {
        s->hour_ns = now;
        s->hour_builds = 0;
    }
    return s->hour_builds < s->config->specializer_builds_per_hour;
}

/* A file under the object's name is its own proof of identity (the name hashes all that went into
 * it), but only the checksum of a build that was seen to finish is proof that it is whole. */
bool have_object(struct specializer *s, struct candidate *c)
{
    char sum[17];
    return store_object_sum(s->store, c->object_key, c->object_sum) &&
           safe_file(c->object, NULL) == 0 && object_checksum(c->object, sum) == 0 &&
           strcmp(sum, c->object_sum) == 0;
}

static void build_next(struct specializer *s, struct item *it)
{
    struct err err;
    if (have_object(s, it->c)) {
        if (item_move(s, it, LIFE_BUILT))
            it->stage = ITEM_PROBE;
        return;
    }
    if ((!s->has_compiler && !it->c->template->library) || !round_may_build(s)) {
        item_forget(s, it);
        return;
    }
    it->build = build_start(&s->env, it->c, &err);
    if (!it->build) {
        if (log_due(&s->unstarted))
            log_warn("specializer", "build of %s: %s (%llu times)", it->c->name, err.msg,
                     (unsigned long long)atomic_load(&s->unstarted));
        item_forget(s, it);
        return;
    }
    atomic_store(&s->unstarted, 0);
    s->hour_builds++;
    it->stage = ITEM_BUILDING;
}

static void poll_build(struct specializer *s, struct item *it)
{
    enum stage_result r = build_poll(it->build);
    if (r == STAGE_RUNNING)
        return;
    build_end(it->build);
    it->build = NULL;
    if (it->c->evidence.build_s > 0)
        histogram_observe(&s->counts.build_seconds, it->c->evidence.build_s);
    if (r == STAGE_REFUSE) {
        item_refuse(s, it, STAGE_BUILD);
        return;
    }
    count_stage(s, STAGE_BUILD, r);
    if (r != STAGE_PASS)
        item_forget(s, it);
    else if (item_move(s, it, LIFE_BUILT))
        it->stage = ITEM_PROBE;
}

static void probe_next(struct specializer *s, struct item *it)
{
    struct err err;
    struct place *p = s->round.place;
    it->probe = probe_start(&s->env, it->c, PROBE_FULL, (const struct capture *const *)p->input,
                            p->inputs, &err);
    if (it->probe) {
        it->stage = ITEM_PROBING;
        return;
    }
    if (log_due(&s->unstarted))
        log_warn("specializer", "probe of %s: %s (%llu times)", it->c->name, err.msg,
                 (unsigned long long)atomic_load(&s->unstarted));
    item_forget(s, it);
}

static void poll_probe(struct specializer *s, struct item *it)
{
    enum stage_result r = probe_poll(it->probe);
    if (r == STAGE_RUNNING)
        return;
    probe_end(it->probe);
    it->probe = NULL;
    if (r == STAGE_PASS && s->numerics == NUMERICS_BIT_EQUAL && !it->c->evidence.bit_equal) {
        snprintf(it->c->reason, sizeof it->c->reason,
                 "probe: outputs are not those of the eager kernel bit for bit");
        r = STAGE_REFUSE;
    }
    if (r == STAGE_REFUSE) {
        item_refuse(s, it, STAGE_PROBE);
        return;
    }
    count_stage(s, STAGE_PROBE, r);
    if (r != STAGE_PASS)
        item_forget(s, it);
    else if (item_move(s, it, LIFE_PROBED))
        it->stage = ITEM_BENCH;
}

static int in_stage(const struct round *r, enum item_stage stage)
{
    int n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->item[i].stage == stage;
    return n;
}

void round_children(struct specializer *s)
{
    struct round *r = &s->round;
    if (!r->place)
        return;
    bool working = atomic_load(&s->mode) == SPECIALIZER_RUN && !atomic_load(&s->stop) &&
                   (!s->config->specializer_idle_only || engine_load(s->engine) == 0);
    prober_hold(s->env.prober, !working);
    for (int i = 0; i < r->n; i++) {
        struct item *it = &r->item[i];
        if (it->stage == ITEM_BUILDING)
            poll_build(s, it);
        else if (it->stage == ITEM_PROBING)
            poll_probe(s, it);
        if (working && it->stage == ITEM_BUILD &&
            in_stage(r, ITEM_BUILDING) < s->config->specializer_build_jobs)
            build_next(s, it);
        if (working && it->stage == ITEM_PROBE && in_stage(r, ITEM_PROBING) == 0)
            probe_next(s, it);
    }
}

/* ---- bench --------------------------------------------------------------------------------- */

/* The one before it, if there is one, is an item of the round again. */
static void promote(struct place *p, struct item *it)
{
    struct candidate *before = p->promoted;
    int32_t id = p->promoted_id;
    p->promoted = it->c;
    p->promoted_id = it->id;
    p->not_before_ns = 0;
    it->c = before;
    it->id = before ? id : it->id;
}

/* Whether c goes to live steps without the rest of its batch: nobody else does yet, or one that has
 * not begun with them and was slower against the same kernel. */
static bool leads(const struct place *p, const struct candidate *c)
{
    const struct candidate *f = p->promoted;
    return c->evidence.bench.low >= CLEAR_GAIN &&
           (!f || (f->state == LIFE_BENCHED && f->retries == 0 &&
                   strcmp(f->evidence.against, c->evidence.against) == 0 &&
                   f->evidence.bench.low < c->evidence.bench.low));
}

static void bench_item(struct specializer *s, struct item *it)
{
    struct place *p = s->round.place;
    struct candidate *c = it->c;
    bool loaded = c->kernel != NULL;
    enum stage_result r = swap_load(s, c);
    if (r == STAGE_REFUSE) {
        item_unloadable(s, it);
        return;
    }
    if (!loaded)
        count_stage(s, STAGE_LOAD, r);
    if (r != STAGE_PASS) {
        item_forget(s, it);
        return;
    }
    pthread_mutex_lock(&s->lock);
    const struct kernel *incumbent = p->active ? p->active->kernel : p->slot->eager;
    double base = 1 + p->gain_eager;
    pthread_mutex_unlock(&s->lock);
    r = bench_run(&s->env, c, incumbent, p->input[0], false);
    if (r == STAGE_STOPPED && atomic_load(&s->mode) == SPECIALIZER_PAUSE)
        return; /* it waits, and is benched from the start when the pause is over */
    bool same = atomic_load(&p->slot->kernel) == incumbent;
    if (r == STAGE_PASS || r == STAGE_REFUSE) {
        snprintf(c->evidence.against, sizeof c->evidence.against, "%s", incumbent->id);
        c->evidence.speed = fmax(0, base * (1 + c->evidence.bench.mean));
        if (c->evidence.own_s > 0 && it->id >= 0)
            cost_learn(&s->cost, c->template, &c->point, space_facts(p->space), c->evidence.own_s);
        p->measured += it->id >= 0 && !it->again;
        p->dry += it->id >= 0 && !it->again;
    }
    if (r == STAGE_REFUSE)
        item_refuse(s, it, STAGE_BENCH);
    else if (r != STAGE_PASS || !same) {
        count_stage(s, STAGE_BENCH, STAGE_RETRY);
        item_forget(s, it);
    } else if (item_move(s, it, LIFE_BENCHED)) {
        count_stage(s, STAGE_BENCH, STAGE_PASS);
        s->round.decided = true;
        round_learn(s, p, it->id, c, c->evidence.speed);
        it->stage = ITEM_DONE;
        if (leads(p, c))
            promote(p, it);
    }
}

bool round_bench(struct specializer *s)
{
    for (int i = 0; i < s->round.n; i++)
        if (s->round.item[i].stage == ITEM_BENCH) {
            bench_item(s, &s->round.item[i]);
            return true;
        }
    return false;
}

bool round_over(const struct specializer *s)
{
    return !s->round.place || in_stage(&s->round, ITEM_DONE) == s->round.n;
}

/* Its gain was measured against the kernel that is in the slot now. */
static bool comparable(const struct place *p, const struct candidate *c)
{
    return strcmp(c->evidence.against, atomic_load(&p->slot->kernel)->id) == 0;
}

void round_close(struct specializer *s)
{
    struct place *p = s->round.place;
    struct item *best = NULL;
    double correlation = cost_correlation(&s->cost, -1);
    pthread_mutex_lock(&s->lock);
    s->correlation = isnan(correlation) ? -2 : correlation;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->round.n; i++) {
        struct item *it = &s->round.item[i];
        if (it->c && comparable(p, it->c) &&
            (!best || it->c->evidence.bench.low > best->c->evidence.bench.low))
            best = it;
    }
    if (best && !p->promoted)
        promote(p, best);
    for (int i = 0; i < s->round.n; i++) {
        struct candidate *c = s->round.item[i].c;
        if (c) { /* stays `benched` in the store: a runner-up, not a refusal */
            store_trace(s->store, p->slot->name, c->key, "runner_up", NULL, "another was faster");
            candidate_drop(s, c);
        }
    }
    if (p && !s->round.decided)
        come_back_later(p);
    s->round = (struct round){0};
}

void round_abandon(struct specializer *s)
{
    for (int i = 0; s->round.place && i < s->round.n; i++) {
        struct item *it = &s->round.item[i];
        build_end(it->build);
        probe_end(it->probe);
        if (it->c && it->stage != ITEM_DONE)
            item_forget(s, it);
        else
            candidate_drop(s, it->c);
    }
    s->round = (struct round){0};
}

void round_forget(struct specializer *s)
{
    round_abandon(s);
    for (int i = 0; i < s->places; i++)
        if (s->place[i].promoted)
            promotion_forget(s, &s->place[i]);
}
