/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of reduce are tried with, and what is found out about them: ranks whose runners are
 * functions of this program, each called on the thread that drives it. Compiled kernels, good and
 * bad ones, in sealed processes are in tests/kernels.
 */
#include "tests/unit/unit.h"

#include "specializer/admission/check_reduce.c"

#include "tests/unit/specializer/shapes.h"

/* ---- runners that are functions ---------------------------------------------------------------
 */

enum { CALLS_MOST = 512 };

struct seen {
    int32_t rank, round_call, m, size;
    uint32_t calls;
    uint64_t skew;
    double watchdog_s;
    bool lonely;
    uint64_t x, residual; /* hashes */
};

typedef int kernel_fn(const struct reduce_args *a, struct err *err);

static struct {
    kernel_fn *kernel;
    struct runner_facts facts;
    int64_t scratch;
    int32_t unsealed, broken; /* ranks; -1: none */
    int opens, closes;
    int32_t scratch_m, scratch_size, team_max;
    bool must_seal;
    pthread_mutex_t lock;
    struct seen seen[CALLS_MOST];
    int n;
    const char *object;
} play = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct runner {
    int32_t rank;
    struct runner_options o;
};

struct runner *__wrap_runner_open(const struct runner_options *o, struct err *err);
struct runner *__wrap_runner_open(const struct runner_options *o, struct err *err)
{
    if (play.opens == play.broken) {
        err_set(err, "does not load");
        return NULL;
    }
    struct runner *r = xcalloc(1, sizeof *r);
    r->rank = play.opens++;
    r->o = *o;
    play.team_max = o->team_max;
    play.must_seal = o->must_seal;
    play.object = o->object;
    assert_int_equal(o->n, CALLS);
    assert_true(o->watchdog_s == watchdog_s);
    return r;
}

void __wrap_runner_close(struct runner *r);
void __wrap_runner_close(struct runner *r)
{
    play.closes += r != NULL;
    free(r);
}

bool __wrap_runner_sealed(const struct runner *r);
bool __wrap_runner_sealed(const struct runner *r)
{
    return r->rank != play.unsealed;
}

const struct runner_facts *__wrap_runner_facts(const struct runner *r);
const struct runner_facts *__wrap_runner_facts(const struct runner *r)
{
    (void)r;
    return &play.facts;
}

int64_t __wrap_runner_scratch(struct runner *r, int32_t m, int32_t size, struct err *err);
int64_t __wrap_runner_scratch(struct runner *r, int32_t m, int32_t size, struct err *err)
{
    (void)r, (void)err;
    play.scratch_m = m;
    play.scratch_size = size;
    return play.scratch;
}

int __wrap_runner_call(struct runner *r, const struct runner_call *c, struct err *err);
int __wrap_runner_call(struct runner *r, const struct runner_call *c, struct err *err)
{
    const struct reduce_args *a = case_args(r->o.cases[c->at]);
    size_t bytes = (size_t)a->m * (size_t)a->n * sizeof(float);
    uint64_t x = hash_bytes(HASH_START, a->x, bytes);
    uint64_t residual = hash_bytes(HASH_START, a->residual, bytes);
    pthread_mutex_lock(&play.lock);
    if (play.n < CALLS_MOST)
        play.seen[play.n++] = (struct seen){r->rank,
                                            c->at,
                                            c->m,
                                            c->size,
                                            *a->area->calls,
                                            c->skew,
                                            c->watchdog_s,
                                            c->watchdog_s == lonely_s,
                                            x,
                                            residual};
    pthread_mutex_unlock(&play.lock);
    return play.kernel(a, err);
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

static void set_flag(const struct reduce_area *r, uint32_t meeting)
{
    __atomic_store_n(r->flag[r->rank], meeting, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(r->sleepers[r->rank], __ATOMIC_SEQ_CST))
        r->wake(r, 0);
}

/* Says that its numbers are there, and waits for those of all. False: the world is over. */
static bool meet(const struct reduce_args *a, int place)
{
    const struct reduce_area *r = a->area;
    uint32_t meeting = REDUCE_MEETING(*r->calls + 1, 0);
    memcpy(r->place[r->rank][place], a->x, (size_t)a->m * (size_t)a->n * sizeof(float));
    set_flag(r, meeting);
    for (int32_t k = 0; k < r->world; k++)
        if (r->wait(r, k, 0, meeting) != 0)
            return false;
    return true;
}

static void sum_places(const struct reduce_args *a, int place, bool backwards)
{
    const struct reduce_area *r = a->area;
    for (int64_t i = 0; i < (int64_t)a->m * a->n; i++) {
        float sum = r->place[backwards ? r->world - 1 : 0][place][i];
        for (int32_t k = 1; k < r->world; k++)
            sum += r->place[backwards ? r->world - 1 - k : k][place][i];
        a->out[i] = sum + a->residual[i];
    }
}

static int place_of(const struct reduce_args *a)
{
    return (int)((*a->area->calls + 1) & 1);
}

static int honest(const struct reduce_args *a, struct err *err)
{
    (void)err;
    if (meet(a, place_of(a)))
        sum_places(a, place_of(a), false);
    return 0;
}

static int sums_backwards(const struct reduce_args *a, struct err *err)
{
    (void)err;
    if (meet(a, place_of(a)))
        sum_places(a, place_of(a), true);
    return 0;
}

/* The last element of the last rank alone. */
static int misses_the_last(const struct reduce_args *a, struct err *err)
{
    honest(a, err);
    if (a->area->rank == a->area->world - 1)
        a->out[(int64_t)a->m * a->n - 1] = 1e30f;
    return 0;
}

static int goes_wrong_later(const struct reduce_args *a, struct err *err)
{
    honest(a, err);
    if (*a->area->calls == some_calls + CALLS - 1)
        a->out[0] += 1e30f;
    return 0;
}

/* Behind it is a page that nobody may touch. */
static int writes_before_its_output(const struct reduce_args *a, struct err *err)
{
    honest(a, err);
    if (a->area->rank == 1)
        a->out[-1] = 0;
    return 0;
}

static int writes_before_the_area(const struct reduce_args *a, struct err *err)
{
    const struct reduce_area *r = a->area;
    honest(a, err);
    if (r->rank == r->world - 1)
        r->flag[0][-1] = 0;
    return 0;
}

/* In its fourth call; the others wait for it, until they are told that the world is over. */
static int dies(const struct reduce_args *a, struct err *err)
{
    if (a->area->rank == 1 && *a->area->calls == some_calls + 3)
        return err_set(err, "SIGSEGV reading 0x8");
    return honest(a, err);
}

/* Two of them: the first of the ranks says why. */
static int all_die(const struct reduce_args *a, struct err *err)
{
    return err_set(err, "rank %d says so", a->area->rank);
}

/* As a runner says of a kernel that waits, when nobody comes, until it is killed. */
static int does_not_go_home(const struct reduce_args *a, struct err *err)
{
    bool over = !meet(a, place_of(a));
    if (!over)
        sum_places(a, place_of(a), false);
    return over ? err_set(err, "hang: no end after 3.0 s of CPU time") : 0;
}

/* ---- what is found out ------------------------------------------------------------------------
 */

static struct model *model;
static struct err said;
static struct check_result result;

static int open_model(void **state)
{
    static const struct model_shape shape = {SMALL_MODEL};
    (void)state;
    model = model_random(&shape, DTYPE_F32, 1);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

static int begin(void **state)
{
    (void)state;
    play.kernel = honest;
    play.facts = (struct runner_facts){.region = REGION_REDUCE, .m_max = 9};
    play.scratch = 0;
    play.unsealed = play.broken = -1;
    play.opens = play.closes = play.n = 0;
    return 0;
}

static int check(int32_t ranks, bool full)
{
    const struct check_request q = {.model = model,
                                    .object = "/x/kernel.so",
                                    .range = {REGION_REDUCE, 3, 9, 0},
                                    .ranks = ranks,
                                    .threads = 2,
                                    .full = full,
                                    .must_seal = true,
                                    .seed = 11};
    said = (struct err){""};
    int rc = check_reduce(&q, &result, &said);
    assert_int_equal(play.opens, play.closes);
    assert_int_equal(result.comparison.bit_equal, rc == 0);
    return rc;
}

static void refused(int32_t ranks, const char *why)
{
    assert_int_equal(check(ranks, false), -1);
    if (!strstr(said.msg, why))
        fail_msg("it says: %s", said.msg);
}

static void an_honest_kernel_passes_in_worlds_of_two_to_four(void **state)
{
    (void)state;
    const int32_t ranks[] = {0, 2, 3, 4, 64}, world[] = {2, 2, 3, 4, 4};
    for (int i = 0; i < 5; i++) {
        begin(NULL);
        assert_int_equal(check(ranks[i], false), 0);
        assert_int_equal(play.opens, world[i]);
        assert_int_equal(result.runs, SHORT_ROUNDS * CALLS * world[i]);
        assert_int_equal(result.cases, (SHORT_ROUNDS + 1) * CALLS);
        assert_true(result.sealed && play.must_seal);
        assert_string_equal(play.object, "/x/kernel.so");
        assert_int_equal(play.team_max, SMALL_TEAM);
        assert_int_equal(play.scratch_m, 9);
        assert_int_equal(play.scratch_size, SMALL_TEAM);
    }
}

static void one_rank_that_is_not_sealed_is_told(void **state)
{
    (void)state;
    for (int32_t r = 0; r < 3; r++) {
        begin(NULL);
        play.unsealed = r;
        assert_int_equal(check(3, false), 0);
        assert_false(result.sealed);
    }
}

static void an_object_that_is_no_kernel_of_reduce_is_refused(void **state)
{
    (void)state;
    play.facts.region = REGION_MLP_OUT;
    refused(2, "and is meant for");
    begin(NULL);
    play.facts.m_max = 8;
    refused(2, "takes 8 tokens where the slot has 9");
    begin(NULL);
    play.facts.packs = true;
    refused(2, "or repacks weights");
    begin(NULL);
    play.scratch = 64;
    refused(2, "has no use for scratch");
    begin(NULL);
    play.scratch = -1;
    refused(2, "has no use for scratch");
    begin(NULL);
    play.broken = 1;
    refused(3, "does not load");
    assert_int_equal(play.n, 0); /* nothing was run */
    assert_int_equal(play.opens, 1);
}

static void another_order_of_the_sum_is_another_sum(void **state)
{
    (void)state;
    play.kernel = sums_backwards;
    refused(3, "the sum in the order of ranks is");
}

/* Wherever it is, and on whichever rank. */
static void every_element_of_every_rank_is_looked_at(void **state)
{
    (void)state;
    play.kernel = misses_the_last;
    refused(4, "rank 3 of 4, round 0, call 0 of 9 tokens: element 575 is 1.00000002e+30,");
}

static void every_call_of_a_round_is_looked_at(void **state)
{
    (void)state;
    play.kernel = goes_wrong_later;
    refused(2, "rank 0 of 2, round 0, call 7 of 3 tokens: element 0 is");
}

static void what_is_written_elsewhere_is_found(void **state)
{
    (void)state;
    play.kernel = writes_before_its_output;
    refused(2, "rank 1 of 2, round 0, call 0 of 9 tokens: ");
    assert_null(strstr(said.msg, "element"));
    begin(NULL);
    play.kernel = writes_before_the_area;
    refused(2, "wrote outside the ranks' area");
}

/* Who failed says why; the others come back. */
static void the_first_rank_that_failed_says_why(void **state)
{
    (void)state;
    play.kernel = dies;
    refused(3, "rank 1 of 3, round 0: SIGSEGV reading 0x8");
    begin(NULL);
    play.kernel = all_die;
    refused(3, "rank 0 of 3, round 0: rank 0 says so");
}

static void who_waits_for_ever_for_one_that_never_comes_is_refused(void **state)
{
    (void)state;
    play.kernel = does_not_go_home;
    refused(3, "a rank that never comes: rank 1 of 3, round 5: hang");
    for (int i = 0; i < play.n; i++)
        assert_false(play.seen[i].lonely && play.seen[i].rank == 0); /* it stays away */
}

/* ---- what they are tried with -----------------------------------------------------------------
 */

/* The calls of rank r in the order in which it made them. */
static const struct seen *call_of(int32_t rank, int round, int call)
{
    int n = 0;
    for (int i = 0; i < play.n; i++)
        if (play.seen[i].rank == rank && n++ == round * CALLS + call)
            return &play.seen[i];
    fail_msg("rank %d made %d calls", rank, n);
    return NULL;
}

static void calls_of_a_round_have_all_sizes_and_other_numbers(void **state)
{
    (void)state;
    const int32_t m[CALLS] = {9, 3, 4, 9, 3, 6, 9, 3}; /* 3 to 9 */
    assert_int_equal(check(2, false), 0);
    for (int round = 0; round < SHORT_ROUNDS; round++)
        for (int i = 0; i < CALLS; i++) {
            const struct seen *a = call_of(0, round, i), *b = call_of(1, round, i);
            assert_int_equal(a->round_call, i);
            assert_int_equal(a->m, m[i]);
            assert_int_equal(b->m, m[i]);
            assert_true(a->residual == b->residual);
            bool zeros = fills[(round + i) % 8] == FILL_ZERO;
            assert_true(zeros || a->x != b->x);
            if (i > 0 && !zeros)
                assert_true(a->x != call_of(0, round, i - 1)->x);
            assert_true(a->skew % 2 == (round % 2 ? 1 : 0)); /* held back in every other round */
            assert_true(round % 2 || a->skew == 0);
            assert_true(a->watchdog_s == watchdog_s);
        }
}

/* Other kernels used the area before each round, and in the middle numbers are about to wrap. */
static void numbers_of_calls_jump_between_rounds_and_wrap(void **state)
{
    (void)state;
    assert_int_equal(check(2, true), 0);
    assert_int_equal(result.runs, ROUNDS * CALLS * 2);
    uint32_t next = some_calls;
    for (int round = 0; round < ROUNDS; round++) {
        next = round == ROUNDS / 2 ? near_wrap : next;
        for (int32_t r = 0; r < 2; r++)
            for (int i = 0; i < CALLS; i++)
                assert_true(call_of(r, round, i)->calls == next + (uint32_t)i);
        next += CALLS + others_calls;
    }
    assert_true(REDUCE_MEETING(near_wrap + CALLS, 0) < REDUCE_MEETING(near_wrap, 0));
}

static void in_the_end_one_rank_stays_away_from_one_call(void **state)
{
    (void)state;
    int lonely = 0;
    assert_int_equal(check(3, false), 0);
    for (int i = 0; i < play.n; i++)
        if (play.seen[i].lonely) {
            lonely++;
            assert_true(play.seen[i].rank > 0);
            assert_int_equal(play.seen[i].round_call, 0);
        }
    assert_int_equal(lonely, 2);
}

/* What is to serve with a team is tried with it, however large, and with small ones beside. */
static void ranks_are_tried_with_the_team_that_serves(void **state)
{
    (void)state;
    const int32_t threads[] = {1, 2, 8, 9, 64, RUNNER_TEAM_MAX};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        const struct check_request q = {.threads = threads[i]};
        struct party p = {.q = &q};
        struct rank first = {.number = 0}, second = {.number = 1};
        bool real = false, one = false, three = false, differ = false;
        for (p.round = 0; p.round < ROUNDS; p.round++) {
            int32_t a = team_of(&p, &first), b = team_of(&p, &second);
            assert_true(a >= 1 && a <= team_most(&p)); /* the runner has threads for it */
            real |= a == threads[i];
            one |= a == 1;
            three |= a == 3;
            differ |= a != b;
            if (p.round < 2) /* first as it will serve, on all ranks */
                assert_true(a == threads[i] && b == threads[i]);
        }
        assert_true(real && one && three && differ);
    }
    const struct check_request many = {.threads = RUNNER_TEAM_MAX + 1};
    const struct party p = {.q = &many};
    assert_int_equal(team_most(&p), RUNNER_TEAM_MAX);
}

static int64_t own_ns(void) /* of the processor, whoever else wants it */
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A rank is held back in every other eight calls, and not in all of them, so that the others come
 * as far as they can. */
static void some_calls_are_held_back_and_others_are_not(void **state)
{
    (void)state;
    uint32_t calls = 0;
    struct reduce_area a = {.calls = &calls};
    int64_t held = 0, longest = 0;
    for (calls = 0; calls < 256; calls++) {
        int64_t began = clock_ns(), used = own_ns();
        linger(&a, 0, 1);
        int64_t took = clock_ns() - began;
        used = own_ns() - used;
        if (calls / 8 % 2 == 0) {
            assert_true(used < 100000);
            continue;
        }
        held += took > 20000;
        longest = took > longest ? took : longest;
    }
    assert_true(held >= 16);
    assert_true(longest > 500000);
}

#define PLAYED(f) cmocka_unit_test_setup(f, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLAYED(an_honest_kernel_passes_in_worlds_of_two_to_four),
        PLAYED(one_rank_that_is_not_sealed_is_told),
        PLAYED(an_object_that_is_no_kernel_of_reduce_is_refused),
        PLAYED(another_order_of_the_sum_is_another_sum),
        PLAYED(every_element_of_every_rank_is_looked_at),
        PLAYED(every_call_of_a_round_is_looked_at),
        PLAYED(what_is_written_elsewhere_is_found),
        PLAYED(the_first_rank_that_failed_says_why),
        PLAYED(who_waits_for_ever_for_one_that_never_comes_is_refused),
        PLAYED(calls_of_a_round_have_all_sizes_and_other_numbers),
        PLAYED(numbers_of_calls_jump_between_rounds_and_wrap),
        PLAYED(in_the_end_one_rank_stays_away_from_one_call),
        cmocka_unit_test(ranks_are_tried_with_the_team_that_serves),
        cmocka_unit_test(some_calls_are_held_back_and_others_are_not),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
