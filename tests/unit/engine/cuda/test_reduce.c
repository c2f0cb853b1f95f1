/* SPDX-License-Identifier: Apache-2.0 */
/* test_reduce.c - sums of ranks in a step: which kernel noted_runs on what, where it meets the
 * others, what is on trial beside it, and how kernels are timed. Kernels are noted instead of
 * launched. */
#include "tests/unit/unit.h"

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/reduce.h"
#include "engine/cuda/walk.h"

enum { MOST = 64 };
static struct noted {
    const struct kernel *kernel;
    struct summed sum;
    int32_t layer;
    bool compared;
    struct cuda_sum fused;
    const float *y;
} ran[MOST];
static int noted_runs, captures, destroyed;

static int note(struct walk *w, const struct kernel *k, int32_t layer, bool compared)
{
    if (noted_runs < MOST)
        ran[noted_runs++] = (struct noted){k, w->sum, layer, compared, w->fused, w->y};
    return 0;
}

static int no_region(void)
{
    return 0;
}

static int end_capture(cudaGraphExec_t *exec, int failed)
{
    captures++;
    *exec = (cudaGraphExec_t)(void *)&ran[captures % MOST];
    return failed;
}

#define eager_region(w, r, layer, e) no_region()
#define loaded_region(w, k, r, layer, e) note(w, k, layer, false)
#define hook_compare(w, k, r, layer, e) note(w, k, layer, true)
#define graph_capture_end(stream, failed, exec, update, e) end_capture(exec, failed)
#define cudaStreamBeginCapture(stream, mode) cudaSuccess
#define cudaEventRecord(event, stream) ((void)(event), cudaSuccess)
#define cudaEventSynchronize(event) ((void)(event), cudaSuccess)
#define cudaEventElapsedTime(ms, a, b) (*(ms) = 0.25f, cudaSuccess)
#define cudaGraphLaunch(exec, stream) cudaSuccess
#define cudaGraphExecDestroy(exec) (destroyed++)
#include "engine/cuda/walk.c"
#define mark mark_sum
#include "engine/cuda/reduce.c"
#undef mark

static struct model model = {
    .shape = {.layers = 3, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .vocab = 100}};
static struct peer_area areas[REDUCE_USES];
static struct reduce_area views[REDUCE_USES] = {{.host = &areas[0]}, {.host = &areas[1]}};
static const float *summed_in;

static struct reduce_area *area(struct collective *c, enum reduce_use use)
{
    (void)c;
    return &views[use];
}

static int eager_sum(struct collective *c, const float *in, const float *residual, float *out,
                     int64_t n, void *stream, struct err *e)
{
    (void)c, (void)residual, (void)out, (void)n, (void)stream, (void)e;
    summed_in = in;
    return 0;
}

static const char *not_broken(struct collective *c)
{
    (void)c;
    return NULL;
}

static const struct collective_ops with_areas = {
    .reduce = eager_sum, .area = area, .broken = not_broken};
static const struct collective_ops without = {.reduce = eager_sum, .broken = not_broken};
static float buffer[8];
static struct loaded code = {.number = 1};
static struct kernel template = {.region = REGION_REDUCE, .m_max = 4, .backend = &code};
static struct kernel other = {.region = REGION_REDUCE, .m_max = 4, .backend = &code};

static void rig(struct backend *b, struct kernel_choice *c, struct collective *world)
{
    *b = (struct backend){.model = &model, .plan = plan_build_ranks(&model.shape, 2)};
    b->options.collective = world;
    b->options.max_tokens = 64;
    b->x[0] = &buffer[0];
    b->x[1] = &buffer[1];
    b->partial = &buffer[2];
    b->spare.y = &buffer[3];
    *c = (struct kernel_choice){.m = 2};
    for (int r = 0; r < REGION_NODES; r++)
        c->kernel[r] = &b->eager[r];
    noted_runs = 0;
}

static void a_template_sums_after_every_out_region(void **state)
{
    struct collective world = {&with_areas, 1, 2};
    struct step_block block = {0};
    struct backend b;
    struct kernel_choice c;
    struct walk w;
    struct err e;
    (void)state;
    rig(&b, &c, &world);
    c.kernel[REGION_REDUCE] = &template;
    walk_init(&w, &b, NULL, &block, &c);
    w.rows = 0;
    assert_int_equal(walk_step(&w, &e), 0);
    assert_int_equal(noted_runs, 2 * 3);
    for (int i = 0; i < noted_runs; i++) {
        assert_ptr_equal(ran[i].kernel, &template);
        assert_ptr_equal(ran[i].sum.x, b.partial);
        assert_ptr_equal(ran[i].sum.residual, b.x[i % 2]);
        assert_ptr_equal(ran[i].sum.out, b.x[!(i % 2)]);
        assert_int_equal(ran[i].sum.use, REDUCE_STEPS);
        assert_int_equal(ran[i].layer, i / 2);
    }
    plan_free(b.plan);
}

/* Rank 0 compares, the others run it for rank 0's sake: on the same inputs, into spare memory, in
 * the area of trials. */
static void what_is_on_trial_runs_beside_one_sum_of_a_step(void **state)
{
    struct step_block block = {0};
    struct step_trial trial = {&other, 3};
    struct step s = {.m = 2, .trial = &trial};
    struct kernel_choice c;
    struct backend b;
    struct walk w;
    struct err e;
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct collective world = {&with_areas, rank, 2};
        rig(&b, &c, &world);
        c.kernel[REGION_REDUCE] = &template;
        walk_init(&w, &b, NULL, &block, &c);
        w.rows = 0;
        w.live = &s;
        assert_int_equal(walk_step(&w, &e), 0);
        assert_int_equal(noted_runs, 2 * 3 + 1);
        const struct noted *tried = &ran[4]; /* after run 3 */
        assert_ptr_equal(tried->kernel, &other);
        assert_int_equal(tried->compared, rank == 0);
        assert_int_equal(tried->layer, 1);
        assert_ptr_equal(tried->sum.x, b.partial);
        assert_ptr_equal(tried->sum.residual, b.x[1]);
        assert_ptr_equal(tried->sum.out, rank == 0 ? b.x[0] : b.spare.y);
        assert_int_equal(tried->sum.use, rank == 0 ? REDUCE_STEPS : REDUCE_TRIALS);
        for (int i = 5; i < noted_runs; i++)
            assert_int_equal(ran[i].sum.use, REDUCE_STEPS);
        plan_free(b.plan);
    }
}

/* Where the kernel of reduce and the projection before it both can, the projection makes the sum,
 * in turns, and nothing runs behind it; elsewhere, and where somebody looks, they run apart. */
static void a_projection_makes_the_sum_where_both_can(void **state)
{
    struct loaded can = {.number = 2, .info = {.sums = 1}}, cannot = {.number = 3};
    struct kernel words = {.region = REGION_REDUCE, .m_max = 2, .backend = &can};
    struct kernel out = {.region = REGION_MLP_OUT, .m_max = 2, .backend = &can};
    struct kernel plain = {.region = REGION_MLP_OUT, .m_max = 2, .backend = &cannot};
    struct kernel wider = {.region = REGION_MLP_OUT, .m_max = 4, .backend = &can};
    const struct {
        const struct kernel *sum, *out;
        bool live, fused;
    } of[] = {{&words, &out, false, true},
              {&words, &out, true, false},
              {&words, &plain, false, false},
              {&words, &wider, false, false},
              {&template, &out, false, false}};
    struct collective world = {&with_areas, 1, 2};
    struct step_block block = {0};
    struct step s = {.m = 2};
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct kernel_choice c;
        struct backend b;
        struct walk w;
        struct err e;
        rig(&b, &c, &world);
        areas[REDUCE_STEPS].world = 2;
        c.kernel[REGION_REDUCE] = of[i].sum;
        c.kernel[REGION_MLP_OUT] = of[i].out;
        walk_init(&w, &b, NULL, &block, &c);
        w.rows = 0;
        w.live = of[i].live ? &s : NULL;
        assert_int_equal(walk_step(&w, &e), 0);
        assert_int_equal(noted_runs, of[i].fused ? 2 * 3 : 3 * 3); /* attn_out is eager's */
        int at = 0;
        for (int layer = 0; layer < 3; layer++) {
            assert_ptr_equal(ran[at].kernel, of[i].sum);
            assert_int_equal(ran[at++].sum.turn, 0);
            assert_ptr_equal(ran[at].kernel, of[i].out);
            assert_int_equal(ran[at].fused.area.world, of[i].fused ? 2 : 0);
            assert_int_equal(ran[at].fused.turn, of[i].fused);
            assert_ptr_equal(ran[at++].y, of[i].fused ? b.x[0] : b.partial);
            if (of[i].fused)
                continue;
            assert_ptr_equal(ran[at].kernel, of[i].sum);
            assert_int_equal(ran[at++].sum.turn, 1);
        }
        plan_free(b.plan);
    }
    areas[REDUCE_STEPS].world = 0;
}

static void a_hook_of_reduce_is_held_until_its_step_has_ended(void **state)
{
    struct collective world = {&with_areas, 0, 2};
    struct step s = {.m = 2};
    const struct kernel *eager[REGION_NODES];
    struct step_trial trial = {0};
    struct kernel_choice c;
    struct backend b;
    (void)state;
    rig(&b, &c, &world);
    for (int r = 0; r < REGION_NODES; r++)
        eager[r] = &b.eager[r];
    b.dispatch = dispatch_open_ranks(eager, NULL);
    struct hook t = {.kind = HOOK_COMPARE,
                     .slot = dispatch_slot(b.dispatch, REGION_REDUCE, 0, 2, 0),
                     .kernel = &other,
                     .every = 1};
    atomic_init(&t.left, 9);
    assert_false(cuda_trial(&b, &s, &trial));
    atomic_store(&b.hook, &t);
    for (int run = 0; run < 7; run++) {
        assert_true(cuda_trial(&b, &s, &trial));
        assert_ptr_equal(trial.kernel, &other);
        assert_int_equal(trial.run, run % 6);
        assert_true(atomic_load(&b.hook_held));
        assert_false(cuda_trial(&b, NULL, NULL));
        assert_false(atomic_load(&b.hook_held));
    }
    s.m = 5; /* another slot */
    assert_false(cuda_trial(&b, &s, &trial));
    assert_false(atomic_load(&b.hook_held));
    t.kind = HOOK_CAPTURE;
    s.m = 2;
    assert_false(cuda_trial(&b, &s, &trial));
    assert_false(atomic_load(&b.hook_held));
    dispatch_close(b.dispatch);
    plan_free(b.plan);
}

static void two_kernels_are_timed_in_turns_without_new_graphs(void **state)
{
    struct collective world = {&with_areas, 0, 2};
    struct kernel_choice c;
    struct backend b;
    struct err e;
    int64_t ns = 0;
    (void)state;
    rig(&b, &c, &world);
    captures = destroyed = 0;
    b.eager[REGION_REDUCE].m_max = INT32_MAX;
    for (int i = 0; i < 8; i++) {
        const struct kernel *k = i % 2 ? &template : &b.eager[REGION_REDUCE];
        noted_runs = 0;
        summed_in = NULL;
        assert_int_equal(cuda_time_reduce(&b, k, 3, 16, &ns, &e), 0);
        assert_int_equal(ns, 250000);
        assert_int_equal(captures, i < 2 ? i + 1 : 2);
        assert_int_equal(noted_runs, i == 1 ? 16 : 0);
        assert_ptr_equal(summed_in, i == 0 ? b.partial : NULL);
    }
    assert_int_equal(cuda_time_reduce(&b, &template, 3, 15, &ns, &e),
                     -1); /* turns would not alternate */
    for (int i = 0; i < 16; i++)
        assert_int_equal(ran[i].sum.turn, i % 2);
    assert_int_equal(ran[0].sum.use, REDUCE_TRIALS);
    assert_ptr_equal(ran[0].sum.out, b.spare.y);
    assert_int_equal(cuda_time_reduce(&b, &other, 3, 16, &ns, &e),
                     0); /* in the older one's place */
    assert_int_equal(destroyed, 1);
    reduce_forget(&b, &template);
    assert_int_equal(destroyed, 2);
    reduce_close(&b);
    assert_int_equal(destroyed, 3);
    assert_int_equal(cuda_time_reduce(&b, &template, 5, 16, &ns, &e), -1); /* takes 4 */
    assert_int_equal(cuda_time_reduce(&b, &b.eager[REGION_REDUCE], 65, 16, &ns, &e), -1);
    plan_free(b.plan);
}

static void a_kernel_is_told_of_the_area_that_it_is_to_use(void **state)
{
    struct collective world = {&with_areas, 1, 2}, none = {&without, 1, 2};
    struct step_block block = {0};
    struct peer_reduce_args a;
    struct kernel_choice c;
    struct backend b;
    struct walk w;
    (void)state;
    rig(&b, &c, &world);
    areas[REDUCE_STEPS].numbers = 64;
    areas[REDUCE_TRIALS].numbers = 128;
    walk_init(&w, &b, NULL, &block, &c);
    for (int use = 0; use < REDUCE_USES; use++) {
        w.sum = (struct summed){&buffer[4], &buffer[5], &buffer[6], (enum reduce_use)use};
        reduce_fill(&w, &a);
        assert_int_equal(a.area.numbers, use == REDUCE_STEPS ? 64 : 128);
        assert_ptr_equal(a.out, &buffer[6]);
        assert_int_equal(a.m, 2);
    }
    assert_ptr_equal(reduce_area(&b, REDUCE_STEPS), &areas[REDUCE_STEPS]);
    b.options.collective = &none;
    assert_null(reduce_area(&b, REDUCE_STEPS));
    b.options.collective = NULL;
    assert_null(reduce_area(&b, REDUCE_STEPS));
    plan_free(b.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_sums_after_every_out_region),
        cmocka_unit_test(what_is_on_trial_runs_beside_one_sum_of_a_step),
        cmocka_unit_test(a_projection_makes_the_sum_where_both_can),
        cmocka_unit_test(a_hook_of_reduce_is_held_until_its_step_has_ended),
        cmocka_unit_test(two_kernels_are_timed_in_turns_without_new_graphs),
        cmocka_unit_test(a_kernel_is_told_of_the_area_that_it_is_to_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
