/* SPDX-License-Identifier: Apache-2.0 */
/* slot_search.c - one slot's search: its space, what the store knows of it, and live inputs to
 * measure on.
 *
 * A search opens with everything that was ever measured under the same environment and the same
 * source: refusals are not repeated, results feed the cost model. In front of the queue come the
 * points that won on machines like this one (search/known.h), those that templates start from,
 * winners of the slots nearest by (M, context), imported kernels, and what won this slot before the
 * driver or the compiler changed: shapes that are close like close kernels. Without
 * specializer.starts the first two are left out, which says what they are worth.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/candidate/live.h"
#include "specializer/retrial.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/store/store_json.h"
#include "specializer/watch.h"
#include "specializer/why.h"

enum { FIRSTS = 6 };
#define CAPTURE_TIMEOUT_S 1.0
/* Steps that read the slot and gave no inputs, after which none will, whatever the backend has
 * against them. */
#define CAPTURE_STEPS 16
/* Steps that read the slot are not further apart where they are waited for. */
#define RUNS_WITHIN_NS INT64_C(3000000000)

/* ---- opening a search ---------------------------------------------------------------------- */

struct seeding {
    struct specializer *s;
    struct slot_search *p;
};

/* Takes what a stored row of this slot says about a point of the space. */
static void seed_row(void *ctx, const struct record *r)
{
    struct seeding *g = ctx;
    struct search *search = &g->p->search;
    const struct template *t = template_find(r->template);
    struct point point;
    char source[17];
    if (!t || point_parse(t, r->knobs, &point, NULL) != 0)
        return;
    template_source_hash(t, source);
    int32_t id = space_find(g->p->space, t, &point);
    if (id < 0 || strcmp(source, r->source) != 0)
        return;
    if (r->evidence.own_s > 0)
        cost_learn(&g->s->cost, t, &point, space_facts(g->p->space), r->evidence.own_s);
    bool lost = r->state == LIFE_DEFERRED && r->evidence.canary.mean < 0;
    if (r->evidence.speed > 0 && !lost && r->state != LIFE_DISABLED && r->state != LIFE_ROLLED_BACK)
        search_learn(search, id, r->evidence.speed);
    else if (lost || r->state == LIFE_REFUSED || record_deadly(r))
        search_learn(search, id, 0);
}

/* The points to try before all others, nearest and fastest first. */
struct firsts {
    struct specializer *s;
    struct slot_search *p;
    double speed_to_beat;
    struct {
        int distance; /* in slots */
        double speed;
        int32_t id;
    } found[FIRSTS];
    int n;
};

static void firsts_add(struct firsts *g, int distance, double speed, int32_t id)
{
    for (int i = 0; i < g->n; i++)
        if (g->found[i].id == id)
            return;
    int at = g->n < FIRSTS ? g->n++ : FIRSTS;
    while (at > 0 && (g->found[at - 1].distance > distance ||
                      (g->found[at - 1].distance == distance && g->found[at - 1].speed < speed))) {
        if (at < FIRSTS)
            g->found[at] = g->found[at - 1];
        at--;
    }
    if (at < FIRSTS) {
        g->found[at].distance = distance;
        g->found[at].speed = speed;
        g->found[at].id = id;
    }
}

/* Id of a stored row's point here, or -1. */
static int32_t row_id(const struct slot_search *p, const struct record *r)
{
    const struct template *t = template_find(r->template);
    struct point point;
    if (!t || point_parse(t, r->knobs, &point, NULL) != 0)
        return -1;
    return space_find(p->space, t, &point);
}

/* The template's first start that the space holds: the policy may leave out what is fastest. -1: it
 * names none. */
static int32_t start_id(const struct slot_search *p, const struct template *t)
{
    const struct facts *f = space_facts(p->space);
    struct point point;
    int32_t id = -1;
    for (int n = 0; id < 0 && template_start_row(t, f, n, &point); n++)
        id = template_illegal(t, &point, f) ? -1 : space_find(p->space, t, &point);
    return id;
}

/* Where the templates say that a search begins: one start a batch. A bench runs a kernel among its
 * own kind, so of two families that both beat eager by much it may prefer the one that loses in
 * whole steps; one after the other, the second has to win whole steps from the first. */
static void add_starts(struct firsts *g)
{
    const struct facts *f = space_facts(g->p->space);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        bool fits = template_fits(t, facts_kind(f), (enum region)f->REGION, f->M_MAX);
        int32_t id = fits ? start_id(g->p, t) : -1;
        if (id >= 0 && g->p->search.trial[id] == TRIAL_NONE) {
            firsts_add(g, 0, 0, id);
            return;
        }
    }
}

/* Adds points that won on machines like this one: the nearest few that the space holds. */
static void add_known(struct firsts *g)
{
    enum { MOST = 16 };
    struct known_point found[MOST];
    struct slot_search *p = g->p;
    struct known_slot at = {space_facts(p->space), p->slot->m,
                            p->slot->context,      machine_threads(g->s->config),
                            g->s->numerics,        g->s->env.machine->device};
    int n = g->s->known ? known_find(g->s->known, &at, found, MOST) : 0;
    p->knowns = 0;
    for (int i = 0; i < n && p->knowns < KNOWN_FIRSTS; i++) {
        int32_t id = space_find(p->space, found[i].template, &found[i].point);
        if (id < 0 || slot_search_known(p, id))
            continue;
        p->known[p->knowns].id = id;
        p->known[p->knowns].speed = found[i].speed;
        p->known[p->knowns++].device = found[i].device;
        if (p->search.trial[id] == TRIAL_NONE)
            firsts_add(g, 0, 0, id);
    }
}

const char *slot_search_known(const struct slot_search *p, int32_t id)
{
    for (int i = 0; i < p->knowns; i++)
        if (p->known[i].id == id)
            return p->known[i].device;
    return NULL;
}

double slot_search_known_speed(const struct slot_search *p, int32_t id)
{
    if (p->fleet.speed > 0 && p->fleet.offer == id)
        return p->fleet.speed;
    for (int i = 0; i < p->knowns; i++)
        if (p->known[i].id == id)
            return p->known[i].speed;
    return 0;
}

/* A winner of another slot of the region, or an imported kernel, perhaps of a model whose layers
 * are alike. */
static void near_row(void *ctx, const struct record *r)
{
    struct firsts *g = ctx;
    const struct slot_search *other = slot_search_find(g->s, r->slot);
    const struct slot *to = g->p->slot, *from = other                     ? other->slot
                                                : slot_named(to, r->slot) ? to
                                                                          : NULL;
    if (!from || from->region != to->region)
        return;
    int32_t id = row_id(g->p, r);
    if (id >= 0 && g->p->search.trial[id] == TRIAL_NONE)
        firsts_add(g,
                   abs(from->m_index - to->m_index) + abs(from->context_index - to->context_index) +
                       !slot_kin(from, to),
                   r->evidence.speed, id);
}

/* A runner-up or former winner of this very slot that was measured faster than what serves now:
 * the kernel that beat it is gone. It goes through everything again, unless it lost whole
 * steps beside the kernels that there are now. */
static void comeback_row(void *ctx, const struct record *r)
{
    struct firsts *g = ctx;
    int32_t id = row_id(g->p, r);
    if (id < 0 || r->evidence.speed < g->speed_to_beat || record_deadly(r) ||
        g->p->search.trial[id] != TRIAL_MEASURED || !retrial_allowed(g->s, g->p, &r->evidence.lost))
        return;
    search_again(&g->p->search, id);
    firsts_add(g, 0, r->evidence.speed, id);
}

void slot_search_firsts(struct specializer *s, struct slot_search *p)
{
    enum {
        BEATEN = 1u << LIFE_BENCHED | 1u << LIFE_SHADOWED | 1u << LIFE_CANARY,
        WON = 1u << LIFE_ACTIVE | 1u << LIFE_RETIRED | 1u << LIFE_CANARY
    };
    pthread_mutex_lock(&s->lock);
    double now = 1 + p->locked.gain_eager;
    pthread_mutex_unlock(&s->lock);
    struct firsts g = {s, p, now * (1 + s->config->specializer_min_gain), {{0}}, 0};
    struct record_filter f = {
        .env = s->keys.env, .slot = p->slot->name, .states = BEATEN | 1u << LIFE_RETIRED};
    store_each(s->store, &f, comeback_row, &g, NULL);
    f = (struct record_filter){.env = s->keys.env, .states = WON};
    store_each(s->store, &f, near_row, &g, NULL);
    f = (struct record_filter){.env = ENV_IMPORTED};
    store_each(s->store, &f, near_row, &g, NULL);
    if (s->config->specializer_starts) {
        add_known(&g);
        add_starts(&g);
    }
    if (p->fleet.adopt) /* a kernel that another server found comes before all guesses */
        firsts_add(&g, -1, p->fleet.speed, fleet_loop_take(p));
    /* The time of a former winner under another driver, compiler or device is not known here, but
     * the point is a good guess. */
    f = (struct record_filter){.slot = p->slot->name, .states = WON};
    store_each(s->store, &f, near_row, &g, NULL);
    free(p->search.first);
    p->search.first = xcalloc(FIRSTS, sizeof *p->search.first);
    p->search.firsts = 0;
    for (int i = 0; i < g.n; i++)
        p->search.first[p->search.firsts++] = g.found[i].id;
}

bool slot_search_runs(const struct slot_search *p)
{
    return p->ran_ns > 0 && clock_ns() - p->ran_ns < RUNS_WITHIN_NS;
}

enum slot_wait slot_search_waits(const struct slot_search *p)
{
    if (p->promoted.c)
        return slot_search_runs(p) ? SLOT_WAITS_FOR_VERDICT : SLOT_WAITS_FOR_STEPS;
    return p->inputless > 0 ? SLOT_WAITS_FOR_INPUTS : SLOT_WAITS_FOR_NOTHING;
}

bool slot_search_open(struct specializer *s, struct slot_search *p)
{
    if (!p->space) {
        struct facts facts;
        facts_slot(&facts, s->env.model, p->slot, s->numerics);
        facts_machine(&facts, s->env.machine);
        p->space = space_open_starts(&facts, p->slot->region, p->slot->m, s->numerics,
                                     s->config->specializer_starts);
        search_open(&p->search, p->space);
        struct seeding seeding = {s, p};
        struct record_filter f = {.env = s->keys.env, .slot = p->slot->name};
        store_each(s->store, &f, seed_row, &seeding, NULL);
        p->measured = p->search.measured;
        uint64_t seed = (uint64_t)s->config->specializer_seed * 1000003u + (uint64_t)p->index;
        if (strategy_proposes(s->strategy))
            p->strategy = s->strategy->open(&p->search, seed);
        if (space_size(p->space) == 0) {
            pthread_mutex_lock(&s->lock);
            why_no_point_locked(p);
            pthread_mutex_unlock(&s->lock);
        }
    }
    return space_size(p->space) > 0;
}

void slot_search_forget(struct specializer *s, struct slot_search *p)
{
    if (!p->space)
        return;
    if (strategy_proposes(s->strategy))
        s->strategy->close(p->strategy);
    fleet_loop_forget(p);
    advice_free(&p->advice);
    search_close(&p->search);
    space_close(p->space);
    p->space = NULL;
    p->strategy = NULL;
}

/* ---- inputs -------------------------------------------------------------------------------- */

void slot_search_inputs_free(struct slot_search *p)
{
    for (int i = 0; i < p->inputs; i++) {
        capture_free(p->input[i]);
        free(p->input[i]);
    }
    p->inputs = 0;
}

/* One capture of the slot's next live step; NULL if none came in time. */
static struct capture *capture_one(struct specializer *s, struct slot_search *p)
{
    struct capture *c = xcalloc(1, sizeof *c);
    struct hook hook = {.kind = HOOK_CAPTURE, .slot = p->slot, .every = 1, .capture = c};
    atomic_init(&hook.left, 1);
    struct patience patience;
    patience_begin(&patience, &s->env, p->slot, CAPTURE_TIMEOUT_S);
    const uint64_t before = atomic_load(&p->slot->counters.steps);
    bool taken = s->env.ops->hook(s->env.backend, &hook) == 0;
    while (taken && atomic_load(&hook.left) > 0 && !patience_over(&patience) &&
           atomic_load(&p->slot->counters.steps) - before < CAPTURE_STEPS && live_pause(&s->env))
        ;
    s->env.ops->hook(s->env.backend, NULL);
    if (taken && atomic_load(&hook.left) == 0)
        return c;
    free(c);
    return NULL;
}

bool slot_search_inputs(struct specializer *s, struct slot_search *p)
{
    struct capture *fresh[INPUTS];
    int n = 0;
    watch_stop(s);
    while (n < INPUTS && (fresh[n] = capture_one(s, p)) != NULL)
        n++;
    if (n > 0) {
        slot_search_inputs_free(p);
        memcpy(p->input, fresh, (size_t)n * sizeof *fresh);
        p->inputs = n;
    }
    return p->inputs > 0;
}

bool slot_search_serving(struct specializer *s, const struct slot_search *p, struct candidate *out)
{
    pthread_mutex_lock(&s->lock);
    const bool some = p->locked.active != NULL;
    *out = some ? *p->locked.active : (struct candidate){0};
    pthread_mutex_unlock(&s->lock);
    return some;
}
