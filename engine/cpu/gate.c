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

enum { SPIN_CHECK = 8, YIELDS = 20, LATE_NS = 300000, SHY_WAITS = 1000 };

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins for a while; true if the word changed. */
static bool spin(struct gate *g, uint32_t old, _Atomic int32_t *spin_ns)
{
    int32_t ns = atomic_load_explicit(spin_ns, memory_order_relaxed);
    int64_t until = 0, now = 0;
    for (int i = 1; ns > 0 && now <= until; i++) {
        if (gate_value(g) != old) {
            if (ns < GATE_SPIN_MAX_NS)
                atomic_store_explicit(spin_ns, 2 * ns, memory_order_relaxed);
            return true;
        }
        relax();
        if (i % SPIN_CHECK == 0) {
            now = clock_ns();
            until = until ? until : now + ns;
            if (atomic_load_explicit(spin_ns, memory_order_relaxed) == 0)
                return gate_value(g) != old; /* told to get out of the way */
        }
    }
    if (ns > GATE_SPIN_MIN_NS)
        atomic_store_explicit(spin_ns, ns / 2, memory_order_relaxed);
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

bool gate_wait(struct gate *g, uint32_t old, struct gate_wait *how, int64_t limit_ns)
{
    if (spin(g, old, &how->spin_ns))
        return true;
    if (yield(g, old, how))
        return true;
    struct timespec limit = {limit_ns / 1000000000, limit_ns % 1000000000};
    bool timed_out = false;
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == old && !timed_out) {
        syscall(SYS_futex, &g->value, how->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, old,
                limit_ns > 0 ? &limit : NULL, NULL, 0);
        timed_out = limit_ns > 0; /* or woken, or interrupted: the caller looks again */
    }
    atomic_fetch_sub(&g->sleepers, 1);
    return gate_value(g) != old;
}

void gate_raise(struct gate *g, bool shared)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->value, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL,
                NULL, 0);
}
