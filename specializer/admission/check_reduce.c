/* SPDX-License-Identifier: Apache-2.0 */
/* check_reduce.c - ranks in processes of their own, all sealed, on one area made for them.
 *
 * Each rank is a runner with cases of its own: the same residual, other x. A thread of this process
 * drives each, so that ranks are as far apart as they like: one that has ended a call begins the
 * next at once, while another is still in the last, which finds a place or a flag that is used too
 * early. Rounds differ in who is late, between calls and in the middle of them (runner_child.c), in
 * the teams, which need not be the same on all ranks, and in the kinds of numbers. The calls of a
 * round have different sizes, so that slices of one call meet those of another.
 *
 * After a round all ranks must have the same bits, those of the sum in the order of ranks and the
 * residual last, computed here; walls, inputs and the area's own walls must be whole. At the end
 * one rank never comes: the others must come back once they are told that the world is over.
 *
 * Rounds go on with the area as they find it. It was used by other kernels before each, so a kernel
 * that counts calls by itself is soon wrong; in the second half numbers are about to wrap.
 */
#include "specializer/admission/check_reduce.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "engine/cpu/reduce_area.h"
#include "specializer/admission/runner.h"
#include "specializer/candidate/hash.h"

enum {
    CALLS = 8,
    ROUNDS = 12,
    SHORT_ROUNDS = 4,
    SMALL_TEAM = 3, /* the largest that is tried whatever the real size is */
    LATE_US = 2000,
    LINGER_US = 2000,
    LONELY_MS = 30
};
/* CPU seconds. An honest rank that waits spends some until its peer has had a core, which a busy
 * machine gives to each in turn; one that is told that the world is over spends none to speak of.
 */
static const double watchdog_s = 10, lonely_s = 3;
static const uint32_t some_calls = 1000, others_calls = 96, near_wrap = UINT32_MAX / 2 - 3;

struct party;

struct rank {
    struct party *party;
    int32_t number;
    struct kernel_case *cases[CALLS];
    struct reduce_area area;
    struct guarded calls; /* the rank's count of calls: this process adds to it */
    struct runner *runner;
    pthread_t thread;
    struct err err;
    int rc;
};

struct party {
    const struct check_request *q;
    int32_t world, calls; /* in a round */
    int32_t m[CALLS];
    struct guarded memory, over;
    struct rank rank[CHECK_RANKS_MOST];
    int round;
    bool lonely; /* a rank stays away */
};

/* ---- in a runner ---------------------------------------------------------------------------- */

/* In every other eight calls a rank is held back, by chance, for so long that all others come as
 * far as they can: when it has said that its numbers are there, or has met another rank, and so is
 * about to read. A sealed process cannot sleep. */
static void linger(const struct reduce_area *a, int32_t slice, uint64_t salt)
{
    uint32_t calls = *a->calls;
    uint64_t dice =
        hash_mix(((uint64_t)calls << 16) + (uint64_t)slice * 256 + (uint64_t)a->rank * 4 + salt);
    if (calls / 8 % 2 == 0 || dice % 4 != 0)
        return;
    int64_t until = clock_ns() + (int64_t)(dice >> 8) % (LINGER_US * 1000);
    while (clock_ns() < until)
        sched_yield();
}

static int wait_there(const struct reduce_area *a, int32_t rank, int32_t slice, uint32_t meeting)
{
    const uint32_t *flag = a->flag[rank] + slice * REDUCE_FLAG;
    while (!REDUCE_CAME(__atomic_load_n(flag, __ATOMIC_SEQ_CST), meeting)) {
        if (__atomic_load_n(a->over, __ATOMIC_SEQ_CST))
            return -1;
        sched_yield();
    }
    linger(a, slice, 1);
    return 0;
}

/* Nobody sleeps, but all ranks are told that somebody does. */
static void wake_there(const struct reduce_area *a, int32_t slice)
{
    linger(a, slice, 2);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static const enum fill fills[] = {FILL_NORMAL, FILL_LARGE, FILL_DENORMAL, FILL_OUTLIER,
                                  FILL_SMALL,  FILL_ZERO,  FILL_SHIFTED,  FILL_BITS};

static void fill_round(struct party *p)
{
    for (int32_t r = 0; r < p->world; r++)
        for (int i = 0; i < p->calls; i++) {
            enum fill f = fills[(p->round + i) % (int)(sizeof fills / sizeof *fills)];
            uint64_t seed = hash_mix(p->q->seed + (uint64_t)(p->round * CALLS + i) * 64);
            case_refill(p->rank[r].cases[i], f, seed + (uint64_t)r);
            case_poison(p->rank[r].cases[i]);
        }
}

/* The slot's largest and smallest, and what lies between. */
static void choose_sizes(struct party *p)
{
    const struct check_range *g = &p->q->range;
    for (int i = 0; i < p->calls; i++) {
        int32_t span = g->m_to - g->m_from;
        p->m[i] = i % 3 == 0 ? g->m_to : i % 3 == 1 ? g->m_from : g->m_from + span * i / p->calls;
    }
}

static void open_rank(struct party *p, int32_t number)
{
    struct rank *k = &p->rank[number];
    k->party = p;
    k->number = number;
    guarded_open(&k->calls, sizeof(uint32_t), true);
    reduce_area_aim(&k->area, p->memory.data, number, p->world);
    k->area.calls = k->calls.data;
    k->area.over = p->over.data;
    k->area.wait = wait_there;
    k->area.wake = wake_there;
    for (int i = 0; i < p->calls; i++) {
        struct case_shape shape = {.region = REGION_REDUCE, .m = p->m[i]};
        k->cases[i] = case_random(p->q->model, &shape, FILL_NORMAL, false, true, (uint64_t)i);
        struct reduce_args *a = case_args(k->cases[i]);
        const struct reduce_args *first = case_args(p->rank[0].cases[i]);
        a->area = &k->area;
        a->residual = first->residual;
    }
}

static void close_rank(struct rank *k)
{
    runner_close(k->runner);
    for (int i = 0; i < CALLS; i++)
        case_free(k->cases[i]);
    guarded_close(&k->calls);
}

/* As many as will serve. */
static int32_t team_real(const struct party *p)
{
    return p->q->threads < RUNNER_TEAM_MAX ? p->q->threads : RUNNER_TEAM_MAX;
}

static int32_t team_most(const struct party *p)
{
    return team_real(p) > SMALL_TEAM ? team_real(p) : SMALL_TEAM;
}

/* Its own process, which has everything that is mapped now. */
static int start_rank(struct party *p, struct rank *k, struct err *err)
{
    struct runner_options o = {.object = p->q->object,
                               .cases = k->cases,
                               .n = p->calls,
                               .team_max = team_most(p),
                               .must_seal = p->q->must_seal,
                               .watchdog_s = watchdog_s};
    k->runner = runner_open(&o, err);
    if (!k->runner)
        return -1;
    const struct runner_facts *f = runner_facts(k->runner);
    if (f->region != REGION_REDUCE)
        return err_set(err, "computes region %d and is meant for %d", f->region, REGION_REDUCE);
    if (f->m_max < p->q->range.m_to || f->packs)
        return err_set(err, "takes %d tokens where the slot has %d, or repacks weights", f->m_max,
                       p->q->range.m_to);
    return runner_scratch(k->runner, p->q->range.m_to, team_most(p), err) == 0
               ? 0
               : err_set(err, "a kernel of reduce has no use for scratch");
}

/* ---- rounds --------------------------------------------------------------------------------- */

static void pause_us(uint64_t us)
{
    struct timespec t = {0, (long)us * 1000};
    if (us > 0)
        nanosleep(&t, NULL);
}

/* Teams of the real size, 1, 2 and 3, by turns, and other turns on other ranks. */
static int32_t team_of(const struct party *p, const struct rank *k)
{
    int32_t real = team_real(p);
    const int32_t sizes[] = {real, real, 2, 1, SMALL_TEAM, real};
    int turn = p->round < 2 ? 0 : p->round + k->number;
    return sizes[turn % (int)(sizeof sizes / sizeof *sizes)];
}

/* One rank through a round. The one that is late this time sleeps before its calls; every other
 * round, all are held back within them. */
static void *drive(void *arg)
{
    struct rank *k = arg;
    struct party *p = k->party;
    bool late = p->round % (p->world + 1) == k->number;
    uint32_t *calls = k->calls.data;
    k->rc = 0;
    for (int i = 0; i < p->calls && k->rc == 0; i++) {
        uint64_t dice = hash_mix(p->q->seed ^ (uint64_t)(p->round * 1024 + i * 16 + k->number));
        struct runner_call call = {.at = i,
                                   .m = p->m[i],
                                   .size = team_of(p, k),
                                   .skew = p->round % 2 ? dice | 1 : 0,
                                   .watchdog_s = p->lonely ? lonely_s : watchdog_s};
        if (late)
            pause_us(dice % LATE_US);
        k->rc = runner_call(k->runner, &call, &k->err);
        ++*calls;
    }
    if (k->rc) /* nobody waits for it */
        __atomic_store_n((uint32_t *)p->over.data, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Ranks from `first` on. The first of them that fails says why: what others say follows from it,
 * unless they say that they were killed for waiting. */
static int drive_all(struct party *p, int32_t first, struct err *err)
{
    int rc = 0;
    for (int32_t r = first; r < p->world; r++)
        if (pthread_create(&p->rank[r].thread, NULL, drive, &p->rank[r]))
            abort();
    for (int32_t r = first; r < p->world; r++) {
        pthread_join(p->rank[r].thread, NULL);
        if (p->rank[r].rc && rc == 0) {
            *err = p->rank[r].err;
            rc = err_prefix(err, "rank %d of %d, round %d", r, p->world, p->round);
        }
    }
    return rc;
}

/* In float, one addition after the other, as kernels/args.h says. */
static void sum_ranks(const struct party *p, int i, float *sum)
{
    const struct reduce_args *first = case_args(p->rank[0].cases[i]);
    int64_t n = (int64_t)p->m[i] * first->n;
    memcpy(sum, first->x, (size_t)n * sizeof *sum);
    for (int32_t r = 1; r < p->world; r++) {
        const struct reduce_args *a = case_args(p->rank[r].cases[i]);
        for (int64_t k = 0; k < n; k++)
            sum[k] += a->x[k];
    }
    for (int64_t k = 0; k < n; k++)
        sum[k] += first->residual[k];
}

static int compare_call(const struct party *p, int i, struct err *err)
{
    const struct reduce_args *first = case_args(p->rank[0].cases[i]);
    int64_t n = (int64_t)p->m[i] * first->n;
    float *sum = xmalloc((size_t)n * sizeof *sum);
    int rc = 0;
    sum_ranks(p, i, sum);
    for (int32_t r = 0; r < p->world && rc == 0; r++) {
        const struct reduce_args *a = case_args(p->rank[r].cases[i]);
        const char *damage = case_damage(p->rank[r].cases[i]);
        int64_t at = 0;
        while (at < n && memcmp(&a->out[at], &sum[at], sizeof *sum) == 0)
            at++;
        if (damage)
            rc = err_set(err, "%s", damage);
        else if (at < n)
            rc = err_set(err,
                         "element %lld is %.9g, the sum in the order of ranks is %.9g (a place "
                         "or a flag used too early or too late, or another order)",
                         (long long)at, (double)a->out[at], (double)sum[at]);
        if (rc)
            err_prefix(err, "rank %d of %d, round %d, call %d of %d tokens", r, p->world, p->round,
                       i, p->m[i]);
    }
    free(sum);
    return rc;
}

static int one_round(struct party *p, struct check_result *result, struct err *err)
{
    fill_round(p);
    int rc = drive_all(p, 0, err);
    for (int i = 0; i < p->calls && rc == 0; i++)
        rc = compare_call(p, i, err);
    if (rc == 0 && !guarded_intact(&p->memory))
        rc = err_set(err, "wrote outside the ranks' area");
    result->runs += p->calls * p->world;
    return rc;
}

static void *end_world(void *arg)
{
    struct party *p = arg;
    pause_us(LONELY_MS * 1000);
    __atomic_store_n((uint32_t *)p->over.data, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Rank 0 stays away; the world is over after 30 ms. */
static int one_never_comes(struct party *p, struct err *err)
{
    pthread_t who;
    p->round++;
    p->lonely = true;
    p->calls = 1;
    fill_round(p);
    if (pthread_create(&who, NULL, end_world, p))
        abort();
    int rc = drive_all(p, 1, err);
    pthread_join(who, NULL);
    return rc ? err_prefix(err, "a rank that never comes") : 0;
}

/* As if so many calls of other kernels had been made in the area. */
static void calls_before(struct party *p, uint32_t calls)
{
    for (int32_t r = 0; r < p->world; r++) {
        *(uint32_t *)p->rank[r].calls.data = calls;
        for (int i = 0; i < REDUCE_SLICES; i++)
            p->rank[r].area.flag[r][i * REDUCE_FLAG] = REDUCE_MEETING(calls, 1);
    }
}

static int rounds(struct party *p, struct check_result *result, struct err *err)
{
    int all = p->q->full ? ROUNDS : SHORT_ROUNDS, rc = 0;
    for (p->round = 0; p->round < all && rc == 0; p->round++) {
        uint32_t ended = *(const uint32_t *)p->rank[0].calls.data;
        calls_before(p, p->round == 0         ? some_calls
                        : p->round == all / 2 ? near_wrap
                                              : ended + others_calls);
        rc = one_round(p, result, err);
    }
    return rc ? rc : one_never_comes(p, err);
}

int check_reduce(const struct check_request *q, struct check_result *result, struct err *err)
{
    struct party *p = xcalloc(1, sizeof *p);
    int rc = 0;
    memset(result, 0, sizeof *result);
    comparison_start(&result->comparison);
    p->q = q;
    p->world = q->ranks < 2 ? 2 : q->ranks < CHECK_RANKS_MOST ? q->ranks : CHECK_RANKS_MOST;
    p->calls = CALLS;
    choose_sizes(p);
    guarded_open(&p->memory, reduce_area_bytes(p->world), true);
    guarded_open(&p->over, sizeof(uint32_t), true);
    for (int32_t r = 0; r < p->world; r++) {
        open_rank(p, r);
        *p->rank[r].area.sleepers[r] = 1;
    }
    result->sealed = true;
    for (int32_t r = 0; r < p->world && rc == 0; r++) {
        rc = start_rank(p, &p->rank[r], err);
        result->sealed &= p->rank[r].runner && runner_sealed(p->rank[r].runner);
    }
    if (rc == 0)
        rc = rounds(p, result, err);
    result->cases = p->round * CALLS;
    result->comparison.bit_equal = rc == 0;
    for (int32_t r = 0; r < p->world; r++)
        close_rank(&p->rank[r]);
    guarded_close(&p->memory);
    guarded_close(&p->over);
    free(p);
    return rc;
}
