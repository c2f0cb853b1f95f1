/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks.c - CPU backends of several ranks, each with its part of a model, run the same steps
 * at the same time: what follows is what the oracle says of the whole model. */
#include "tests/unit/engine/cpu/backend_world.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/cpu/backend_private.h"
#include "engine/cpu/collective_shm.h"

enum { RANKS = 4 };

struct rank {
    pthread_t thread;
    struct model *part;
    struct collective *collective;
    struct backend *backend;
    struct dispatch *table;
    struct built built;
    const struct feed *feed;
    int feeds, rc;
    bool silent; /* the step wants no logits */
    const struct step_trial *trial;
    const struct kernel *timed;
    struct err e;
};

static struct rank rank[RANKS];
static int32_t world;

/* That of the other tests, with columns for whole blocks on two ranks. */
static struct model_shape cut_shape(void)
{
    struct model_shape s = tiny();
    s.ffn = 128;
    return s;
}

static void open_rank(int32_t r, const char *name, enum dtype type)
{
    struct model_shape shape = cut_shape();
    struct rank *k = &rank[r];
    struct backend_options o = {
        .threads = 1, .kv_pages = PAGES, .max_tokens = TOKENS, .max_rows = 8};
    const struct kernel *eager[REGION_NODES];
    *k = (struct rank){.part = model_random(&shape, type, 3)};
    if (model_take_part(k->part, world, r, NULL, NULL, NULL, &k->e) ||
        !(k->collective = collective_shm_open(name, r, world, 120, &k->e)))
        fail_msg("%s", k->e.msg);
    o.collective = k->collective;
    assert_non_null(k->backend = backend_cpu.open(k->part, &o, &k->e));
    for (int i = 0; i < REGION_NODES; i++)
        eager[i] = backend_cpu.eager(k->backend, (enum region)i);
    k->table = dispatch_open_ranks(eager, NULL);
    backend_cpu.set_dispatch(k->backend, k->table);
}

static void open_ranks(int32_t ranks, enum dtype type)
{
    char name[64];
    struct err e = {""};
    struct model_shape shape = cut_shape();
    snprintf(name, sizeof name, "/whet-test-ranks-%d", (int)getpid());
    world = ranks;
    model_close(model);
    model = model_random(&shape, type, 3);
    if (collective_shm_create(name, world, &e))
        fail_msg("%s", e.msg);
    for (int32_t r = 0; r < world; r++)
        open_rank(r, name, type);
    shm_unlink(name);
}

static void close_ranks(void)
{
    for (int32_t r = 0; r < world; r++) {
        dispatch_close(rank[r].table);
        backend_cpu.close(rank[r].backend);
        rank[r].collective->ops->close(rank[r].collective);
        model_close(rank[r].part);
    }
}

static void *step_main(void *arg)
{
    struct rank *k = arg;
    build(&k->built, k->feed, k->feeds);
    if (k->silent)
        k->built.step.rows = 0;
    k->built.step.trial = k->trial;
    k->rc = backend_cpu.step(k->backend, &k->built.step, NULL, &k->e);
    return NULL;
}

/* The same step on all ranks; `absent`, if one of them, does not take part. */
static void start_step(const struct feed *feed, int feeds, int32_t absent)
{
    for (int32_t r = 0; r < world; r++) {
        rank[r].feed = feed;
        rank[r].feeds = feeds;
        if (r != absent)
            assert_int_equal(pthread_create(&rank[r].thread, NULL, step_main, &rank[r]), 0);
    }
}

static void end_step(int32_t absent, int want)
{
    for (int32_t r = 0; r < world; r++)
        if (r != absent) {
            pthread_join(rank[r].thread, NULL);
            if (rank[r].rc != want)
                fail_msg("rank %d: %d instead of %d: %s", r, rank[r].rc, want, rank[r].e.msg);
        }
}

static void step_all(const struct feed *feed, int feeds)
{
    start_step(feed, feeds, -1);
    end_step(-1, 0);
}

/* Every rank has all logits, with the same bits. */
static void assert_all_follow(int row, const int32_t *text, int32_t n)
{
    const struct sampled *first = &rank[0].built.sample[row].out;
    assert_follows(first, text, n);
    for (int32_t r = 1; r < world; r++) {
        const struct sampled *out = &rank[r].built.sample[row].out;
        assert_int_equal(out->token, first->token);
        assert_int_equal(out->tops, first->tops);
        assert_memory_equal(out->top_id, first->top_id, sizeof out->top_id);
        assert_memory_equal(out->top_logprob, first->top_logprob, sizeof out->top_logprob);
    }
}

static void run_text(int32_t ranks, enum dtype type)
{
    open_ranks(ranks, type);
    struct feed a = {text_a, 0, 19, {1, 4, 3}}, b = {text_b, 0, 17, {5, 2, 9}};
    step_all(&a, 1);
    assert_all_follow(0, text_a, 19);
    step_all(&b, 1);
    for (int32_t n = 0; n < 4; n++) { /* two sequences, one token each */
        struct feed both[] = {{text_b, 17 + n, 18 + n, {5, 2, 9}},
                              {text_a, 19 + n, 20 + n, {1, 4, 3}}};
        step_all(both, 2);
        assert_all_follow(0, text_b, 18 + n);
        assert_all_follow(1, text_a, 20 + n);
    }
    close_ranks();
}

static void two_ranks_say_what_the_oracle_says(void **state)
{
    (void)state;
    run_text(2, DTYPE_F32);
    run_text(2, DTYPE_BF16);
    run_text(2, DTYPE_Q8_0);
}

/* 4 ranks of 2 KV heads: each is held, and its keys and values kept, by two ranks. */
static void four_ranks_share_two_kv_heads(void **state)
{
    (void)state;
    run_text(4, DTYPE_F32);
    run_text(4, DTYPE_BF16);
}

static void a_step_without_logits_needs_no_gather(void **state)
{
    (void)state;
    open_ranks(2, DTYPE_F32);
    rank[0].silent = rank[1].silent = true;
    step_all(&(struct feed){text_a, 0, 8, {1, 4, 3}}, 1);
    rank[0].silent = rank[1].silent = false;
    step_all(&(struct feed){text_a, 8, 9, {1, 4, 3}}, 1);
    assert_all_follow(0, text_a, 9);
    close_ranks();
}

static void a_rank_that_is_gone_ends_the_step_and_all_after_it(void **state)
{
    (void)state;
    struct feed a = {text_a, 0, 9, {1, 4, 3}};
    open_ranks(4, DTYPE_F32);
    step_all(&a, 1);
    start_step(&a, 1, 2);
    rank[2].collective->ops->abort(rank[2].collective, "rank 2 was killed");
    end_step(2, STEP_LOST);
    assert_non_null(strstr(rank[0].e.msg, "another rank gave up"));
    start_step(&a, 1, -1);
    end_step(-1, STEP_LOST);
    assert_non_null(strstr(rank[2].e.msg, "rank 2 was killed"));
    close_ranks();
}

/* ---- kernels of reduce ---------------------------------------------------------------------- */

/* One slice, one shot, as tests/kernels/bad/reduce.h has it. */
static void plain_reduce(const void *args, const struct team *team)
{
    const struct reduce_args *a = args;
    const struct reduce_area *area = a->area;
    uint32_t call = *area->calls + 1, meeting = REDUCE_MEETING(call, 0);
    int64_t n = (int64_t)a->m * a->n;
    if (team->rank > 0)
        return;
    memcpy(area->place[area->rank][call & 1], a->x, (size_t)n * sizeof(float));
    __atomic_store_n(area->flag[area->rank], meeting, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(area->sleepers[area->rank], __ATOMIC_SEQ_CST))
        area->wake(area, 0);
    for (int32_t r = 0; r < area->world; r++)
        if (area->wait(area, r, 0, meeting))
            return;
    for (int64_t i = 0; i < n; i++) {
        float sum = area->place[0][call & 1][i];
        for (int32_t r = 1; r < area->world; r++)
            sum += area->place[r][call & 1][i];
        a->out[i] = sum + a->residual[i];
    }
}

static int64_t no_scratch(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

static const struct cpu_kernel plain_cpu = {.abi = WHET_CPU_ABI,
                                            .region = REGION_REDUCE,
                                            .m_max = TOKENS,
                                            .run = plain_reduce,
                                            .scratch_bytes = no_scratch};
static struct loaded plain_loaded;
static struct kernel plain = {.id = "plain",
                              .region = REGION_REDUCE,
                              .origin = ORIGIN_TEMPLATE,
                              .m_max = TOKENS,
                              .cpu = &plain_cpu,
                              .backend = &plain_loaded};

static void publish_on_all(const struct kernel *k)
{
    for (int32_t r = 0; r < world; r++)
        for (int i = 0; i < M_BUCKETS; i++) {
            struct slot *s = dispatch_slot(rank[r].table, REGION_REDUCE, 0, m_bucket[i], 0);
            dispatch_publish(rank[r].table, s, k ? k : s->eager);
        }
}

static uint64_t runs_of_reduce(int32_t r)
{
    uint64_t n = 0;
    for (int i = 0; i < M_BUCKETS; i++)
        n += atomic_load(
            &dispatch_slot(rank[r].table, REGION_REDUCE, 0, m_bucket[i], 0)->counters.runs);
    return n;
}

/* Eager, then the kernel, then eager: the same steps give the same bits. */
static void a_kernel_of_reduce_has_the_bits_of_eager(void **state)
{
    (void)state;
    struct feed a = {text_a, 0, 19, {1, 4, 3}};
    float first[SAMPLER_TOP_MAX];
    open_ranks(4, DTYPE_F32);
    for (int turn = 0; turn < 3; turn++) {
        publish_on_all(turn == 1 ? &plain : NULL);
        uint64_t before = runs_of_reduce(3);
        step_all(&a, 1);
        assert_all_follow(0, text_a, 19);
        assert_int_equal(runs_of_reduce(3) - before, 2 * model->shape.layers);
        const struct sampled *out = &rank[3].built.sample[0].out;
        if (turn == 0)
            memcpy(first, out->top_logprob, sizeof out->top_logprob);
        assert_memory_equal(first, out->top_logprob, sizeof out->top_logprob);
    }
    close_ranks();
}

/* This kernel uses one flag. After very many calls the others would look as if they were ahead. */
static void flags_that_no_kernel_uses_keep_up(void **state)
{
    (void)state;
    struct feed a = {text_a, 0, 9, {1, 4, 3}};
    const uint32_t often = 1 << 20;
    const int last = (REDUCE_SLICES - 1) * REDUCE_FLAG;
    open_ranks(4, DTYPE_F32);
    publish_on_all(&plain);
    for (int32_t r = 0; r < world; r++)
        *backend_area(rank[r].backend, REDUCE_STEPS)->calls = often - 1;
    step_all(&a, 1);
    assert_all_follow(0, text_a, 9);
    for (int32_t r = 0; r < world; r++) {
        const struct reduce_area *area = backend_area(rank[r].backend, REDUCE_STEPS);
        assert_int_equal(*area->calls, often - 1 + 2 * (uint32_t)model->shape.layers);
        assert_int_equal(area->flag[r][last], REDUCE_MEETING(often, 1));
        assert_int_equal(area->flag[r][0], REDUCE_MEETING(*area->calls, 0));
    }
    close_ranks();
}

static void a_rank_that_is_gone_ends_those_that_wait_in_a_kernel(void **state)
{
    (void)state;
    struct feed a = {text_a, 0, 9, {1, 4, 3}};
    open_ranks(4, DTYPE_F32);
    publish_on_all(&plain);
    step_all(&a, 1);
    start_step(&a, 1, 2);
    rank[2].collective->ops->abort(rank[2].collective, "rank 2 was killed");
    end_step(2, STEP_LOST);
    assert_non_null(strstr(rank[0].e.msg, "another rank gave up"));
    start_step(&a, 1, -1);
    end_step(-1, STEP_LOST);
    close_ranks();
}

/* Rank 0 has a hook; what it wants to see goes with the step to all. */
static void a_kernel_on_trial_runs_beside_the_step_on_all_ranks(void **state)
{
    (void)state;
    struct feed a = {text_a, 0, 9, {1, 4, 3}};
    open_ranks(4, DTYPE_F32);
    struct hook hook = {.kind = HOOK_COMPARE,
                        .slot = dispatch_slot(rank[0].table, REGION_REDUCE, 0, 9, 0),
                        .kernel = &plain,
                        .every = 1};
    atomic_init(&hook.left, 3);
    assert_int_equal(backend_cpu.hook(rank[0].backend, &hook), 0);
    step_all(&a, 1); /* without the others there is no trial */
    assert_int_equal(hook.comparisons, 0);
    for (int turn = 0; turn < 3; turn++) {
        struct step_trial trial;
        struct step s = {.m = 9};
        assert_true(backend_cpu.trial(rank[0].backend, &s, &trial));
        assert_ptr_equal(trial.kernel, &plain);
        for (int32_t r = 0; r < world; r++)
            rank[r].trial = &trial;
        step_all(&a, 1);
        assert_all_follow(0, text_a, 9);
        assert_false(backend_cpu.trial(rank[0].backend, NULL, NULL));
    }
    assert_int_equal(hook.comparisons, 3);
    assert_int_equal(hook.different, 0);
    assert_int_equal(atomic_load(&hook.left), 0);
    struct step s = {.m = 9}, other = {.m = 1};
    struct step_trial none;
    assert_false(backend_cpu.trial(rank[0].backend, &s, &none)); /* it has seen enough */
    atomic_store(&hook.left, 1);
    assert_false(backend_cpu.trial(rank[0].backend, &other, &none)); /* another slot's */
    assert_int_equal(backend_cpu.hook(rank[0].backend, NULL), 0);
    close_ranks();
}

static void *time_main(void *arg)
{
    struct rank *k = arg;
    int64_t ns = 0;
    k->rc = backend_cpu.time_reduce(k->backend, k->timed, 7, 20, &ns, &k->e);
    if (k->rc == 0 && ns <= 0)
        k->rc = -2;
    return NULL;
}

static void all_ranks_time_a_kernel_at_once(void **state)
{
    (void)state;
    open_ranks(4, DTYPE_F32);
    for (int turn = 0; turn < 4; turn++) {
        for (int32_t r = 0; r < world; r++) {
            const struct kernel *eager = backend_cpu.eager(rank[r].backend, REGION_REDUCE);
            rank[r].timed = turn % 2 ? &plain : eager;
            assert_int_equal(pthread_create(&rank[r].thread, NULL, time_main, &rank[r]), 0);
        }
        end_step(-1, 0);
    }
    struct err e;
    int64_t ns;
    assert_int_equal(backend_cpu.time_reduce(rank[0].backend, &plain, 0, 1, &ns, &e), -1);
    close_ranks();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_say_what_the_oracle_says),
        cmocka_unit_test(four_ranks_share_two_kv_heads),
        cmocka_unit_test(a_step_without_logits_needs_no_gather),
        cmocka_unit_test(a_rank_that_is_gone_ends_the_step_and_all_after_it),
        cmocka_unit_test(a_kernel_of_reduce_has_the_bits_of_eager),
        cmocka_unit_test(flags_that_no_kernel_uses_keep_up),
        cmocka_unit_test(a_rank_that_is_gone_ends_those_that_wait_in_a_kernel),
        cmocka_unit_test(a_kernel_on_trial_runs_beside_the_step_on_all_ranks),
        cmocka_unit_test(all_ranks_time_a_kernel_at_once),
    };
    return cmocka_run_group_tests(tests, backend_set_up, backend_tear_down);
}
