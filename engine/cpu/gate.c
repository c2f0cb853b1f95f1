/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c - see gate.h. */
#include "engine/cpu/gate.h"

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/process.h"

enum {
    SPIN_CHECK = 8,
    YIELDS = 20,
    LATE_NS = 300000,
    PEERS_LATE_NS = 1000000,
    SHY_WAITS = 1000,
    BRIEF_WAITS = 200,
    VAIN_MOST = 3
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int32_t get(_Atomic int32_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static void set(_Atomic int32_t *v, int32_t to)
{
    atomic_store_explicit(v, to, memory_order_relaxed);
}

static bool is_long(int32_t spin_ns)
{
    return spin_ns > 2 * GATE_SPIN_MAX_NS;
}

/* Not in vain. */
static void paid(struct gate_wait *how)
{
    if (get(&how->vain) > 0)
        set(&how->vain, 0);
}

/* A spin that paid: the next is longer, up to what is right for short ones or for long ones. */
static void spin_paid(struct gate_wait *how)
{
    int32_t ns = get(&how->spin_ns), most = is_long(ns) ? how->spin_max_ns : GATE_SPIN_MAX_NS;
    if (ns > 0 && ns < most)
        set(&how->spin_ns, 2 * ns < most ? 2 * ns : most);
    paid(how);
}

/* Spins for a while; true if the word changed. */
static bool spin(struct gate *g, uint32_t old, struct gate_wait *how)
{
    int32_t ns = get(&how->spin_ns);
    int64_t until = 0, now = 0;
    if (ns > GATE_SPIN_MAX_NS && process_guests() > 0)
        ns = GATE_SPIN_MAX_NS;
    for (int i = 1; ns > 0 && now <= until; i++) {
        if (gate_value(g) != old) {
            spin_paid(how);
            return true;
        }
        relax();
        if (i % SPIN_CHECK == 0) {
            now = clock_ns();
            until = until ? until : now + ns;
            if (get(&how->spin_ns) == 0)
                return gate_value(g) != old; /* told to get out of the way */
        }
    }
    if (ns > GATE_SPIN_MIN_NS)
        set(&how->spin_ns, ns / 2);
    return gate_value(g) != old;
}

/* The core came back late from a yield, with nothing changed: somebody else was busy on it. */
static void late(struct gate_wait *how, bool peers)
{
    set(&how->vain, get(&how->vain) + 1);
    if (peers && get(&how->vain) < VAIN_MOST)
        return; /* or it was the peers, with something long */
    set(&how->shy, SHY_WAITS);
    set(&how->vain, 0);
}

/* Lets others have the core, a few times or for a while; true if the word changed. */
static bool yield(struct gate *g, uint32_t old, struct gate_wait *how)
{
    int32_t shy = get(&how->shy), ns = get(&how->yield_ns);
    int64_t begun = clock_ns(), before = begun;
    if (shy > 0) {
        set(&how->shy, shy - 1);
        return false;
    }
    for (int i = 0; (i < YIELDS || before - begun < ns) && process_guests() == 0; i++) {
        sched_yield();
        if (gate_value(g) != old) {
            paid(how);
            return true;
        }
        int64_t now = clock_ns();
        if (now - before > (ns > 0 ? PEERS_LATE_NS : LATE_NS)) {
            late(how, ns > 0);
            return false;
        }
        before = now;
    }
    return false;
}

/* After a sleep of `ns`; `vain_long`: behind a long spin that was in vain. */
static void learn(struct gate_wait *how, int64_t ns, bool vain_long)
{
    int32_t brief = get(&how->brief);
    if (ns >= how->spin_max_ns)
        return;
    if (vain_long)
        set(&how->vain, get(&how->vain) + 1);
    if (vain_long && get(&how->vain) >= VAIN_MOST) {
        set(&how->vain, 0);
        set(&how->brief, BRIEF_WAITS);
        set(&how->spin_ns, GATE_SPIN_MIN_NS);
    } else if (brief > 0) {
        set(&how->brief, brief - 1);
    } else {
        set(&how->spin_ns, how->spin_max_ns);
    }
}

bool gate_wait(struct gate *g, uint32_t old, struct gate_wait *how, int64_t limit_ns)
{
    bool vain_long =
        is_long(get(&how->spin_ns)) && process_guests() == 0; /* else it is cut short */
    if (spin(g, old, how))
        return true;
    if (yield(g, old, how))
        return true;
    int64_t asleep = how->spin_max_ns > 0 ? clock_ns() : 0;
    struct timespec limit = {limit_ns / 1000000000, limit_ns % 1000000000};
    bool timed_out = false;
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == old && !timed_out) {
        syscall(SYS_futex, &g->value, how->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, old,
                limit_ns > 0 ? &limit : NULL, NULL, 0);
        timed_out = limit_ns > 0; /* or woken, or interrupted: the caller looks again */
    }
    atomic_fetch_sub(&g->sleepers, 1);
    if (asleep > 0)
        learn(how, clock_ns() - asleep, vain_long);
    return gate_value(g) != old;
}

void gate_raise(struct gate *g, bool shared)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->value, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL,
                NULL, 0);
}
