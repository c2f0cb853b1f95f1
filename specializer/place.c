/* place.c - one slot's search: its space, what the store knows of it, and live inputs to measure
 * on.
 *
 * A search opens with everything that was ever measured under the same environment and the same
 * source: refusals are not repeated, results feed the cost model. Winners of the slots nearest by
 * (M, context), and imported kernels, are put in front of the queue: shapes that are close like
 * close kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/specializer_private.h"
#include "specializer/store_json.h"

enum { NEAREST = 6 };
#define CAPTURE_TIMEOUT_NS INT64_C(1000000000)

/* ---- opening a search -------------------------------------------------------------------------
 */

struct seeding {
    struct specializer *s;
    struct place *p;
};

/* A stored row of this slot: what it says about a point of the space. */
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
    if (r->evidence.speed > 0 && r->state != LIFE_DISABLED && r->state != LIFE_ROLLED_BACK)
        search_learn(search, id, r->evidence.speed);
    else if (r->state == LIFE_REFUSED || r->deaths >= DEATHS_MOST)
        search_learn(search, id, 0);
}

/* A winner of a neighbouring slot, as a point to try first here. */
struct nearest {
    struct place *p;
    struct {
        int distance;
        int32_t id;
    } found[NEAREST];
    int n;
    struct specializer *s;
};

static void near_row(void *ctx, const struct record *r)
{
    struct nearest *g = ctx;
    const struct template *t = template_find(r->template);
    struct place *from = place_find(g->s, r->slot);
    struct point point;
    if (!t || !from || from->slot->region != g->p->slot->region ||
        point_parse(t, r->knobs, &point, NULL) != 0)
        return;
    int32_t id = space_find(g->p->space, t, &point);
    int distance = abs(from->slot->m_index - g->p->slot->m_index) +
                   abs(from->slot->context_index - g->p->slot->context_index);
    if (id < 0 || g->p->search.trial[id] != TRIAL_NONE)
        return;
    for (int i = 0; i < g->n; i++)
        if (g->found[i].id == id)
            return;
    int at = g->n < NEAREST ? g->n++ : NEAREST;
    while (at > 0 && g->found[at - 1].distance > distance) {
        if (at < NEAREST)
            g->found[at] = g->found[at - 1];
        at--;
    }
    if (at < NEAREST) {
        g->found[at].distance = distance;
        g->found[at].id = id;
    }
}

void place_neighbours(struct specializer *s, struct place *p)
{
    struct nearest near = {.s = s, .p = p};
    struct record_filter f = {.env = s->keys.env,
                              .states = 1u << LIFE_ACTIVE | 1u << LIFE_RETIRED | 1u << LIFE_CANARY};
    store_each(s->store, &f, near_row, &near, NULL);
    f = (struct record_filter){.env = ENV_IMPORTED};
    store_each(s->store, &f, near_row, &near, NULL);
    free(p->search.first);
    p->search.first = xcalloc(NEAREST, sizeof *p->search.first);
    p->search.firsts = 0;
    for (int i = 0; i < near.n; i++)
        p->search.first[p->search.firsts++] = near.found[i].id;
}

bool place_open(struct specializer *s, struct place *p)
{
    if (!p->space) {
        struct facts facts;
        facts_fill(&facts, s->env.model, p->slot->region, p->slot->m, s->numerics);
        p->space = space_open(&facts, p->slot->region, p->slot->m, s->numerics);
        search_open(&p->search, p->space);
        struct seeding seeding = {s, p};
        struct record_filter f = {.env = s->keys.env, .slot = p->slot->name};
        store_each(s->store, &f, seed_row, &seeding, NULL);
        uint64_t seed = (uint64_t)s->config->specializer_seed * 1000003u + (uint64_t)p->index;
        p->strategy = s->strategy->open(&p->search, seed);
    }
    return space_size(p->space) > 0;
}

void place_forget(struct specializer *s, struct place *p)
{
    if (!p->space)
        return;
    s->strategy->close(p->strategy);
    advice_free(&p->advice);
    search_close(&p->search);
    space_close(p->space);
    p->space = NULL;
    p->strategy = NULL;
}

/* ---- inputs -----------------------------------------------------------------------------------
 */

void place_inputs_free(struct place *p)
{
    for (int i = 0; i < p->inputs; i++) {
        capture_free(p->input[i]);
        free(p->input[i]);
    }
    p->inputs = 0;
}

/* One capture of the slot's next live step; NULL if none came in time. */
static struct capture *capture_one(struct specializer *s, struct place *p)
{
    struct capture *c = xcalloc(1, sizeof *c);
    struct tap tap = {.kind = TAP_CAPTURE, .slot = p->slot, .every = 1, .capture = c};
    atomic_init(&tap.left, 1);
    int64_t until = clock_ns() + CAPTURE_TIMEOUT_NS;
    bool taken = s->env.ops->tap(s->env.backend, &tap) == 0;
    while (taken && atomic_load(&tap.left) > 0 && clock_ns() < until && !atomic_load(&s->interrupt))
        specializer_wait(s, 0.005);
    s->env.ops->tap(s->env.backend, NULL);
    if (taken && atomic_load(&tap.left) == 0)
        return c;
    free(c);
    return NULL;
}

bool place_inputs(struct specializer *s, struct place *p)
{
    struct capture *fresh[INPUTS];
    int n = 0;
    watch_stop(s);
    while (n < INPUTS && (fresh[n] = capture_one(s, p)) != NULL)
        n++;
    if (n > 0) {
        place_inputs_free(p);
        memcpy(p->input, fresh, sizeof fresh);
        p->inputs = n;
    }
    return p->inputs > 0;
}
