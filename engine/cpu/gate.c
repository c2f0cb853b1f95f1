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

static bool is_long(int32_t spin_ns)
{
    return spin_ns > GATE_SPIN_MAX_NS;
}

/* A long spin was in the way of somebody who wants this core. Once may be the pause between two
 * steps, several times in a row are not. */
static void in_the_way(struct gate_wait *how)
{
    int32_t vain = atomic_load_explicit(&how->vain, memory_order_relaxed) + 1;
    if (vain >= VAIN_MOST) {
        atomic_store_explicit(&how->brief, BRIEF_WAITS, memory_order_relaxed);
        atomic_store_explicit(&how->spin_ns, GATE_SPIN_MIN_NS, memory_order_relaxed);
        vain = 0;
    }
    atomic_store_explicit(&how->vain, vain, memory_order_relaxed);
}

/* The word changed during a spin of `ns`. `lost`: this core was somebody else's meanwhile. */
static void paid(struct gate_wait *how, int32_t ns, bool lost)
{
    if (ns < GATE_SPIN_MAX_NS)
        atomic_store_explicit(&how->spin_ns, 2 * ns, memory_order_relaxed);
    else if (is_long(ns) && lost)
        in_the_way(how);
    else if (is_long(ns) && atomic_load_explicit(&how->vain, memory_order_relaxed) > 0)
        atomic_store_explicit(&how->vain, 0, memory_order_relaxed);
}

/* Spins for a while; true if the word changed. */
static bool spin(struct gate *g, uint32_t old, struct gate_wait *how)
{
    int32_t ns = atomic_load_explicit(&how->spin_ns, memory_order_relaxed);
    int64_t until = 0, now = 0;
    bool lost = false;
    if (is_long(ns) && process_guests() > 0)
        ns = GATE_SPIN_MAX_NS;
    for (int i = 1; ns > 0 && now <= until; i++) {
        if (gate_value(g) != old) {
            paid(how, ns, lost || (now > 0 && is_long(ns) && clock_ns() - now > LATE_NS));
            return true;
        }
        relax();
        if (i % SPIN_CHECK == 0) {
            int64_t before = now;
            now = clock_ns();
            until = until ? until : now + ns;
            lost |= before > 0 && now - before > LATE_NS;
            if (atomic_load_explicit(&how->spin_ns, memory_order_relaxed) == 0)
                return gate_value(g) != old; /* told to get out of the way */
        }
    }
    if (ns > GATE_SPIN_MIN_NS && !is_long(ns)) /* learn() judges the long ones */
        atomic_store_explicit(&how->spin_ns, ns / 2, memory_order_relaxed);
    return gate_value(g) != old;
}

/* Lets others have the core a few times; true if the word changed. */
static bool yield(struct gate *g, uint32_t old, struct gate_wait *how)
{
    int32_t shy = atomic_load_explicit(&how->shy, memory_order_relaxed);
    if (shy > 0) {
        atomic_store_explicit(&how->shy, shy - 1, memory_order_relaxed);
        return false;
    }
    int64_t before = clock_ns();
    for (int i = 0; i < YIELDS && process_guests() == 0; i++) {
        sched_yield();
        if (gate_value(g) != old)
            return true;
        int64_t now = clock_ns();
        if (now - before > LATE_NS) {
            atomic_store_explicit(&how->shy, SHY_WAITS, memory_order_relaxed);
            return false;
        }
        before = now;
    }
    return false;
}

/* After a sleep of `ns`; `vain_long`: behind a long spin that was in vain. */
static void learn(struct gate_wait *how, int64_t ns, bool vain_long)
{
    int32_t brief = atomic_load_explicit(&how->brief, memory_order_relaxed);
    int32_t most = atomic_load_explicit(&how->spin_max_ns, memory_order_relaxed);
    if (ns >= most)
        return;
    if (vain_long)
        in_the_way(how);
    else if (brief > 0)
        atomic_store_explicit(&how->brief, brief - 1, memory_order_relaxed);
    else
        atomic_store_explicit(&how->spin_ns, most, memory_order_relaxed);
}

bool gate_wait(struct gate *g, uint32_t old, struct gate_wait *how, int64_t limit_ns)
{
    bool vain_long = is_long(atomic_load_explicit(&how->spin_ns, memory_order_relaxed)) &&
                     process_guests() == 0; /* else it is cut short */
    if (spin(g, old, how))
        return true;
    if (yield(g, old, how))
        return true;
    int64_t asleep =
        atomic_load_explicit(&how->spin_max_ns, memory_order_relaxed) > 0 ? clock_ns() : 0;
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

void gate_long_spins(struct gate_wait *how, bool allowed)
{
    int32_t most = allowed ? GATE_SPIN_ALONE_NS : 0;
    if (atomic_load_explicit(&how->spin_max_ns, memory_order_relaxed) == most)
        return;
    atomic_store_explicit(&how->spin_max_ns, most, memory_order_relaxed);
    if (!allowed && is_long(atomic_load_explicit(&how->spin_ns, memory_order_relaxed)))
        atomic_store_explicit(&how->spin_ns, GATE_SPIN_MAX_NS, memory_order_relaxed);
}

void gate_raise(struct gate *g, bool shared)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->value, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL,
                NULL, 0);
}
