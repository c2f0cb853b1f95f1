/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h - a word that threads wait on: they spin, then yield, then sleep on a futex.
 *
 * Who raises the gate writes the word and makes the wake-up call only when somebody sleeps. Threads
 * of one process share it (the pool), or two processes that have its page mapped (the executor);
 * the latter's waits and wakes are looked up by page, which is slower and has to be said
 * (`shared`).
 *
 * How long to spin adapts: a spin in vain halves the next one (peers that share a core hand it over
 * at once instead of burning it), one that paid doubles it. Yielding is wrong while compilers and
 * probes run: to the scheduler it is a wish that somebody else may run, and a task of the lowest
 * priority then keeps the core until the next tick, milliseconds in which the whole step waits. A
 * sleeper that is woken displaces such a task at once. So with guests (process_guests()) waiters go
 * to sleep without yielding: on a loaded 2-core server that halved what the search adds to the 99th
 * percentile of the time between tokens. And who yielded and got the core back late, with nothing
 * changed, has met somebody else's busy process, and does not yield for a while.
 *
 * Who has a core to itself may spin for long (gate_long_spins()): then nothing is gained by
 * sleeping between two calls, and waking an idle core costs a virtual machine 30 us and more each
 * way. Such spins begin after a sleep that turned out shorter than they are. One is in somebody's
 * way if it was in vain and the word changed soon after it (the peer had no other core), or if the
 * core was lost during it. Between two steps that may happen, so a single one means nothing; after
 * VAIN_MOST in a row there are no long spins for BRIEF_WAITS waits. While there are guests there
 * are none at all: those want the core.
 *
 * Invariant: `sleepers` is raised before the last look at the word and read after the word is
 * written (both sequentially consistent), so a sleeper is either seen or sees the new value.
 */
#ifndef WHET_ENGINE_CPU_GATE_H
#define WHET_ENGINE_CPU_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    GATE_LINE = 64,
    GATE_SPIN_MIN_NS = 1000,
    GATE_SPIN_MAX_NS = 30000,
    GATE_SPIN_ALONE_NS = 1000000 /* where a core has nothing else to do */
};

/* On a cache line of its own. All zero at first. */
struct gate {
    _Alignas(GATE_LINE) _Atomic uint32_t value;
    _Atomic int32_t sleepers;
};

/* How one side waits: never in memory that another process may write. */
struct gate_wait {
    _Atomic int32_t spin_ns;     /* how long the next waiter spins; 0: not at all, from now on */
    bool shared;                 /* the gate is of two processes */
    _Atomic int32_t shy;         /* waits yet to go without yielding */
    _Atomic int32_t spin_max_ns; /* 0: GATE_SPIN_MAX_NS; more: long spins are allowed */
    _Atomic int32_t brief;       /* waits yet to go without a long spin */
    _Atomic int32_t vain;        /* long spins in somebody's way, in a row */
};

/* Returns once the word is no longer `old`; with `limit_ns` above 0 after about that long asleep at
 * the latest. True if the word changed. */
bool gate_wait(struct gate *g, uint32_t old, struct gate_wait *how, int64_t limit_ns);
/* Whether long spins are allowed from now on: there is a core for everybody who waits so. */
void gate_long_spins(struct gate_wait *how, bool allowed);
/* Changes the word and wakes who sleeps. */
void gate_raise(struct gate *g, bool shared);

static inline uint32_t gate_value(struct gate *g)
{
    return atomic_load_explicit(&g->value, memory_order_acquire);
}

#endif
