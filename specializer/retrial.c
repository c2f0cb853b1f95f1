/* SPDX-License-Identifier: Apache-2.0 */
/* retrial.c - a kernel that made whole steps slower is tried again beside other kernels.
 *
 * The bench measures a kernel among its own kind, the canary in a step, where kernels meet: on a
 * GPU one begins while the one before it drains, on a CPU one finds in a cache what another left
 * there. So "whole steps are slower with it" is true of the kernels that served around it: those of
 * other regions (or format classes) and the same M bucket, attention in any context. They are its
 * co-resident kernels.
 * A candidate whose bench was clear, and against which the canary found nothing but the time, is
 * therefore not refused but deferred, and tried again once its co-resident kernels are a set beside
 * which it has not lost. A retrial begins before the bench: admission.md has no proof that outlives
 * a verdict, so all of them are made again; only the object may be there already. Beside which
 * kernels it lost is in the candidate's row, so a restart changes nothing.
 *
 * Retrials end. A kernel has RETRIALS_MOST trials and never two beside the same set, so swaps that
 * go to and fro bring nothing back; a slot has RETRIALS_A_SET retrials beside one set, whichever
 * candidates wait; and a retrial has to be worth more than new candidates are: what the bench
 * promised for the slot's share, halved with every trial lost. So it comes when the search around
 * it has slowed down, and the kernels beside it are those that will stay.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/retrial.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"

enum { RETRIALS_A_SET = 2, NAMED_MOST = 3 };

/* ---- co-resident kernels -------------------------------------------------------------------- */

static bool shares_steps(const struct slot *a, const struct slot *b)
{
    return a->m_index == b->m_index && !slot_kin(a, b);
}

static struct coresidents coresidents_of(const struct specializer *s, const struct slot_search *p)
{
    struct coresidents set = {0};
    for (int i = 0; i < s->slot_searches; i++)
        if (shares_steps(s->slot_search[i].slot, p->slot))
            coresidents_add(&set, s->slot_search[i].slot);
    return set;
}

uint64_t retrial_coresident(const struct specializer *s, const struct slot_search *p)
{
    struct coresidents set = coresidents_of(s, p);
    return coresidents_hash(&set);
}

static bool lost_among(const struct losses *h, uint64_t set)
{
    for (int i = 0; i < h->n; i++)
        if (coresidents_hash(&h->among[i]) == set)
            return true;
    return false;
}

bool retrial_allowed(const struct specializer *s, const struct slot_search *p,
                     const struct losses *h)
{
    return h->n == 0 || (h->n < RETRIALS_MOST && !lost_among(h, retrial_coresident(s, p)));
}

/* The slots whose kernels are not those beside which it lost last, in words. */
static void changed_since(const struct specializer *s, const struct slot_search *p,
                          const struct losses *h, char *out, size_t n)
{
    size_t at = 0;
    int changed = 0;
    out[0] = 0;
    for (int i = 0; i < s->slot_searches && h->n > 0; i++) {
        const struct slot *slot = s->slot_search[i].slot;
        if (!shares_steps(slot, p->slot) || coresidents_has(&h->among[h->n - 1], slot))
            continue;
        if (++changed <= NAMED_MOST && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", slot->name);
    }
    if (changed > NAMED_MOST && at < n)
        snprintf(out + at, n - at, " and %d more", changed - NAMED_MOST);
}

/* ---- deferring ----------------------------------------------------------------------------- */

bool retrial_defer(struct specializer *s, struct slot_search *p, struct candidate *c)
{
    struct losses *h = &c->evidence.lost;
    bool clear = c->evidence.bench.low >= CLEAR_GAIN;
    if (c->body[0] || c->steps == STEPS_UNSEEN || (c->steps == STEPS_SLOWER && !clear))
        return false;
    struct coresidents set = coresidents_of(s, p);
    /* Notes the co-resident set of now, beside which the trial goes on: it may have begun beside
     * another. */
    if (h->n < RETRIALS_MOST && !lost_among(h, coresidents_hash(&set)))
        h->among[h->n++] = set;
    h->low = c->evidence.bench.low;
    h->speed = c->evidence.speed;
    p->retrial.some = p->retrial.dirty = true;
    return c->steps == STEPS_UNDECIDED || h->n < RETRIALS_MOST;
}

/* ---- which comes next ----------------------------------------------------------------------- */

/* Rows that may be tried again: deferred ones, and retrials that were not finished. */
enum {
    WAITING = 1u << LIFE_DEFERRED | 1u << LIFE_PROPOSED | 1u << LIFE_BUILT | 1u << LIFE_PROBED |
              1u << LIFE_BENCHED | 1u << LIFE_SHADOWED | 1u << LIFE_CANARY
};

struct waiting {
    struct specializer *s;
    struct slot_search *p;
    double speed; /* first the gain to beat, then the gain of the best row */
};

static void waiting_row_locked(void *ctx, const struct record *r)
{
    struct waiting *d = ctx;
    const struct losses *h = &r->evidence.lost;
    const struct template *t = template_find(r->template);
    char source[17] = "";
    if (t)
        template_source_hash(t, source);
    if (h->n == 0 || h->speed <= d->speed || strcmp(source, r->source) != 0 || record_deadly(r) ||
        is_disabled_locked(d->s, r->key, r->template) || !retrial_allowed(d->s, d->p, h))
        return;
    d->speed = h->speed;
    snprintf(d->p->retrial.key, sizeof d->p->retrial.key, "%s", r->key);
    d->p->retrial.promise = h->low / (1 + h->low) * exp2(-h->n);
}

/* Counts the retrials of the slot beside the co-resident set of now, and one more if `more`. */
static int held(struct slot_search *p, bool more)
{
    struct coresident_set *c = p->retrial.held_in;
    for (int i = 0; i < SETS_REMEMBERED; i++)
        if (c[i].held > 0 && c[i].hash == p->retrial.set)
            return c[i].held += more;
    if (more) {
        c[p->retrial.next] = (struct coresident_set){p->retrial.set, 1};
        p->retrial.next = (p->retrial.next + 1) % SETS_REMEMBERED;
    }
    return more;
}

/* Looks up which candidate is tried again next, if that may be another than last time. */
static void find_next(struct specializer *s, struct slot_search *p)
{
    uint64_t set = retrial_coresident(s, p);
    if (set == p->retrial.set && !p->retrial.dirty)
        return;
    p->retrial.set = set;
    p->retrial.dirty = false;
    p->retrial.key[0] = 0;
    struct record_filter f = {.env = s->keys.env, .slot = p->slot->name, .states = WAITING};
    pthread_mutex_lock(&s->lock);
    struct waiting d = {s, p, (1 + p->locked.gain_eager) * (1 + s->config->specializer_min_gain)};
    store_each(s->store, &f, waiting_row_locked, &d, NULL);
    pthread_mutex_unlock(&s->lock);
}

bool retrial_due(struct specializer *s, struct slot_search *p)
{
    pthread_mutex_lock(&s->lock);
    bool open = p->retrial.some && !p->left_out && !p->promoted.c && !p->locked.pinned[0];
    pthread_mutex_unlock(&s->lock);
    if (!open || !strategy_proposes(s->strategy) || clock_ns() < p->not_before_ns)
        return false;
    find_next(s, p);
    return p->retrial.key[0] && held(p, false) < RETRIALS_A_SET;
}

struct slot_search *retrial_choose(struct specializer *s, double than)
{
    struct slot_search *best = NULL;
    double most = fmax(than, OBSERVE_LEAST);
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (!p->retrial.some || !retrial_due(s, p))
            continue;
        pthread_mutex_lock(&s->lock);
        double worth = p->locked.share * p->retrial.promise;
        pthread_mutex_unlock(&s->lock);
        if (worth >= most) {
            most = worth;
            best = p;
        }
    }
    return best;
}

static void remember_row(void *ctx, const struct record *r)
{
    struct slot_search *p = r->evidence.lost.n > 0 ? slot_search_find(ctx, r->slot) : NULL;
    if (p)
        p->retrial.some = p->retrial.dirty = true;
}

void retrials_recall(struct specializer *s)
{
    struct record_filter f = {.env = s->keys.env, .states = WAITING};
    store_each(s->store, &f, remember_row, s, NULL);
}

/* ---- starting it --------------------------------------------------------------------------- */

/* The candidate of a row, or NULL: its template has another text or other points by now. */
static struct candidate *candidate_of(struct specializer *s, struct slot_search *p,
                                      const struct record *r, int32_t *id)
{
    const struct template *t = template_find(r->template);
    struct point point;
    if (!t || point_parse(t, r->knobs, &point, NULL) != 0 ||
        (*id = space_find(p->space, t, &point)) < 0)
        return NULL;
    struct candidate *c = candidate_new(&s->keys, t, &point, space_facts(p->space), p->slot);
    if (strcmp(c->key, r->key) == 0)
        return c;
    candidate_free(c);
    return NULL;
}

static enum next retrials_next(struct specializer *s, struct slot_search *p)
{
    struct record r;
    int32_t id = -1;
    char changed[160];
    bool found = store_get(s->store, p->retrial.key, &r, NULL) > 0;
    p->retrial.key[0] = 0;
    p->retrial.dirty = true;
    held(p, true);
    if (!found)
        return NEXT_LATER;
    free(r.log);
    changed_since(s, p, &r.evidence.lost, changed, sizeof changed);
    struct candidate *c = candidate_of(s, p, &r, &id);
    if (!c || search_batch_admit(s, c, NULL) <= 0) {
        candidate_free(c);
        return NEXT_LATER;
    }
    store_trace(s->store, p->slot->name, c->key, "retried", NULL,
                "%s changed since; trial %d of at most %d", changed, r.evidence.lost.n + 1,
                (int)RETRIALS_MOST);
    log_info("specializer", "%s: %s tried again: %s changed since", p->slot->name, c->name,
             changed);
    search_batch_add(s, p, c, (struct proposal){&proposer_retrials, id});
    return NEXT_BATCH;
}

/* A retrial is not counted as a new candidate. */
static void retrials_benched(struct specializer *s, struct slot_search *p, int32_t id,
                             const struct candidate *c)
{
    (void)id;
    points_cost(s, p, c);
}

const struct proposer proposer_retrials = {"retrials", retrials_next, retrials_benched,
                                           points_learn, points_forget};
