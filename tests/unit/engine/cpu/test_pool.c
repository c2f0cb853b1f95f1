/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/pool: everybody runs, everybody meets, nobody is lost asleep. */
#include "tests/unit/unit.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "config/cores.h"
#include "config/process.h"
#include "engine/cpu/pool.h"

enum { ROUNDS = 2000, RANKS = 5, MANY = 73 };

struct job {
    _Atomic int32_t ran[MANY], size_seen;
    _Atomic int32_t before, late;
    int32_t meetings;
};

static void count_rank(const void *args, const struct team *team)
{
    struct job *j = (struct job *)args;
    atomic_fetch_add(&j->ran[team->rank], 1);
    atomic_store(&j->size_seen, team->size);
}

static void pool_runs_every_rank_once_a_call(void **state)
{
    (void)state;
    struct pool *p = pool_open(RANKS, 0);
    struct job j = {0};
    for (int i = 0; i < ROUNDS; i++)
        pool_run(p, count_rank, &j, 0);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(j.ran[r], ROUNDS);
    assert_int_equal(j.size_seen, RANKS);
    assert_int_equal(pool_size(p), RANKS);
    pool_close(p);
}

/* Ranks take numbers below TAKEN by one count; each number is somebody's, and only one's. */
enum { TAKEN = 50 };

static void take(const void *args, const struct team *team)
{
    _Atomic int32_t *times = (_Atomic int32_t *)args;
    for (int c = 0; c < TEAM_COUNTS; c++)
        for (int n; (n = __atomic_fetch_add(&team->taken[c], 1, __ATOMIC_RELAXED)) < TAKEN;)
            atomic_fetch_add(&times[n], 1);
}

static void counts_begin_at_0_in_every_call(void **state)
{
    (void)state;
    struct pool *p = pool_open(RANKS, 0);
    _Atomic int32_t times[TAKEN] = {0};
    for (int i = 1; i <= ROUNDS / 10; i++) {
        pool_run(p, take, times, 0);
        for (int n = 0; n < TAKEN; n++)
            assert_int_equal(times[n], i * TEAM_COUNTS);
    }
    pool_close(p);
}

/* After the k-th barrier everybody must have arrived at it: `before` counts arrivals. */
static void meet(const void *args, const struct team *team)
{
    struct job *j = (struct job *)args;
    for (int i = 1; i <= j->meetings; i++) {
        atomic_fetch_add(&j->before, 1);
        team->barrier(team);
        if (atomic_load(&j->before) < i * team->size)
            atomic_fetch_add(&j->late, 1);
        team->barrier(team);
    }
}

static void barrier_lets_nobody_through_early(void **state)
{
    (void)state;
    struct pool *p = pool_open(RANKS, 0); /* more ranks than cores here: the yielding paths run */
    struct job j = {.meetings = 200};
    pool_run(p, meet, &j, 0);
    assert_int_equal(j.before, 200 * RANKS);
    assert_int_equal(j.late, 0);
    pool_close(p);
}

/* One group, two levels of them and three, whole and not. Whoever is not told of a region, or is
 * told of it twice, or leaves a barrier too early, is seen. */
static void many_ranks_meet_in_groups(void **state)
{
    (void)state;
    const int32_t sizes[] = {7, 8, 9, 16, 17, 64, 65, MANY};
    enum { REGIONS = 20, MEETINGS = 10 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct pool *p = pool_open(sizes[s], 0);
        struct job j = {.meetings = MEETINGS};
        for (int i = 1; i <= REGIONS; i++) {
            pool_run(p, count_rank, &j, 0);
            for (int r = 0; r < MANY; r++)
                assert_int_equal(j.ran[r], r < sizes[s] ? i : 0);
            if (i % 4 == 0) { /* once more changes nothing */
                pool_rest(p);
                pool_rest(p);
            }
            atomic_store(&j.before, 0);
            pool_run(p, meet, &j, 0);
            assert_int_equal(j.before, MEETINGS * sizes[s]);
        }
        assert_int_equal(j.late, 0);
        assert_int_equal(j.size_seen, sizes[s]);
        pool_close(p);
    }
}

static void pool_wakes_workers_that_fell_asleep(void **state)
{
    (void)state;
    struct pool *p = pool_open(3, 0);
    struct job j = {0};
    for (int i = 0; i < 20; i++) {
        struct timespec ms5 = {0, 5000000}; /* far beyond the spinning */
        nanosleep(&ms5, NULL);
        pool_run(p, count_rank, &j, 0);
        assert_int_equal(j.ran[2], i + 1);
    }
    pool_close(p);
}

static void fill_scratch(const void *args, const struct team *team)
{
    int64_t share = *(const int64_t *)args / team->size;
    memset((char *)team->scratch + team->rank * share, team->rank + 1, (size_t)share);
    team->barrier(team);
    if (team->rank == 0)
        ((char *)team->scratch)[0] = ((char *)team->scratch)[share] == 2 ? 77 : 0;
}

static void read_scratch(const void *args, const struct team *team)
{
    if (team->rank == 0)
        *(char *)args = *(char *)team->scratch;
}

static void scratch_is_shared_aligned_and_grows(void **state)
{
    (void)state;
    struct pool *p = pool_open(2, 0);
    for (int64_t bytes = 128; bytes <= 1 << 20; bytes *= 8) {
        char first = 0;
        pool_run(p, fill_scratch, &bytes, bytes);
        pool_run(p, read_scratch, &first, 0);
        assert_int_equal(first, 77);
    }
    pool_close(p);
}

/* Nobody yields then: all who wait long enough sleep, and all must be woken. */
static void pool_meets_beside_processes_of_low_priority(void **state)
{
    (void)state;
    struct pool *p = pool_open(RANKS, 0);
    struct job j = {.meetings = 200};
    process_guests_add(1);
    pool_run(p, meet, &j, 0);
    process_guests_add(-1);
    assert_int_equal(j.before, 200 * RANKS);
    assert_int_equal(j.late, 0);
    pool_close(p);
}

static void pool_of_one_needs_no_thread(void **state)
{
    (void)state;
    struct pool *p = pool_open(1, 0);
    struct job j = {.meetings = 10};
    pool_run(p, meet, &j, 0);
    assert_int_equal(j.before, 10);
    pool_close(p);
}

struct cores {
    int32_t allowed[RANKS], core[RANKS];
};

static void note_cores(const void *args, const struct team *team)
{
    struct cores *c = (struct cores *)args;
    struct cores_set set;
    assert_true(cores_affinity(&set));
    c->allowed[team->rank] = cores_count(&set);
    c->core[team->rank] = cores_nth(&set, 0);
}

static void pinned_ranks_keep_to_cores_of_their_own(void **state)
{
    (void)state;
    const int32_t cores = cores_allowed();
    struct pool *p = pool_open(cores < RANKS ? cores : RANKS, 0);
    struct cores c = {{0}, {0}};
    pool_pin(p);
    for (int round = 0; round < 2; round++, pool_pin(p)) { /* once more changes nothing */
        pool_run(p, note_cores, &c, 0);
        for (int32_t r = 0; r < pool_size(p); r++) {
            assert_int_equal(c.allowed[r], 1);
            assert_true(r == 0 || c.core[r] > c.core[r - 1]);
        }
    }
    pool_unpin(p);
    pool_run(p, note_cores, &c, 0);
    for (int32_t r = 0; r < pool_size(p); r++)
        assert_int_equal(c.allowed[r], cores);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_runs_every_rank_once_a_call),
        cmocka_unit_test(counts_begin_at_0_in_every_call),
        cmocka_unit_test(barrier_lets_nobody_through_early),
        cmocka_unit_test(many_ranks_meet_in_groups),
        cmocka_unit_test(pool_wakes_workers_that_fell_asleep),
        cmocka_unit_test(scratch_is_shared_aligned_and_grows),
        cmocka_unit_test(pool_meets_beside_processes_of_low_priority),
        cmocka_unit_test(pool_of_one_needs_no_thread),
        cmocka_unit_test(pinned_ranks_keep_to_cores_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
