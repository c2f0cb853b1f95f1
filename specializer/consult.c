/* SPDX-License-Identifier: Apache-2.0 */
/* consult.c - what the adviser is told about a slot: gathered from the live counters, the search
 * and the store. Results and shapes only; nothing that a request contained. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/adviser_request.h"
#include "specializer/consult.h"
#include "specializer/specializer_private.h"

static int by_share(const void *a, const void *b)
{
    const struct live_shape *x = a, *y = b;
    return (x->share < y->share) - (x->share > y->share);
}

/* How the recent time of the slot's region is spread over buckets, largest first. */
static int gather_live(struct specializer *s, const struct slot_search *p, struct live_shape *out)
{
    struct live_shape all[M_BUCKETS * CONTEXT_BUCKETS];
    double total = 0;
    int n = 0;
    for (int i = 0; i < s->slot_searches; i++) {
        const struct slot *slot = s->slot_search[i].slot;
        double seconds = s->observe.slot[i].seconds;
        if (!slot_kin(slot, p->slot) || seconds <= 0 || n == M_BUCKETS * CONTEXT_BUCKETS)
            continue;
        all[n++] = (struct live_shape){slot->m, slot->context, seconds};
        total += seconds;
    }
    for (int i = 0; i < n; i++)
        all[i].share /= total;
    qsort(all, (size_t)n, sizeof *all, by_share);
    n = n < LIVES ? n : LIVES;
    memcpy(out, all, (size_t)n * sizeof *out);
    return n;
}

struct deads {
    const struct slot_search *p;
    struct consultation *c;
};

static void take_dead(void *ctx, const struct record *r)
{
    struct deads *g = ctx;
    struct advice_request *q = &g->c->request;
    const struct template *t = template_find(r->template);
    struct point point;
    if (q->deads == DEADS || !t || point_parse(t, r->knobs, &point, NULL) != 0)
        return;
    int32_t id = space_find(g->p->space, t, &point);
    if (id < 0)
        return;
    struct dead_end *d = &g->c->dead[q->deads++];
    d->id = id;
    snprintf(d->reason, sizeof d->reason, "%s", r->reason);
}

/* The newest refusals and rollbacks with their reasons. */
static void gather_dead(struct specializer *s, const struct slot_search *p, struct consultation *c)
{
    struct deads g = {p, c};
    struct record_filter f = {.env = s->keys.env,
                              .slot = p->slot->name,
                              .states =
                                  1u << LIFE_REFUSED | 1u << LIFE_DEFERRED | 1u << LIFE_ROLLED_BACK,
                              .limit = 4 * DEADS};
    store_each(s->store, &f, take_dead, &g, NULL);
}

/* ---- what other slots taught ---------------------------------------------------------------- */

/* How much a slot can teach about another, 0: nothing. The same region at another M most; then
 * weights of the same format, which are read alike in all regions; then whatever this machine did
 * with steps as wide. */
enum { KIN_MOST = 4 };
static int kinship(const struct slot_search *p, const struct slot_search *from)
{
    if (from == p)
        return 0;
    if (slot_kin(from->slot, p->slot))
        return abs(from->slot->m_index - p->slot->m_index) <= 1 ? KIN_MOST : 3;
    if (!from->space || from->slot->m_index != p->slot->m_index)
        return 0;
    return space_facts(from->space)->WTYPE == space_facts(p->space)->WTYPE ? 2 : 1;
}

static void add_lesson(struct consultation *c, const struct slot_search *from,
                       const struct space *space, int32_t id, double speed)
{
    if (c->request.lessons == LESSONS)
        return;
    struct lesson *l = &c->lesson[c->request.lessons++];
    snprintf(l->slot, sizeof l->slot, "%s", from->slot->name);
    adviser_id_text(space, id, l->id);
    l->speed = speed;
}

/* Of a slot without a search the winner of the store that serves there, where this slot has such a
 * point too. */
static void add_winner(struct specializer *s, const struct slot_search *p,
                       const struct slot_search *from, struct consultation *c)
{
    struct candidate serving;
    if (!slot_search_serving(s, from, &serving) || serving.evidence.speed <= 0)
        return;
    int32_t id = space_find(p->space, serving.template, &serving.point);
    if (id >= 0)
        add_lesson(c, from, p->space, id, serving.evidence.speed);
}

/* The two fastest points of a slot's search, and the slowest. */
static void add_lessons(struct specializer *s, const struct slot_search *p,
                        const struct slot_search *from, struct consultation *c)
{
    int32_t best[2], worst = -1;
    if (!from->space) {
        add_winner(s, p, from, c);
        return;
    }
    const struct search *search = &from->search;
    int n = search_best(search, best, 2);
    for (int32_t i = 0; i < space_size(from->space); i++)
        if (search->trial[i] == TRIAL_MEASURED &&
            (worst < 0 || search->speed[i] < search->speed[worst]))
            worst = i;
    for (int i = 0; i < n; i++)
        add_lesson(c, from, from->space, best[i], (double)search->speed[best[i]]);
    if (n == 2 && worst != best[0] && worst != best[1])
        add_lesson(c, from, from->space, worst, (double)search->speed[worst]);
}

static void gather_lessons(struct specializer *s, const struct slot_search *p,
                           struct consultation *c)
{
    for (int kin = KIN_MOST; kin > 0; kin--)
        for (int i = 0; i < s->slot_searches; i++)
            if (kinship(p, &s->slot_search[i]) == kin)
                add_lessons(s, p, &s->slot_search[i], c);
}

static int moves(void *ctx, int32_t node, struct moves *out)
{
    struct specializer *s = ctx;
    return adviser_moves(s->adviser, &s->consultation.request, node, out);
}

static bool want(void *ctx, const struct lineage *l, int n)
{
    struct specializer *s = ctx;
    return adviser_want_moves(s->adviser, &s->consultation.request, l, n);
}

static void gather(struct specializer *s, struct slot_search *p, struct consultation *c)
{
    struct advice_request *r = &c->request;
    const struct observed *seen = &s->observe.slot[p->index];
    int m = (int)lround(fmax(1, r->m)), sequences = 1;
    if (seen->runs > 0)
        sequences = (int)lround(fmax(1, seen->sequences / seen->runs));
    r->slot = p->slot->name;
    r->incumbent = atomic_load(&p->slot->kernel)->name;
    struct candidate serving;
    r->incumbent_speed = slot_search_serving(s, p, &serving) ? serving.evidence.speed : 1;
    r->eager_s = r->run_s * r->incumbent_speed;
    r->work = plan_cost(s->env.model, p->slot->region, slot_layer(p->slot), m, sequences,
                        (int64_t)r->context, m);
    r->live = c->live;
    r->lives = gather_live(s, p, c->live);
    r->dead = c->dead;
    gather_dead(s, p, c);
    r->lesson = c->lesson;
    gather_lessons(s, p, c);
    c->mover = (struct mover){.ctx = s, .moves = moves, .want = want};
    p->search.mover = &c->mover;
}

/* Fills the request about a slot, with predictions of the cost model as it is now. */
static void describe(struct specializer *s, struct slot_search *p)
{
    struct consultation *c = &s->consultation;
    c->request = (struct advice_request){
        .space = p->space,
        .cost = &s->cost,
        .share = s->observe.slot[p->index].share,
        .run_s = observe_run_s(&s->observe, p->index),
        .roofline_s = observe_roofline_s(&s->observe, p->index),
        .m = observe_m(&s->observe, p->index),
        .context = observe_context(&s->observe, p->index),
        .speed = p->search.speed,
        .trial = p->search.trial,
    };
    space_predict(p->space, &s->cost);
    if (adviser_is_remote(s->adviser))
        gather(s, p, c);
}

void consult_ahead(struct specializer *s, struct slot_search *p)
{
    s->ahead = adviser_is_remote(s->adviser) ? p : NULL;
    consult_meanwhile(s);
}

void consult_meanwhile(struct specializer *s)
{
    struct slot_search *p = s->ahead;
    if (!p || adviser_is_busy(s->adviser))
        return;
    s->ahead = NULL;
    if (!slot_search_open(s, p))
        return;
    describe(s, p);
    adviser_prepare(s->adviser, &s->consultation.request);
}

void consult(struct specializer *s, struct slot_search *p)
{
    if (s->ahead == p)
        s->ahead = NULL;
    describe(s, p);
    advice_free(&p->advice);
    adviser_ask(s->adviser, &s->consultation.request, &p->advice);
    p->search.advice = &p->advice;
    pthread_mutex_lock(&s->lock);
    snprintf(p->locked.label, sizeof p->locked.label, "%s", p->advice.label);
    snprintf(p->locked.label_by, sizeof p->locked.label_by, "%s", p->advice.source);
    pthread_mutex_unlock(&s->lock);
}
