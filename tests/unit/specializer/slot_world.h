/* SPDX-License-Identifier: Apache-2.0 */
/* slot_world.h - slots, a store, and a backend that does nothing but remember what was hooked, what
 * it unloaded and what is to be broken: for tests of what fills slots. No thread, no engine. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_SLOT_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_SLOT_WORLD_H

#include "tests/unit/specializer/store_world.h"

#include "config/clock.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"

enum { EVERY = 40 };

static struct world {
    struct specializer s;
    struct config config;
    struct machine machine;
    struct backend_ops ops;
    struct kernel eager[REGION_COUNT];
    struct hook *hooked;           /* by the last call; NULL: removed */
    int hooks, refusals, unloaded; /* calls; of the next ones so many fail */
    const struct kernel *broken;
} w;

static int note_hook(struct backend *b, struct hook *t)
{
    (void)b;
    w.hooks++;
    w.hooked = t;
    return t && w.refusals-- > 0 ? -1 : 0;
}

static const char *is_broken(struct backend *b, const struct kernel *k)
{
    (void)b;
    return k == w.broken ? "it was killed" : NULL;
}

static void unload(struct backend *b, struct kernel *k)
{
    (void)b;
    w.unloaded++;
    free(k);
}

static int open_world(void **unused)
{
    (void)unused;
    struct err err;
    const struct kernel *table[REGION_COUNT];
    w = (struct world){.ops = {.hook = note_hook, .broken = is_broken, .unload = unload}};
    for (int r = 0; r < REGION_COUNT; r++) {
        w.eager[r] = (struct kernel){.id = "eager", .region = (enum region)r};
        table[r] = &w.eager[r];
    }
    struct specializer *s = &w.s;
    w.config.specializer_watch_every = EVERY;
    s->config = &w.config;
    s->store = store_open(fresh_path(), &err);
    s->env.config = &w.config;
    s->env.machine = &w.machine;
    s->env.ops = &w.ops;
    s->env.dispatch = dispatch_open(table, NULL);
    s->slot_searches = dispatch_slots(s->env.dispatch);
    s->slot_search = xcalloc((size_t)s->slot_searches, sizeof *s->slot_search);
    s->observe.slot = xcalloc((size_t)s->slot_searches, sizeof *s->observe.slot);
    for (int i = 0; i < s->slot_searches; i++) {
        s->slot_search[i].slot = dispatch_slot_at(s->env.dispatch, i);
        s->slot_search[i].index = i;
    }
    pthread_mutex_init(&s->lock, NULL);
    return s->store ? 0 : -1;
}

static int close_world(void **unused)
{
    (void)unused;
    struct specializer *s = &w.s;
    for (int i = 0; i < s->slot_searches; i++) {
        candidate_drop(s, s->slot_search[i].locked.active);
        candidate_drop(s, s->slot_search[i].locked.previous);
    }
    retire_poll(s, true);
    free(s->locked.retired);
    store_close(s->store);
    dispatch_close(s->env.dispatch);
    free(s->observe.slot);
    free(s->slot_search);
    pthread_mutex_destroy(&s->lock);
    return 0;
}

static inline struct slot_search *at(const char *slot)
{
    struct slot_search *p = slot_search_find(&w.s, slot);
    assert_non_null(p);
    return p;
}

/* One that has passed its canary. */
static inline struct candidate *candidate_for(const char *slot, int key)
{
    struct candidate *c = xcalloc(1, sizeof *c);
    snprintf(c->key, sizeof c->key, "%016x", key);
    snprintf(c->object_key, sizeof c->object_key, "%016x", key);
    snprintf(c->env, sizeof c->env, "env");
    snprintf(c->name, sizeof c->name, "kernel %d", key);
    c->template = template_at(0);
    c->point = template_defaults(c->template);
    c->slot = at(slot)->slot;
    c->state = LIFE_CANARY;
    c->kernel = xcalloc(1, sizeof *c->kernel);
    *c->kernel = (struct kernel){.region = c->slot->region, .origin = ORIGIN_TEMPLATE};
    snprintf(c->kernel->id, sizeof c->kernel->id, "%s", c->key);
    return c;
}

/* A kernel serves the slot, which live steps read. */
static inline struct slot_search *serve(const char *slot, int key)
{
    struct slot_search *p = at(slot);
    assert_int_equal(swap_in(&w.s, p, candidate_for(slot, key), "for a test", NULL), 0);
    w.s.observe.slot[p->index].share = 0.1;
    return p;
}

__attribute__((unused)) static bool serves_eager(const struct slot_search *p)
{
    return !p->locked.active && slot_kernel(p->slot) == p->slot->eager;
}

#endif
