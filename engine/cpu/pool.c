/* pool.c - threads that meet twice a region: once to start, once to finish.
 *
 * A step is some 150 regions of 10 to 100 us, so meeting must cost about a microsecond: the caller
 * raises `generation`, workers that spin on it see the line change; a counting barrier with a
 * flipping phase ends the region: 0.4 us in all on a quiet 2-core Xeon. But the cores are shared
 * with an HTTP loop and with compilers, so nobody spins for long: a waiter then yields (the peer
 * may be queued behind it on the same core), and after YIELDS of those it sleeps on a futex. A
 * writer makes the wake-up call only when somebody sleeps.
 *
 * Yielding is wrong while compilers and probes run: to the scheduler it is a wish that somebody
 * else may run, and a task of the lowest priority then keeps the core until the next tick,
 * milliseconds in which the whole step waits. A sleeper that is woken displaces such a task at
 * once. So with guests (pool_guests) waiters go to sleep without yielding: on a loaded 2-core
 * server that halved what the search adds to the 99th percentile of the time between tokens.
 *
 * How long to spin adapts: a spin in vain halves the next one (peers that share a core hand it over
 * at once instead of burning 60 us a region), one that paid doubles it.
 *
 * Invariant: `sleepers` is raised before the last look at the word and read after the word is
 * written (both sequentially consistent), so a sleeper is either seen or sees the new value.
 */
#include "engine/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"

enum { SPIN_MIN_NS = 1000, SPIN_MAX_NS = 30000, SPIN_CHECK = 8, YIELDS = 20, LINE = 64 };

/* A word to wait on, on a cache line of its own. */
struct gate {
    _Alignas(LINE) _Atomic uint32_t value;
    _Atomic int32_t sleepers;
    _Atomic int32_t spin_ns; /* how long the next waiter spins */
};

struct pool {
    struct gate generation; /* raised once a region; workers wait on it */
    struct gate phase;      /* raised once a barrier */
    _Alignas(LINE) _Atomic int32_t arrived;
    int32_t size;
    _Atomic bool stop;
    void (*fn)(const void *args, const struct team *team);
    const void *args;
    void *scratch;
    int64_t scratch_bytes;
    pthread_t *thread; /* [size - 1] */
};

static _Atomic int32_t guests; /* of all pools: cores are the machine's */

struct worker {
    struct pool *pool;
    int32_t rank;
};

void pool_guests(int32_t change)
{
    atomic_fetch_add(&guests, change);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool gate_passed(struct gate *g, uint32_t old)
{
    return atomic_load_explicit(&g->value, memory_order_acquire) != old;
}

/* Spins for a while; true if the word changed. */
static bool gate_spin(struct gate *g, uint32_t old)
{
    int32_t spin = atomic_load_explicit(&g->spin_ns, memory_order_relaxed);
    int64_t until = 0, now = 0;
    for (int i = 1; now <= until; i++) {
        if (gate_passed(g, old)) {
            if (spin < SPIN_MAX_NS)
                atomic_store_explicit(&g->spin_ns, 2 * spin, memory_order_relaxed);
            return true;
        }
        relax();
        if (i % SPIN_CHECK == 0) {
            now = clock_ns();
            until = until ? until : now + spin;
        }
    }
    if (spin > SPIN_MIN_NS)
        atomic_store_explicit(&g->spin_ns, spin / 2, memory_order_relaxed);
    return false;
}

static void gate_wait(struct gate *g, uint32_t old)
{
    if (gate_spin(g, old))
        return;
    for (int i = 0; i < YIELDS && atomic_load_explicit(&guests, memory_order_relaxed) == 0; i++) {
        sched_yield();
        if (gate_passed(g, old))
            return;
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == old)
        syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_raise(struct gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void barrier(struct pool *p)
{
    uint32_t phase = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
    if (p->size == 1)
        return;
    if (atomic_fetch_add(&p->arrived, 1) + 1 < p->size) {
        gate_wait(&p->phase, phase);
        return;
    }
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_raise(&p->phase);
}

static void team_barrier(const struct team *team)
{
    barrier(team->host);
}

/* ---- running -------------------------------------------------------------------------------- */

static void run_rank(struct pool *p, int32_t rank)
{
    struct team team = {
        .rank = rank, .size = p->size, .barrier = team_barrier, .scratch = p->scratch, .host = p};
    p->fn(p->args, &team);
    barrier(p);
}

static void *work(void *arg)
{
    struct worker w = *(struct worker *)arg;
    free(arg);
    pthread_setname_np(pthread_self(), "whet-pool");
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&w.pool->generation, seen);
        if (atomic_load_explicit(&w.pool->stop, memory_order_relaxed))
            return NULL;
        run_rank(w.pool, w.rank);
    }
}

void pool_run(struct pool *p, void (*fn)(const void *args, const struct team *team),
              const void *args, int64_t scratch_bytes)
{
    if (scratch_bytes > p->scratch_bytes) {
        free(p->scratch);
        p->scratch = xaligned((size_t)scratch_bytes);
        p->scratch_bytes = scratch_bytes;
    }
    p->fn = fn;
    p->args = args;
    if (p->size > 1)
        gate_raise(&p->generation);
    run_rank(p, 0);
}

struct pool *pool_open(int32_t size, int64_t scratch_bytes)
{
    struct pool *p = xaligned(sizeof *p);
    p->size = size < 1 ? 1 : size;
    p->generation.spin_ns = p->phase.spin_ns = SPIN_MAX_NS;
    p->scratch_bytes = scratch_bytes > LINE ? scratch_bytes : LINE;
    p->scratch = xaligned((size_t)p->scratch_bytes);
    p->thread = xcalloc((size_t)p->size, sizeof *p->thread);
    for (int32_t i = 1; i < p->size; i++) {
        struct worker *w = xmalloc(sizeof *w);
        *w = (struct worker){p, i};
        if (pthread_create(&p->thread[i - 1], NULL, work, w) != 0) {
            free(w);
            p->size = i; /* fewer threads than asked for: still a pool */
        }
    }
    return p;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    gate_raise(&p->generation);
    for (int32_t i = 1; i < p->size; i++)
        pthread_join(p->thread[i - 1], NULL);
    free(p->thread);
    free(p->scratch);
    free(p);
}

int32_t pool_size(const struct pool *p)
{
    return p->size;
}
