/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_loop.c - what the loop does with results of other servers.
 *
 * Three things come from other servers, and none of them is believed. A kernel that was faster
 * elsewhere is the next candidate of its slot, whoever searches the slot, alone or with those of
 * other slots (fleet_set.c). A point that was tried elsewhere teaches the cost model what it took
 * there, and is proposed here only when nothing else is left. A kernel that was found wrong
 * elsewhere is looked at again if it serves here: a whole probe on fresh live inputs, and eager
 * beside it on the next live steps, one after the other. It goes on serving meanwhile, because a
 * word from outside must not be able to take a kernel away.
 */
#include "specializer/fleet_loop.h"

#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/admission/probe.h"
#include "specializer/fleet/fleet_offer.h"
#include "specializer/restore.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/watch.h"

#define EVERY_NS (INT64_C(250) * 1000000)
#define AUDITS_FOR_NS (INT64_C(60) * 1000000000)
#define TELL_EVERY_NS (INT64_C(30) * 1000000000)
enum { AUDITS = 8, LEARN_AT_ONCE = 64, TELL_AT_ONCE = 2048 };

/* ---- points of others ------------------------------------------------------------------------ */

struct fleet_reading {
    struct specializer *s;
    struct slot_search *p;
    const char *source_of; /* a template whose text was hashed last */
    char source[17];       /* the hash of that text */
};

static bool same_source(struct fleet_reading *l, const struct fleet_row *r)
{
    if (l->source_of != r->template->id) {
        l->source_of = r->template->id;
        template_source_hash(r->template, l->source);
    }
    return strcmp(l->source, r->source) == 0;
}

static struct behind *behind(const struct slot_search *p, int32_t id)
{
    for (int i = 0; i < p->fleet.behinds; i++)
        if (p->fleet.behind[i].id == id)
            return &p->fleet.behind[i];
    return NULL;
}

static struct behind *put_behind(struct slot_search *p, int32_t id)
{
    struct slot_search_fleet *f = &p->fleet;
    search_pending(&p->search, &id, 1);
    f->behind = xrealloc(f->behind, (size_t)(f->behinds + 1) * sizeof *f->behind);
    f->behind[f->behinds] = (struct behind){.id = id};
    return &f->behind[f->behinds++];
}

/* A point that others measured is proposed last here. Their time for it trains the cost model once,
 * and not if this server has measured the point itself. */
static void learn_row(void *ctx, const struct fleet_row *r)
{
    struct fleet_reading *l = ctx;
    struct slot_search *p = l->p;
    p->fleet.serial = r->serial > p->fleet.serial ? r->serial : p->fleet.serial;
    int32_t id = space_find(p->space, r->template, &r->point);
    if (id < 0 || !same_source(l, r))
        return;
    if (fleet_row_won(r) && r->speed > p->fleet.top) {
        p->fleet.top = r->speed;
        p->fleet.dry = 0;
        p->dry = 0;
    }
    bool first = p->search.trial[id] == TRIAL_NONE;
    struct behind *b = first ? put_behind(p, id) : behind(p, id);
    if (b && !fleet_row_on_trial(r))
        b->trial_ns = 0;
    else if (b && first)
        b->trial_ns = clock_ns();
    if (!b || b->learned || r->own_s <= 0 || r->own_s < p->locked.roofline_s)
        return;
    cost_learn(&l->s->cost, r->template, &r->point, space_facts(p->space), r->own_s);
    b->learned = true;
    p->fleet.measured++; /* whoever searches the slot next does not find it fresh */
    p->fleet.dry++;
}

/* Points of which nothing was heard for long: whoever tried them is gone. */
static void lapse(struct slot_search *p)
{
    struct slot_search_fleet *f = &p->fleet;
    int64_t before = clock_ns() - (int64_t)(FLEET_TRIAL_S * 1e9);
    int kept = 0;
    for (int i = 0; i < f->behinds; i++)
        if (f->behind[i].trial_ns != 0 && f->behind[i].trial_ns < before)
            search_forget(&p->search, f->behind[i].id);
        else
            f->behind[kept++] = f->behind[i];
    f->behinds = kept;
}

bool fleet_loop_undefer(struct slot_search *p)
{
    bool some = false;
    for (int i = 0; i < p->fleet.behinds; i++) {
        some |= p->search.trial[p->fleet.behind[i].id] == TRIAL_PENDING;
        search_forget(&p->search, p->fleet.behind[i].id);
    }
    p->fleet.behinds = 0;
    return some;
}

void fleet_loop_forget(struct slot_search *p)
{
    free(p->fleet.behind);
    p->fleet.behind = NULL;
    p->fleet.behinds = 0;
    free(p->fleet.again);
    p->fleet.again = NULL;
    p->fleet.agains = 0;
    p->fleet.measured = p->fleet.dry = 0;
    p->fleet.top = 0;
    p->fleet.serial = 0;
    p->fleet.adopt = false;
    p->fleet.news = 0;
}

struct words {
    struct fleet_reading l;
    struct fleet_word *word;
    int n;
};

static void word_row(void *ctx, const struct fleet_row *r)
{
    struct words *w = ctx;
    int32_t id = space_find(w->l.p->space, r->template, &r->point);
    if (id < 0 || r->speed <= 0 || !same_source(&w->l, r))
        return;
    w->word = xrealloc(w->word, (size_t)(w->n + 1) * sizeof *w->word);
    w->word[w->n++] = (struct fleet_word){id, r->speed, fleet_row_offered(r)};
}

static struct again *again(struct slot_search *p, int32_t id)
{
    for (int i = 0; i < p->fleet.agains; i++)
        if (p->fleet.again[i].id == id)
            return &p->fleet.again[i];
    return NULL;
}

static int trials(void *ctx, int32_t id, double *speed)
{
    struct slot_search *p = ctx;
    const struct again *a = again(p, id);
    *speed = (double)p->search.speed[id];
    switch (p->search.trial[id]) {
    case TRIAL_NONE:
        return a ? a->n + 1 : 0;
    case TRIAL_MEASURED:
        return a ? a->n + 1 : 1;
    case TRIAL_PENDING:
        return behind(p, id) ? 0 : -1;
    default:
        return -1;
    }
}

/* Finds the best winner of others and keeps it if proving it here is worth the time. */
static void find_offer(struct specializer *s, struct slot_search *p)
{
    struct words w = {.l = {.s = s, .p = p}};
    double gain;
    pthread_mutex_lock(&s->lock);
    const struct candidate *c = p->locked.active;
    double seen = 1 + p->locked.gain_eager;
    int32_t serving = c ? space_find(p->space, c->template, &c->point) : -1;
    pthread_mutex_unlock(&s->lock);
    fleet_each(s->fleet, p->slot->name, 0, 0, word_row, &w);
    double any = s->config->specializer_min_gain < 0 ? 1 + s->config->specializer_min_gain : 0;
    const struct fleet_offer_ask ask = {w.word, w.n, serving, seen, trials, p, any};
    p->fleet.offer = fleet_offer_best(&ask, &gain);
    p->fleet.gain = gain;
    p->fleet.speed = gain * seen;
    free(w.word);
}

static void look_for_offer(struct specializer *s, struct slot_search *p)
{
    struct fleet_reading l = {.s = s, .p = p};
    pthread_mutex_lock(&s->lock);
    bool may =
        !p->left_out && !p->locked.pinned[0] && !p->promoted.c && p->locked.worth >= OBSERVE_LEAST;
    pthread_mutex_unlock(&s->lock);
    uint64_t news = fleet_news(s->fleet);
    bool adopted = p->fleet.adopt;
    if (!may || search_batch_has(s, p)) {
        p->fleet.adopt = false;
        p->fleet.news = 0;
        return;
    }
    if (p->fleet.news == news && p->space && p->fleet.tried == p->search.tried)
        return;
    if (fleet_count(s->fleet, p->slot->name) == 0 || !slot_search_open(s, p))
        return;
    fleet_each(s->fleet, p->slot->name, p->fleet.serial, LEARN_AT_ONCE, learn_row, &l);
    find_offer(s, p);
    p->fleet.adopt = p->fleet.offer >= 0;
    p->fleet.news = news;
    p->fleet.tried = p->search.tried;
    if (p->fleet.adopt && !adopted) {
        p->fleet.since_ns = clock_ns();
        store_trace(s->store, p->slot->name, NULL, "fleet", NULL,
                    "a kernel of others, by all who measured it %+.1f %% over eager, is "
                    "tried next",
                    (p->fleet.speed - 1) * 100);
        p->exhausted = false;
    }
}

/* Forgets what this server measured of a point, so that it may be proposed again. */
static void try_again(struct slot_search *p, int32_t id)
{
    struct again *a = again(p, id);
    if (!a) {
        p->fleet.again =
            xrealloc(p->fleet.again, (size_t)(p->fleet.agains + 1) * sizeof *p->fleet.again);
        a = &p->fleet.again[p->fleet.agains++];
        *a = (struct again){.id = id};
    }
    a->n++;
    search_again(&p->search, id);
}

int32_t fleet_loop_take(struct slot_search *p)
{
    p->fleet.adopt = false;
    p->fleet.news = 0;
    struct behind *b = behind(p, p->fleet.offer);
    if (b) {
        search_forget(&p->search, b->id);
        *b = p->fleet.behind[--p->fleet.behinds];
    } else if (p->search.trial[p->fleet.offer] == TRIAL_MEASURED) {
        try_again(p, p->fleet.offer);
    }
    return p->fleet.offer;
}

/* ---- kernels that others found wrong -------------------------------------------------------- */

static bool serves(struct specializer *s, const struct slot_search *p, const char *key)
{
    pthread_mutex_lock(&s->lock);
    bool yes = p->locked.active && strcmp(p->locked.active->key, key) == 0;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

enum verdict { VERDICT_NONE, VERDICT_RIGHT, VERDICT_WRONG };

/* Records the verdict here, tells it to the others, and ends the check of the slot. */
static void conclude(struct specializer *s, enum verdict verdict, const char *words)
{
    static const char *const event[] = {"recheck_over", "upheld", "confirmed"};
    struct fleet_loop *t = &s->fleet_loop;
    store_trace(s->store, t->slot_search->slot->name, t->suspect.key, event[verdict], t->suspect.by,
                "%s", words);
    if (verdict != VERDICT_NONE)
        fleet_verdict(s->fleet, t->suspect.key, verdict == VERDICT_RIGHT, words);
    pthread_mutex_lock(&s->lock);
    t->slot_search->locked.suspect = 0;
    pthread_mutex_unlock(&s->lock);
    pipeline_stop(&t->pipeline, &t->trial);
    candidate_drop(s, t->trial.c);
    t->trial = (struct trial){0};
    t->checking = false;
}

static enum stage_result enter(struct pipeline *p, struct trial *t)
{
    (void)p;
    t->probe.depth = PROBE_FULL;
    t->probe.input = (const struct capture *const *)t->slot_search->input;
    t->probe.inputs = t->slot_search->inputs;
    return STAGE_RUNNING;
}

static void not_probed(struct specializer *s, const char *why)
{
    const struct fleet_loop *t = &s->fleet_loop;
    log_warn("fleet", "%s: %s is not probed again (%s); live steps decide",
             t->slot_search->slot->name, t->suspect.key, why);
}

static void began(struct pipeline *p, struct trial *t, const struct err *err)
{
    struct specializer *s = p->ctx;
    if (!err)
        return;
    not_probed(s, err->msg);
    candidate_drop(s, t->c);
    t->c = NULL;
}

static bool came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    struct specializer *s = p->ctx;
    (void)t;
    s->fleet_loop.probed = r;
    return r == STAGE_PASS;
}

static const struct pipeline_rules rules = {.enter = enter, .began = began, .came = came};

/* Begins a check of a kernel that serves here: a new probe, and audits beside eager. */
static void check_begin(struct specializer *s, struct slot_search *p)
{
    struct fleet_loop *t = &s->fleet_loop;
    struct record row;
    if (!search_batch_has(s, p))
        slot_search_inputs(s, p);
    t->checking = true;
    t->probed = STAGE_RUNNING;
    t->slot_search = p;
    t->pipeline = (struct pipeline){.rules = &rules, .ctx = s, .env = &s->env, .last = STAGE_PROBE};
    t->trial = (struct trial){.slot_search = p, .at = STAGE_PROBE};
    t->until_ns = clock_ns() + AUDITS_FOR_NS;
    if (store_get(s->store, t->suspect.key, &row, NULL) > 0) {
        free(row.log);
        t->trial.c = restore_candidate(s, p, &row);
    }
    if (!t->trial.c)
        not_probed(s, "its row is gone");
    pipeline_advance(&t->pipeline, &t->trial, true);
    watch_stop(s);
    pthread_mutex_lock(&s->lock);
    p->locked.suspect = AUDITS;
    pthread_mutex_unlock(&s->lock);
}

/* Of retractions that concern nothing here only so many are told: whoever writes to the database
 * may write them without end, and the trace keeps a bounded number of lines. */
static bool may_tell(struct fleet_loop *t)
{
    int64_t now = clock_ns();
    double more = t->told_ns ? (double)(now - t->told_ns) / TELL_EVERY_NS : TELL_AT_ONCE;
    t->may_tell = t->may_tell + more < TELL_AT_ONCE ? t->may_tell + more : TELL_AT_ONCE;
    t->told_ns = now;
    if (t->may_tell >= 1) {
        t->may_tell--;
        return true;
    }
    if (log_due(&t->untold))
        log_warn("fleet",
                 "%llu retractions of kernels that do not serve here are not told of any "
                 "more",
                 (unsigned long long)atomic_load(&t->untold));
    return false;
}

static void tell_suspect(struct specializer *s, const struct slot_search *p, bool here)
{
    const struct fleet_loop *t = &s->fleet_loop;
    store_trace(s->store, p->slot->name, t->suspect.key, "retracted", t->suspect.by,
                "found wrong: %s%s", t->suspect.reason, here ? "; looked at again" : "");
    log_warn("fleet", "%s: kernel %s was found wrong by %s (%s)%s", p->slot->name, t->suspect.key,
             t->suspect.by, t->suspect.reason, here ? ": it is looked at again" : "");
}

static void suspect(struct specializer *s)
{
    struct fleet_loop *t = &s->fleet_loop;
    struct slot_search *p = slot_search_find(s, t->suspect.slot);
    if (!p)
        return;
    bool here = serves(s, p, t->suspect.key);
    if (here || may_tell(t))
        tell_suspect(s, p, here);
    if (here) {
        check_begin(s, p);
        return;
    }
    pthread_mutex_lock(&s->lock);
    if (p->locked.previous && strcmp(p->locked.previous->key, t->suspect.key) == 0) {
        candidate_drop_locked(s, p->locked.previous); /* a rollback must not bring it back unseen */
        p->locked.previous = NULL;
        dispatch_distrust(s->env.dispatch); /* it has served */
    }
    pthread_mutex_unlock(&s->lock);
}

/* Ends a check whose kernel an audit or an operator has taken out meanwhile. */
static void check_gone(struct specializer *s)
{
    struct record row = {.state = LIFE_RETIRED};
    if (store_get(s->store, s->fleet_loop.suspect.key, &row, NULL) > 0)
        free(row.log);
    bool wrong = row.state == LIFE_ROLLED_BACK || row.state == LIFE_REFUSED;
    conclude(s, wrong ? VERDICT_WRONG : VERDICT_NONE,
             wrong ? row.reason : "it is out of service here");
}

static void check_failed(struct specializer *s)
{
    struct fleet_loop *t = &s->fleet_loop;
    char why[sizeof t->trial.c->reason];
    memcpy(why, t->trial.c->reason, sizeof why); /* "probe: m=3: ..." */
    pthread_mutex_lock(&s->lock);
    if (t->slot_search->locked.active &&
        strcmp(t->slot_search->locked.active->key, t->suspect.key) == 0)
        swap_out_locked(s, t->slot_search, LIFE_ROLLED_BACK, ROLLBACK_AUDIT, why, t->suspect.by);
    pthread_mutex_unlock(&s->lock);
    conclude(s, VERDICT_WRONG, why);
}

static void check_poll(struct specializer *s)
{
    struct fleet_loop *t = &s->fleet_loop;
    pipeline_advance(&t->pipeline, &t->trial, false);
    if (!serves(s, t->slot_search, t->suspect.key)) {
        check_gone(s);
        return;
    }
    if (t->trial.child)
        return;
    if (t->probed == STAGE_REFUSE) {
        check_failed(s);
        return;
    }
    const bool passed = t->probed == STAGE_PASS;
    pthread_mutex_lock(&s->lock);
    int left = t->slot_search->locked.suspect;
    pthread_mutex_unlock(&s->lock);
    if (left > 0 && clock_ns() < t->until_ns)
        return;
    char words[120];
    snprintf(words, sizeof words, "%s; %d live steps were as eager has them",
             passed ? "it passed the whole probe again" : "it was not probed", AUDITS - left);
    conclude(s, passed || left < AUDITS ? VERDICT_RIGHT : VERDICT_NONE, words);
}

/* ---- the turn -------------------------------------------------------------------------------- */

void fleet_advance(struct specializer *s)
{
    struct fleet_loop *t = &s->fleet_loop;
    if (!s->fleet)
        return;
    if (t->checking)
        check_poll(s);
    uint64_t news = fleet_news(s->fleet);
    if (news == t->news && clock_ns() < t->due_ns)
        return;
    t->news = news;
    t->due_ns = clock_ns() + EVERY_NS;
    while (!t->checking && fleet_suspect_next(s->fleet, &t->suspect))
        suspect(s);
    fleet_leases_ask(s);
    for (int i = 0; i < s->slot_searches; i++) {
        lapse(&s->slot_search[i]);
        look_for_offer(s, &s->slot_search[i]);
    }
}

void fleet_loop_close(struct specializer *s)
{
    struct fleet *f = s->fleet;
    if (s->fleet_loop.checking) {
        pipeline_stop(&s->fleet_loop.pipeline, &s->fleet_loop.trial);
        candidate_drop(s, s->fleet_loop.trial.c);
    }
    s->fleet_loop = (struct fleet_loop){0};
    s->fleet = NULL;
    fleet_close(f);
}
