/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep.c - what the specializer's loop does every time around, whatever else it does: counters
 * are read, shares are stored, what nobody runs any more is unloaded, pins are followed, searches
 * that an operator or a lost kernel made stale begin afresh, old objects are deleted. Specializer
 * thread. */
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/build/objects.h"
#include "specializer/restore.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"

#define OBSERVE_EVERY_S 0.1
#define SHARES_EVERY_S 15
#define PRUNE_EVERY_S 3600

static double seconds_since(int64_t ns)
{
    return (double)(clock_ns() - ns) * 1e-9;
}

void specializer_observe(struct specializer *s)
{
    if (seconds_since(s->observed_ns) >= OBSERVE_EVERY_S)
        specializer_observe_now(s);
}

void specializer_observe_now(struct specializer *s)
{
    s->observed_ns = clock_ns();
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches; i++)
        s->observe.gain_eager[i] = s->slot_search[i].locked.gain_eager;
    observe_update(&s->observe);
    s->locked.saved_s = 0;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        p->locked.run_s = observe_run_s(&s->observe, i);
        p->locked.roofline_s = observe_roofline_s(&s->observe, i);
        p->locked.bytes = observe_bytes(&s->observe, i);
        p->locked.worth = observe_worth(&s->observe, i, p->measured, p->dry);
        if (s->observe.slot[i].delta[SEEN_RUNS] > 0)
            p->ran_ns = s->observed_ns;
        p->locked.waits = slot_search_waits(p);
        if (s->observe.slot[i].seconds > 0) {
            p->locked.share = s->observe.slot[i].share;
            p->locked.own = s->observe.slot[i].own;
        }
        s->locked.saved_s += s->observe.slot[i].saved_s;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Time shares of active slots: the order in which a restart brings them back. */
static void store_shares(struct specializer *s)
{
    if (seconds_since(s->shares_ns) < SHARES_EVERY_S)
        return;
    s->shares_ns = clock_ns();
    store_settle(s->store); /* of slots that all lost their kernels there are no shares */
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        pthread_mutex_lock(&s->lock);
        bool active = p->locked.active != NULL;
        double share = p->locked.share, gain = p->locked.gain_eager;
        pthread_mutex_unlock(&s->lock);
        if (active)
            store_share(s->store, s->keys.env, p->slot->name, share, gain, NULL);
    }
}

/* A slot's candidates have their objects even if the store knows them as nothing special yet. */
static bool object_kept(void *ctx, const char *object_key)
{
    struct specializer *s = ctx;
    bool kept = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches && !kept; i++) {
        const struct slot_search *p = &s->slot_search[i];
        const struct candidate *held[] = {p->locked.active, p->locked.previous, p->promoted.c};
        for (int j = 0; j < 3; j++)
            kept |= held[j] && strcmp(held[j]->object_key, object_key) == 0;
    }
    pthread_mutex_unlock(&s->lock);
    return kept || store_object_used(s->store, object_key);
}

/* Between batches only: a batch's objects are on their way from the compiler to the probe. */
static void prune_objects(struct specializer *s)
{
    if (s->batch.slot_search || (s->pruned_ns && seconds_since(s->pruned_ns) < PRUNE_EVERY_S))
        return;
    s->pruned_ns = clock_ns();
    struct objects_limit limit = {s->config->specializer_objects_mib << 20,
                                  s->config->specializer_objects_days * 86400};
    int removed = objects_prune(s->keys.object_dir, limit, object_kept, s);
    if (removed > 0)
        log_info("specializer", "%d old objects deleted from %s", removed, s->keys.object_dir);
}

/* Slots that lost their kernel, or where an operator allowed more, are looked at afresh. */
static void refresh_searches(struct specializer *s)
{
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (search_batch_has(s, p) || p->promoted.c)
            continue;
        pthread_mutex_lock(&s->lock);
        bool stale = p->locked.stale;
        p->locked.stale = false;
        pthread_mutex_unlock(&s->lock);
        if (stale) {
            slot_search_forget(s, p);
            p->exhausted = false;
            p->measured = p->dry = 0;
        }
    }
}

void specializer_go_on(struct specializer *s)
{
    atomic_store(&s->interrupt, false);
    if (atomic_load(&s->stop)) /* asked for meanwhile: the other order could lose it */
        atomic_store(&s->interrupt, true);
}

void specializer_upkeep(struct specializer *s)
{
    specializer_go_on(s);
    specializer_observe(s);
    store_shares(s);
    retire_poll(s, false);
    adviser_poll(s->adviser);
    fleet_advance(s);
    restore_pins(s);
    refresh_searches(s);
    prune_objects(s);
}
