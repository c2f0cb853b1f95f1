/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - threads that meet twice a region: once to start, once to finish.
 *
 * A step is some 150 regions of 10 to 100 us, so meeting must cost about a microsecond. Ranks are
 * in groups of FAN, groups in groups of FAN again: a tree, of one group for FAN ranks or fewer. To
 * start a region the caller raises the gates of the groups that it leads, and the first rank of a
 * group raises those of the groups below. To end one, the last to come to its group goes on to the
 * group above, and each raises the gate that it had passed on its way back down.
 *
 * With one group that is a word that all spin on and a counting barrier: 0.4 us in all on a quiet
 * 2-core Xeon. With one group of N the N additions to the counter are N transfers of one cache
 * line, one after the other, and waking N sleepers is the caller's work alone; in a tree they are
 * FAN for each level. Ranks whose numbers are neighbours are in a group: pinned, they are on cores
 * that are neighbours, which on many processors share a cache.
 *
 * The cores are shared with an HTTP loop and with compilers, so nobody spins for long (gate.h).
 */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "config/cores.h"
#include "config/err.h"
#include "engine/cpu/gate.h"
#include "engine/crash.h"

enum { LINE = GATE_LINE, FAN = 8 };

/* Up to FAN ranks that meet, or up to FAN groups. */
struct group {
    struct gate start; /* raised once a region, by who leads the group; the others wait on it */
    struct gate end;   /* raised once a barrier, by who came last */
    _Alignas(LINE) _Atomic int32_t arrived;
    _Alignas(LINE) struct gate_wait start_wait;
    struct gate_wait end_wait;
    struct group *above; /* NULL: of all */
    int32_t size;        /* of its members, those that have ranks */
    int32_t rested_ns;   /* what its members spun before pool_rest(); 0: they do */
};

/* What the caller writes for each region comes first, in two lines that processors fetch together:
 * apart from each other they cost a region of two threads 50 ns more. */
struct pool {
    _Alignas(2 * LINE) int32_t taken[TEAM_COUNTS]; /* team.taken */
    _Alignas(LINE) int32_t size, groups;
    bool rested;
    _Atomic bool stop;
    void (*fn)(const void *args, const struct team *team);
    const void *args;
    void *scratch;
    int64_t scratch_bytes;
    pthread_t *thread;                  /* [size - 1] */
    _Alignas(LINE) struct group *group; /* the lowest level first, which is that of ranks */
    bool pinned;                        /* caller's: the ranks keep to cores of their own, */
    struct cores_set allowed;           /* of these */
};

struct worker {
    struct pool *pool;
    int32_t rank;
};

/* ---- meeting -------------------------------------------------------------------------------- */

static struct group *group_of(const struct pool *p, int32_t rank)
{
    return &p->group[rank / FAN];
}

/* Returns when all ranks of the group have come, and of those above. */
static void meet(struct group *g)
{
    uint32_t phase = atomic_load_explicit(&g->end.value, memory_order_relaxed);
    if (atomic_fetch_add(&g->arrived, 1) + 1 < g->size) {
        gate_wait(&g->end, phase, &g->end_wait, 0);
        return;
    }
    atomic_store_explicit(&g->arrived, 0, memory_order_relaxed);
    if (g->above)
        meet(g->above);
    gate_raise(&g->end, false);
}

static void barrier(struct pool *p, int32_t rank)
{
    if (p->size > 1)
        meet(group_of(p, rank));
}

/* The group whose start the rank waits for: that above the groups that it leads itself. */
static struct group *waits_in(const struct pool *p, int32_t rank)
{
    struct group *g = group_of(p, rank);
    for (int32_t place = rank; place % FAN == 0 && g->above; place /= FAN)
        g = g->above;
    return g;
}

/* Starts `g` and what is above it, from above, up to but not `started` (NULL: all). */
static void start(struct group *g, const struct group *started)
{
    if (!g || g == started)
        return;
    start(g->above, started);
    gate_raise(&g->start, false);
}

static void team_barrier(const struct team *team)
{
    barrier(team->host, team->rank);
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
    barrier(p, rank);
}

static void *work(void *arg)
{
    struct worker w = *(struct worker *)arg;
    free(arg);
    pthread_setname_np(pthread_self(), "whet-pool");
    crash_thread();
    struct group *above = waits_in(w.pool, w.rank);
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&above->start, seen, &above->start_wait, 0);
        start(group_of(w.pool, w.rank), above);
        if (atomic_load_explicit(&w.pool->stop, memory_order_relaxed))
            break;
        run_rank(w.pool, w.rank);
    }
    crash_thread_end();
    return NULL;
}

static void resume(struct pool *p)
{
    for (int32_t i = 0; i < p->groups; i++) {
        struct group *g = &p->group[i];
        atomic_store_explicit(&g->start_wait.spin_ns, g->rested_ns, memory_order_relaxed);
    }
}

void pool_run(struct pool *p, void (*fn)(const void *args, const struct team *team),
              const void *args, int64_t scratch_bytes)
{
    if (p->rested)
        resume(p);
    p->rested = false; /* each time: the sooner the others' copies of this line go the better */
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
        start(group_of(p, 0), NULL);
    run_rank(p, 0);
}

/* ---- opening -------------------------------------------------------------------------------- */

static int32_t groups_for(int32_t members)
{
    return (members + FAN - 1) / FAN;
}

/* All levels of the tree, sizes aside. */
static void open_groups(struct pool *p)
{
    int32_t all = groups_for(p->size);
    for (int32_t n = all; n > 1; n = groups_for(n))
        all += groups_for(n);
    p->groups = all;
    p->group = xaligned((size_t)all * sizeof *p->group);
    for (int32_t from = 0, n = groups_for(p->size); n > 1; from += n, n = groups_for(n))
        for (int32_t i = 0; i < n; i++)
            p->group[from + i].above = &p->group[from + n + i / FAN];
    for (int32_t i = 0; i < all; i++)
        p->group[i].start_wait.spin_ns = p->group[i].end_wait.spin_ns = GATE_SPIN_MAX_NS;
}

/* Who has ranks, of as many threads as there are. */
static void size_groups(struct pool *p)
{
    for (int32_t rank = 0; rank < p->size; rank++)
        for (struct group *g = group_of(p, rank); g && g->size++ == 0;)
            g = g->above;
}

struct pool *pool_open(int32_t size, int64_t scratch_bytes)
{
    struct pool *p = xaligned_to(_Alignof(struct pool), sizeof *p);
    memset(p, 0, sizeof *p);
    p->size = size < 1 ? 1 : size;
    open_groups(p);
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
    size_groups(p);
    return p;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    start(group_of(p, 0), NULL);
    for (int32_t i = 1; i < p->size; i++)
        pthread_join(p->thread[i - 1], NULL);
    free(p->thread);
    free(p->scratch);
    free(p->group);
    free(p);
}

void pool_rest(struct pool *p)
{
    for (int32_t i = 0; i < p->groups && !p->rested; i++)
        p->group[i].rested_ns = atomic_exchange(&p->group[i].start_wait.spin_ns, 0);
    p->rested = true;
}

/* ---- cores ---------------------------------------------------------------------------------- */

/* The rank's thread to the core that has as many allowed ones before it as the rank's number says.
 */
static void pin_rank(const void *args, const struct team *team)
{
    const struct cores_set *allowed = args;
    struct cores_set mine = {{0}};
    cores_add(&mine, cores_nth(allowed, team->rank % cores_count(allowed)));
    cores_keep_to(&mine);
}

static void unpin_rank(const void *args, const struct team *team)
{
    (void)team;
    cores_keep_to(args);
}

void pool_pin(struct pool *p)
{
    struct cores_set allowed;
    if (p->pinned || !cores_affinity(&allowed) || cores_count(&allowed) == 0)
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
