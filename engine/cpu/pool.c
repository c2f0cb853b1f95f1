/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - threads that meet twice a region: once to start, once to finish.
 *
 * A step is some 150 regions of 10 to 100 us, so meeting must cost about a microsecond: the caller
 * raises `generation`, workers that spin on it see the line change; a counting barrier with a
 * flipping phase ends the region: 0.4 us in all on a quiet 2-core Xeon. But the cores are shared
 * with an HTTP loop and with compilers, so nobody spins for long (gate.h).
 */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "config/err.h"
#include "engine/cpu/gate.h"
#include "engine/crash.h"

enum { LINE = GATE_LINE };

struct pool {
    struct gate generation; /* raised once a region; workers wait on it */
    struct gate phase;      /* raised once a barrier */
    struct gate_wait generation_wait, phase_wait;
    _Alignas(LINE) _Atomic int32_t arrived;
    _Alignas(LINE) int32_t taken[TEAM_COUNTS]; /* team.taken */
    _Alignas(LINE) int32_t size;
    int32_t rested_ns; /* what workers spun before pool_rest(); 0: they do */
    _Atomic bool stop;
    void (*fn)(const void *args, const struct team *team);
    const void *args;
    void *scratch;
    int64_t scratch_bytes;
    pthread_t *thread; /* [size - 1] */
    bool pinned;       /* caller's: the ranks keep to cores of their own, */
    cpu_set_t allowed; /* of these */
};

struct worker {
    struct pool *pool;
    int32_t rank;
};

static void barrier(struct pool *p)
{
    uint32_t phase = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
    if (p->size == 1)
        return;
    if (atomic_fetch_add(&p->arrived, 1) + 1 < p->size) {
        gate_wait(&p->phase, phase, &p->phase_wait, 0);
        return;
    }
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_raise(&p->phase, false);
}

static void team_barrier(const struct team *team)
{
    barrier(team->host);
}

/* ---- running -------------------------------------------------------------------------------- */

static void run_rank(struct pool *p, int32_t rank)
{
    struct team team = {.rank = rank,
                        .size = p->size,
                        .barrier = team_barrier,
                        .scratch = p->scratch,
                        .host = p,
                        .taken = p->taken};
    p->fn(p->args, &team);
    barrier(p);
}

static void *work(void *arg)
{
    struct worker w = *(struct worker *)arg;
    free(arg);
    pthread_setname_np(pthread_self(), "whet-pool");
    crash_thread();
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&w.pool->generation, seen, &w.pool->generation_wait, 0);
        if (atomic_load_explicit(&w.pool->stop, memory_order_relaxed))
            break;
        run_rank(w.pool, w.rank);
    }
    crash_thread_end();
    return NULL;
}

void pool_run(struct pool *p, void (*fn)(const void *args, const struct team *team),
              const void *args, int64_t scratch_bytes)
{
    if (p->rested_ns > 0)
        atomic_store_explicit(&p->generation_wait.spin_ns, p->rested_ns, memory_order_relaxed);
    p->rested_ns = 0;
    if (scratch_bytes > p->scratch_bytes) {
        free(p->scratch);
        p->scratch = xaligned((size_t)scratch_bytes);
        p->scratch_bytes = scratch_bytes;
    }
    p->fn = fn;
    p->args = args;
    for (int i = 0; i < TEAM_COUNTS; i++)
        __atomic_store_n(&p->taken[i], 0, __ATOMIC_RELAXED);
    if (p->size > 1)
        gate_raise(&p->generation, false);
    run_rank(p, 0);
}

struct pool *pool_open(int32_t size, int64_t scratch_bytes)
{
    struct pool *p = xaligned(sizeof *p);
    p->size = size < 1 ? 1 : size;
    p->generation_wait.spin_ns = p->phase_wait.spin_ns = GATE_SPIN_MAX_NS;
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
    gate_raise(&p->generation, false);
    for (int32_t i = 1; i < p->size; i++)
        pthread_join(p->thread[i - 1], NULL);
    free(p->thread);
    free(p->scratch);
    free(p);
}

void pool_rest(struct pool *p)
{
    if (p->rested_ns == 0)
        p->rested_ns = atomic_exchange(&p->generation_wait.spin_ns, 0);
}

/* ---- cores ---------------------------------------------------------------------------------- */

/* The rank's thread to the core that has as many allowed ones before it as the rank's number says.
 */
static void pin_rank(const void *args, const struct team *team)
{
    const cpu_set_t *allowed = args;
    cpu_set_t mine;
    int nth = team->rank % CPU_COUNT(allowed);
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && nth-- == 0)
            CPU_SET(cpu, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

static void unpin_rank(const void *args, const struct team *team)
{
    (void)team;
    sched_setaffinity(0, sizeof(cpu_set_t), args);
}

void pool_pin(struct pool *p)
{
    cpu_set_t allowed;
    if (p->pinned || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_COUNT(&allowed))
        return;
    p->allowed = allowed;
    p->pinned = true;
    pool_run(p, pin_rank, &p->allowed, 0);
}

void pool_unpin(struct pool *p)
{
    if (p->pinned)
        pool_run(p, unpin_rank, &p->allowed, 0);
    p->pinned = false;
}

int32_t pool_size(const struct pool *p)
{
    return p->size;
}
