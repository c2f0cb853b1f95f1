/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a fused region: mlp, on the CPU backend. In which order such nodes run:
 * tests/unit/specializer/admission/test_plan_order.c. */
#include "tests/unit/engine/cpu/backend_world.h"

#include "engine/capture.h"

static _Atomic int32_t fused_runs, part_runs;

static void run_fused(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_fetch_add(&fused_runs, 1);
    eager_cpu(REGION_MLP)->run(args, team);
}

static void run_wrong(const void *args, const struct team *team)
{
    const struct mlp_args *a = args;
    eager_cpu(REGION_MLP)->run(args, team);
    team->barrier(team); /* whoever computes y[0] has */
    if (team->rank == 0)
        a->y[0] += 1;
}

static void run_part(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_fetch_add(&part_runs, 1);
    eager_cpu(REGION_MLP_OUT)->run(args, team);
}

/* A kernel of mlp for up to `m_max` tokens. */
static struct kernel fused_kernel(struct cpu_kernel *c,
                                  void (*run)(const void *, const struct team *), int32_t m_max)
{
    struct kernel k = test_kernel(c, run, m_max);
    c->region = k.region = REGION_MLP;
    k.origin = ORIGIN_TEMPLATE;
    return k;
}

static void decode(struct built *b, const struct overrides *o)
{
    struct err e = {0};
    build(b, &(struct feed){text_a, 0, 4, {5, 2, 9}}, 1);
    assert_int_equal(backend_cpu.step(cpu, &b->step, o, &e), 0);
}

static void a_fused_kernel_serves_for_its_parts_and_counts_for_itself(void **state)
{
    (void)state;
    struct built split, whole;
    struct cpu_kernel c;
    struct kernel k = fused_kernel(&c, run_fused, 8);
    struct slot *mlp = dispatch_slot(table, REGION_MLP, 0, 4, 4);
    struct slot *in = dispatch_slot(table, REGION_MLP_IN, 0, 4, 4);
    decode(&split, NULL);
    uint64_t parts = in->counters.runs;
    assert_int_equal(mlp->counters.runs, 0);
    dispatch_publish(table, mlp, &k);
    fused_runs = 0;
    decode(&whole, NULL);
    dispatch_publish(table, mlp, mlp->eager);
    assert_int_equal(fused_runs, 3);
    assert_int_equal(mlp->counters.runs, 3);
    assert_int_equal(mlp->counters.tokens, 12);
    assert_int_equal(in->counters.runs, parts);
    assert_memory_equal(&split.sample[0].out, &whole.sample[0].out, sizeof(struct sampled));
    assert_follows(&whole.sample[0].out, text_a, 4);
}

/* A coin decides between the split step and the fused one. */
static void a_canary_runs_the_fused_kernel_in_its_own_steps_alone(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel k = fused_kernel(&c, run_fused, 8);
    struct slot *mlp = dispatch_slot(table, REGION_MLP, 0, 4, 4);
    struct slot *out = dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4);
    fused_runs = 0;
    decode(&b, &(struct overrides){1, {{mlp, &k}}});
    assert_int_equal(fused_runs, 3);
    uint64_t parts = out->counters.runs;
    decode(&b, NULL);
    assert_int_equal(fused_runs, 3);
    assert_int_equal(out->counters.runs, parts + 3);
    assert_int_equal(dispatch_whole(table, 4, NULL), 0);
    assert_int_equal(dispatch_whole(table, 4, &(struct overrides){1, {{mlp, &k}}}),
                     1u << REGION_MLP);
    assert_int_equal(dispatch_whole(table, 9, &(struct overrides){1, {{mlp, &k}}}),
                     0); /* another slot */
}

static void a_fused_kernel_that_takes_fewer_tokens_leaves_them_to_the_parts(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel k = fused_kernel(&c, run_fused, 3);
    struct slot *mlp = dispatch_slot(table, REGION_MLP, 0, 4, 4);
    fused_runs = 0;
    decode(&b, &(struct overrides){1, {{mlp, &k}}});
    assert_int_equal(fused_runs, 0);
    assert_follows(&b.sample[0].out, text_a, 4);
    assert_null(dispatch_slot(table, REGION_MLP, 0, 17, 17)); /* too wide to have one */
}

static void a_tap_sees_the_parts_as_one_run(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c, c2;
    struct kernel good = fused_kernel(&c, run_fused, 8), bad = fused_kernel(&c2, run_wrong, 8);
    struct slot *mlp = dispatch_slot(table, REGION_MLP, 0, 4, 4);
    for (int wrong = 0; wrong < 2; wrong++) {
        struct hook t = {.kind = HOOK_COMPARE,
                         .every = 1,
                         .left = 4,
                         .slot = mlp,
                         .kernel = wrong ? &bad : &good};
        assert_int_equal(backend_cpu.hook(cpu, &t), 0);
        for (int i = 0; i < 4; i++)
            decode(&b, NULL);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(t.comparisons, 4);
        assert_int_equal(t.different, wrong ? 4 : 0);
        assert_true(t.kernel_ns > 0 && t.served_ns > 0);
        assert_follows(&b.sample[0].out, text_a, 4);
    }
}

/* What a fused kernel is measured against is what serves without it. */
static void a_bench_runs_the_parts_with_the_kernels_in_their_slots(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct capture inputs = {0};
    struct cpu_kernel c, c2;
    struct kernel fused = fused_kernel(&c, run_fused, 8), part = test_kernel(&c2, run_part, 8);
    struct slot *mlp = dispatch_slot(table, REGION_MLP, 0, 4, 4);
    struct slot *out = dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4);
    float a_ns[4], b_ns[4];
    struct hook copy = {
        .kind = HOOK_CAPTURE, .every = 1, .left = 1, .slot = mlp, .capture = &inputs};
    assert_int_equal(backend_cpu.hook(cpu, &copy), 0);
    decode(&b, NULL);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(copy.left, 0);
    assert_int_equal(inputs.region, REGION_MLP);
    dispatch_publish(table, out, &part);
    fused_runs = part_runs = 0;
    struct bench_job job = {.slot = mlp,
                            .a = mlp->eager,
                            .b = &fused,
                            .inputs = &inputs,
                            .want = 4,
                            .a_ns = a_ns,
                            .b_ns = b_ns};
    while (backend_cpu.bench(cpu, &job, 1000000, &e) == 0)
        ;
    assert_int_equal(job.have, 4);
    assert_true(part_runs > 0 && fused_runs > 0);
    assert_true(abs(part_runs - fused_runs) <= 1);
    backend_cpu.bench_end(cpu, &job);
    dispatch_publish(table, out, out->eager);
    capture_free(&inputs);
}

static const void *down_of[64];
static int downs;

static void note_down(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    if (team->rank == 0 && downs < 64)
        down_of[downs++] = a->w.data;
    run_part(args, team);
}

/* What a text takes when its weights are in a cache: both kernels run on the same ones each time.
 */
static void a_bench_of_one_layer_stays_there(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct cpu_kernel c;
    struct kernel other = test_kernel(&c, note_down, 8);
    struct slot *out = dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4);
    float a_ns[4], b_ns[4];
    for (int one = 0; one < 2; one++) {
        struct capture inputs = {0};
        struct hook copy = {
            .kind = HOOK_CAPTURE, .every = 1, .left = 1, .slot = out, .capture = &inputs};
        assert_int_equal(backend_cpu.hook(cpu, &copy), 0);
        decode(&b, NULL);
        backend_cpu.hook(cpu, NULL);
        struct bench_job job = {.slot = out,
                                .a = out->eager,
                                .b = &other,
                                .inputs = &inputs,
                                .one_layer = one,
                                .want = 4,
                                .a_ns = a_ns,
                                .b_ns = b_ns};
        downs = 0;
        while (backend_cpu.bench(cpu, &job, 1000000, &e) == 0)
            ;
        assert_true(downs >= 8);
        int others = 0;
        for (int i = 1; i < downs; i++)
            others += down_of[i] != down_of[0];
        assert_int_equal(others > 0, !one);
        backend_cpu.bench_end(cpu, &job);
        capture_free(&inputs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fused_kernel_serves_for_its_parts_and_counts_for_itself),
        cmocka_unit_test(a_canary_runs_the_fused_kernel_in_its_own_steps_alone),
        cmocka_unit_test(a_fused_kernel_that_takes_fewer_tokens_leaves_them_to_the_parts),
        cmocka_unit_test(a_tap_sees_the_parts_as_one_run),
        cmocka_unit_test(a_bench_runs_the_parts_with_the_kernels_in_their_slots),
        cmocka_unit_test(a_bench_of_one_layer_stays_there),
    };
    return cmocka_run_group_tests(tests, backend_set_up, backend_tear_down);
}
