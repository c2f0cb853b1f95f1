/* SPDX-License-Identifier: Apache-2.0 */
/* points.c - points of templates as candidates: the strategy proposes them, the search over the
 * slot's space remembers what came of them. */
#include <stdio.h>

#include "specializer/consult.h"
#include "specializer/fleet/fleet_offer.h"
#include "specializer/specializer_private.h"

/* Makes the candidate of a proposed point and looks it up in the store. NULL if it must not be
 * tried (*may: 0), or not now. */
static struct candidate *candidate_for(struct specializer *s, struct slot_search *p, int32_t id,
                                       int *may)
{
    struct point point;
    space_point(p->space, id, &point);
    const struct template *t = space_template(p->space, id);
    struct candidate *c = candidate_new(&s->keys, t, &point, space_facts(p->space), p->slot);
    c->predicted_s = space_predicted(p->space, id);
    c->risk = advice_risk(&p->advice, id);
    c->known = slot_search_known(p, id);
    char why[160];
    snprintf(why, sizeof why, "known: it won on %s", c->known ? c->known : "");
    *may = search_batch_admit(s, c, c->known ? why : p->advice.label);
    if (*may > 0 && c->known)
        atomic_fetch_add(&s->counts.known[KNOWN_TRIED], 1);
    if (*may > 0)
        return c;
    candidate_free(c);
    return NULL;
}

/* Up to `want` proposals of the slot's search join the batch; how many there were. *may is below 0
 * once the store takes nobody. */
static int propose(struct specializer *s, struct slot_search *p, int want, int *may)
{
    int32_t id[BATCH];
    int n = s->strategy->propose(p->strategy, &p->search, id, want);
    advice_defer(&p->advice, id, n);
    search_pending(&p->search, id, n);
    for (int i = 0; i < n; i++) {
        struct candidate *c = *may < 0 ? NULL : candidate_for(s, p, id[i], may);
        if (c)
            search_batch_add(s, p, c, (struct proposal){&proposer_points, id[i]});
        else if (*may < 0) /* the store takes nobody now */
            search_forget(&p->search, id[i]);
        else
            search_learn(&p->search, id[i], 0);
    }
    return n;
}

_Static_assert((int)OPENING_SLOTS >= (int)BATCH, "each slot of an opening promises something");

/* What the newest candidate of the opening may save of its slot's time. */
static void expect(struct specializer *s, struct slot_search *p)
{
    const struct trial *t = &s->batch.trial[s->batch.n - 1];
    pthread_mutex_lock(&s->lock);
    double share = p->locked.share, roofline = p->locked.roofline_s;
    bool reads = p->locked.bytes >= 0.99 * roofline * s->env.machine->read_bandwidth;
    pthread_mutex_unlock(&s->lock);
    opening_promised(&s->batch.expects, p->index, share,
                     opening_promise(slot_search_known_speed(p, t->from.id), reads));
}

int points_open(struct specializer *s, struct slot_search *const *slot_search, int n)
{
    int may = 1;
    for (int i = 0; i < n && i < BATCH && may >= 0; i++) {
        int before = s->batch.n;
        consult(s, slot_search[i]);
        if (propose(s, slot_search[i], 1, &may) > 0)
            store_trace(s->store, slot_search[i]->slot->name, NULL, "batch", NULL,
                        "1 candidate of an opening; share %.1f %%",
                        slot_search[i]->locked.share * 100);
        if (s->batch.n > before)
            expect(s, slot_search[i]);
    }
    s->batch.opening = s->batch.n > 0;
    return s->batch.n;
}

static enum next points_next(struct specializer *s, struct slot_search *p)
{
    int may = 1;
    if (!strategy_proposes(s->strategy) || !slot_search_open(s, p))
        return NEXT_NEVER;
    bool adopts = p->fleet.adopt; /* a batch of one point, which needs no lease of the slot */
    consult(s, p);
    slot_search_firsts(s, p);
    /* The first batch is the one point that is best known to be good, if there is one: every slot
     * gets a decent kernel before any slot gets the best one. */
    bool known = p->search.tried == 0 && p->search.firsts > 0;
    int want = known || adopts ? 1 : fleet_count(s->fleet, p->slot->name) > 0 ? FLEET_BATCH : BATCH;
    int n = propose(s, p, want, &may);
    if (n == 0 && fleet_loop_undefer(p)) /* points that other servers measured, which come last */
        n = propose(s, p, want, &may);
    s->batch.first = known && s->batch.n > 0 && !target_of(s->env.machine->kind)->opens_together;
    if (s->batch.n == 0 && may < 0)
        search_batch_later(p);
    if (n == 0)
        return NEXT_NEVER;
    store_trace(s->store, p->slot->name, NULL, "batch", NULL,
                "%d candidates; share %.1f %%, %.0f %% of the roofline, %d tried, dry %d",
                s->batch.n, p->locked.share * 100,
                p->locked.run_s > 0 ? 100 * p->locked.roofline_s / p->locked.run_s : 0.0,
                p->search.tried, p->dry);
    return NEXT_BATCH;
}

void points_cost(struct specializer *s, struct slot_search *p, const struct candidate *c)
{
    if (c->evidence.own_s > 0)
        cost_learn(&s->cost, c->template, &c->point, space_facts(p->space), c->evidence.own_s);
}

static void points_benched(struct specializer *s, struct slot_search *p, int32_t id,
                           const struct candidate *c)
{
    (void)id;
    points_cost(s, p, c);
    p->measured++;
    p->dry++;
}

void points_learn(struct specializer *s, struct slot_search *p, int32_t id,
                  const struct candidate *c, double speed)
{
    (void)s;
    (void)c;
    search_learn(&p->search, id, speed);
}

void points_forget(struct specializer *s, struct slot_search *p, int32_t id)
{
    (void)s;
    search_forget(&p->search, id);
}

const struct proposer proposer_points = {"points", points_next, points_benched, points_learn,
                                         points_forget};
