/* SPDX-License-Identifier: Apache-2.0 */
/* test_bench.c - what bench and canary decide: on samples with a known truth, and on the CPU
 * backend with a kernel that is right but slow. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/capture.h"
#include "engine/cpu/case.h"
#include "specializer/admission/inputs.h"
#include "specializer/build/build.h"
#include "specializer/candidate/stats.h"
#include "specializer/pipeline/bench.c"
#include "specializer/pipeline/bound.h"
#include "specializer/pipeline/canary.h"
#include "specializer/pipeline/stages.h"
#include "tests/unit/specializer/shapes.h"

static uint64_t state_ = 7;

static double unit(void)
{
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return ((double)(state_ >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit());
}

/* ---- bench ---------------------------------------------------------------------------------- */

static void bench_look_accepts_rejects_or_waits_by_the_interval(void **state)
{
    (void)state;
    struct gain fast = {16, 0.10, 0.05, 0.15}, slow = {16, -0.1, -0.15, -0.05};
    struct gain open = {16, 0.03, 0.01, 0.05}, unknown = {3, 0.5, -1, 1e9};
    assert_int_equal(bench_decide(&fast, 0.02, false), BENCH_FASTER);
    assert_int_equal(bench_decide(&slow, 0.02, false), BENCH_SLOWER);
    assert_int_equal(bench_decide(&open, 0.02, false), BENCH_MORE);
    assert_int_equal(bench_decide(&open, 0.02, true), BENCH_SLOWER);
    assert_int_equal(bench_decide(&unknown, 0.02, false), BENCH_MORE);
}

static struct bench_job job_in(struct dispatch *d, enum region r, int m, int32_t context)
{
    const struct stage_env env = {.dispatch = d};
    const struct capture inputs = {.context = context};
    const struct candidate c = {.slot = dispatch_slot(d, r, 0, m, r == REGION_ATTN ? context : 0)};
    return job_of(&env, &c, c.slot->eager, &inputs);
}

/* What it need not make itself, and what it must leave, is as in steps of now. */
static void a_kernel_is_timed_beside_what_other_slots_hold(void **state)
{
    (void)state;
    struct kernel eager[REGION_COUNT], floats = {.id = "floats", .m_max = 64};
    const struct kernel *of[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++) {
        eager[r] = (struct kernel){.id = "eager",
                                   .region = (enum region)r,
                                   .m_max = INT32_MAX,
                                   .leaves16 = r == REGION_ATTN || r == REGION_MLP_IN,
                                   .reads16 = r == REGION_ATTN_OUT || r == REGION_MLP_OUT};
        of[r] = &eager[r];
    }
    struct dispatch *d = dispatch_open(of, NULL);
    assert_true(job_in(d, REGION_ATTN_OUT, 8, 300).before16);
    assert_true(job_in(d, REGION_MLP_OUT, 8, 300).before16);
    assert_true(job_in(d, REGION_ATTN, 8, 300).after16);
    assert_true(job_in(d, REGION_MLP_IN, 8, 300).after16);
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++) {
        struct bench_job job = job_in(d, (enum region)r, 8, 300);
        assert_int_equal(job.before16, r == REGION_ATTN_OUT || r == REGION_MLP_OUT);
        assert_int_equal(job.after16, r == REGION_ATTN || r == REGION_MLP_IN);
    }
    const enum region other[] = {REGION_ATTN, REGION_MLP_IN, REGION_ATTN_OUT};
    for (int i = 0; i < 3; i++)
        dispatch_publish(d, dispatch_slot(d, other[i], 0, 8, other[i] == REGION_ATTN ? 300 : 0),
                         &floats);
    assert_false(job_in(d, REGION_MLP_OUT, 8, 300).before16);
    assert_false(job_in(d, REGION_ATTN_OUT, 8, 300).before16);
    assert_false(job_in(d, REGION_ATTN, 8, 300).after16);
    assert_true(job_in(d, REGION_MLP_OUT, 64, 300).before16);   /* other steps */
    assert_true(job_in(d, REGION_ATTN_OUT, 8, 20000).before16); /* other contexts */
    assert_true(job_in(d, REGION_MLP_IN, 8, 300).after16);
    dispatch_close(d);
}

/* The whole sequence of analyses on kernels whose true ratio is known; share of acceptances. */
static double accepted(enum bench_kind kind, double ratio, double noise, int rounds)
{
    const struct bench_plan *plan = &bench_plan[kind];
    int yes = 0;
    double a[256], b[256];
    for (int r = 0; r < rounds; r++) {
        enum bench_verdict v = BENCH_MORE;
        for (int i = 0; i < plan->pairs[plan->analyses - 1]; i++) {
            double drift = exp(0.2 * sin(i / 5.0));
            a[i] = ratio * drift * exp(noise * normal()) * (unit() < 0.03 ? 2 : 1);
            b[i] = drift * exp(noise * normal()) * (unit() < 0.03 ? 2 : 1);
        }
        for (int i = 0; i < plan->analyses && v == BENCH_MORE; i++) {
            struct gain g = stats_gain(a, b, plan->pairs[i], 1 - 0.05 / plan->analyses, 1);
            v = bench_decide(&g, 0.02, i == plan->analyses - 1);
        }
        yes += v == BENCH_FASTER;
    }
    return (double)yes / rounds;
}

static void bench_finds_real_gains_and_seldom_invents_one(void **state)
{
    (void)state;
    for (enum bench_kind kind = BENCH_FULL; kind <= BENCH_OPENING; kind++) {
        assert_true(accepted(kind, 1.02, 0.05, 400) < 0.05); /* exactly at the limit */
        assert_true(accepted(kind, 1.00, 0.05, 400) < 0.01);
        assert_true(accepted(kind, 1.10, 0.05, 200) > 0.99);
        assert_true(accepted(kind, 1.04, 0.02, 200) > 0.9);
    }
}

static void bench_bound_counts_what_no_cache_holds_and_arithmetic(void **state)
{
    (void)state;
    struct machine m = {.read_bandwidth = 10e9, .peak_flops = 100e9};
    struct region_cost c = {.weight_bytes = 30000000, .flops = 1600000000};
    /* 30 MB at 1.5 x 10 GB/s: 2 ms; 1.6 GFLOP at 16 x 100 GFLOP/s: 1 ms */
    assert_float_equal(bound_seconds(&m, &c, 900000000, 0), 2e-3, 1e-9);
    assert_float_equal(bound_seconds(&m, &c, 900000000, 20e9), 1e-3, 1e-9);
    assert_float_equal(bound_seconds(&m, &c, 1000000, 0), 1e-3, 1e-9); /* fits a cache */
    /* The same weights, floats in the model's file, in bf16 on a device: half the bytes. */
    m.weight_element = 2;
    c = (struct region_cost){.weight_bytes = 30000000, .weights = 7500000};
    assert_float_equal(bound_seconds(&m, &c, 900000000, 0), 1e-3, 1e-9);
    double bandwidth = bound_read_bandwidth(1 << 20, 1);
    assert_true(bandwidth > 2e7 && bandwidth < 1e13); /* of the slowest and the fastest machine */
}

/* ---- canary --------------------------------------------------------------------------------- */

static void canary_pairs_like_with_like_only(void **state)
{
    (void)state;
    struct canary_step s[] = {
        {100, 1, 50, false},   {200, 4, 50, true}, /* another m */
        {90, 1, 51, true},                         /* pairs with 0 */
        {300, 1, 5000, true},                      /* another context */
        {101, 1, 52, false},                       /* its neighbour 2 is used */
        {310, 1, 5100, false},                     /* with 3: 2 % of the context apart */
        {210, 4, 60, false},                       /* with 1 */
    };
    double a[4], b[4];
    assert_int_equal(canary_pairs(s, 7, a, b), 3);
    assert_float_equal(a[0], 100, 0);
    assert_float_equal(b[0], 90, 0);
    assert_float_equal(a[1], 310, 0);
    assert_float_equal(b[1], 300, 0);
    assert_float_equal(a[2], 210, 0);
    assert_float_equal(b[2], 200, 0);
}

/* One position apart, but attention is another slot's. */
static void canary_pairs_nothing_across_the_end_of_a_context_bucket(void **state)
{
    (void)state;
    struct canary_step s[] = {
        {100, 1, 511, false}, {100, 1, 512, true}, {150, 1, 513, true}, {150, 1, 514, false}};
    double a[2], b[2];
    assert_int_equal(canary_pairs(s, 4, a, b), 2);
    assert_float_equal(a[0], b[0], 0);
    assert_float_equal(a[1], b[1], 0);
    s[1].candidate = false;
    assert_int_equal(canary_pairs(s, 3, a, b), 0);
}

/* Steps that read prompts, each of another number of tokens: time goes by tokens. */
static void canary_pairs_wide_steps_of_nearly_as_many_tokens(void **state)
{
    (void)state;
    struct canary_step s[] = {
        {1000, 1000, 300, false}, {9000, 1200, 300, true}, /* with none of these */
        {1020, 1020, 300, true}, /* with 0: 2 % more in as much more time */
        {2000, 1050, 300, false}, {2100, 1049, 300, false},
        {4000, 1050, 300, true}, /* with 3, which has the same m, not with 4 */
        {100, 64, 300, false},    {101, 65, 300, true}}; /* not wide, and not the same m */
    double a[4], b[4];
    assert_int_equal(canary_pairs(s, 8, a, b), 2);
    assert_float_equal(a[0] / b[0], 1, 1e-9);
    assert_float_equal(a[1] / b[1], 0.5, 1e-9);
}

static void canary_uses_a_step_once_and_not_a_distant_one(void **state)
{
    (void)state;
    struct canary_step s[40];
    for (int i = 0; i < 40; i++)
        s[i] = (struct canary_step){100, 1, 10, i >= 30};
    double a[20], b[20];
    assert_int_equal(canary_pairs(s, 40, a, b), 1); /* 29 and 30: no backlog */
    for (int i = 0; i < 40; i++)
        s[i].candidate = i % 2;
    assert_int_equal(canary_pairs(s, 40, a, b), 20);
    for (int i = 1; i < 39; i++)
        s[i].m = 2 + i; /* 0 and 39 are alike, and too far apart */
    assert_int_equal(canary_pairs(s, 40, a, b), 0);
}

/* All analyses of a canary on steps with a true gain of the whole step; share of passes. */
static double passes(double gain, double promised, double noise, int rounds)
{
    static const int32_t at[] = {32, 96, 288, 864};
    static struct canary_step s[864];
    static double a[432], b[432];
    int yes = 0;
    for (int r = 0; r < rounds; r++) {
        enum canary_verdict v = CANARY_MORE;
        for (int i = 0; i < 864; i++) {
            bool candidate = unit() < 0.5;
            double ns =
                1e6 * (1 + 0.1 * sin(i / 40.0)) * exp(noise * normal()) * (unit() < 0.02 ? 1.5 : 1);
            s[i] =
                (struct canary_step){(int64_t)(candidate ? ns / (1 + gain) : ns), 1, i, candidate};
        }
        for (int i = 0; i < 4 && v == CANARY_MORE; i++) {
            int n = canary_pairs(s, at[i], a, b);
            struct gain g = stats_gain(a, b, n, 1 - 0.05 / 4, (uint64_t)r);
            v = canary_decide(&g, promised, 0.02, i == 3);
        }
        yes += v == CANARY_PASS;
    }
    return (double)yes / rounds;
}

static void canary_holds_a_large_promise_to_its_word(void **state)
{
    (void)state;
    assert_true(passes(0.05, 0.05, 0.03, 60) > 0.95);
    assert_true(passes(0.0, 0.05, 0.03, 100) < 0.06);
    assert_true(passes(-0.03, 0.05, 0.03, 60) < 0.02);
}

static void canary_lets_a_gain_too_small_to_see_pass_unless_it_does_harm(void **state)
{
    (void)state;
    assert_true(passes(0.0005, 0.0005, 0.02, 60) > 0.6);
    assert_true(passes(-0.02, 0.0005, 0.02, 60) < 0.05);
}

static void canary_decides_nothing_on_a_handful_of_pairs(void **state)
{
    (void)state;
    struct gain few = {5, 0.2, 0.1, 0.3};
    assert_int_equal(canary_decide(&few, 0.1, 0.02, false), CANARY_MORE);
    assert_int_equal(canary_decide(&few, 0.0001, 0.02, true), CANARY_SLOWER);
    assert_true(canary_unresolved(&few)); /* and that is no refusal, whatever they say */
    few = (struct gain){5, -0.2, -0.3, -0.1};
    assert_int_equal(canary_decide(&few, 0.1, 0.02, true), CANARY_SLOWER);
    assert_true(canary_unresolved(&few));
    struct gain none = stats_gain(NULL, NULL, 0, 0.95, 1), clear = {40, -0.2, -0.3, -0.1};
    assert_int_equal(canary_decide(&none, 0.1, 0.02, true), CANARY_SLOWER);
    assert_true(canary_unresolved(&none));
    assert_false(canary_unresolved(&clear));
}

static void a_wanted_gain_below_zero_lets_so_much_slower_steps_pass(void **state)
{
    (void)state;
    struct gain slow = {40, -0.2, -0.3, -0.1}, few = {5, 0.2, 0.1, 0.3};
    assert_int_equal(canary_decide(&slow, 0.1, 0, false), CANARY_SLOWER);
    assert_int_equal(canary_decide(&slow, 0.1, -0.25, false), CANARY_SLOWER);
    assert_int_equal(canary_decide(&slow, 0.1, -0.9, false), CANARY_PASS);
    assert_int_equal(canary_decide(&few, 0.1, -0.9, false), CANARY_MORE);
    struct gain fast = {40, 0.01, 0.005, 0.02}; /* above zero it is the bench's alone */
    assert_int_equal(canary_decide(&fast, 0.1, 5, false), CANARY_PASS);
}

/* ---- sampled comparisons --------------------------------------------------------------------- */

/* Beside eager it is the kernel that served which is judged, beside an incumbent the candidate. */
static void comparisons_blame_the_candidate_for_its_own_nan_alone(void **state)
{
    (void)state;
    char text[160];
    struct kernel eager = {.origin = ORIGIN_EAGER}, candidate = {.origin = ORIGIN_TEMPLATE};
    struct stage_env env = {.numerics = NUMERICS_TOLERANCE};
    struct evidence evidence = {.eager_max = 1e-6, .eager_rms = 1e-7};
    struct hook t = {
        .kind = HOOK_COMPARE, .kernel = &eager, .comparisons = 3, .served_nonfinite = 1};
    const char *wrong = compare_verdict(&env, &t, &evidence, text, sizeof text);
    assert_string_equal(wrong, "outputs not finite in 1 of 3 comparisons");
    t = (struct hook){.kind = HOOK_COMPARE, .kernel = &eager, .comparisons = 3, .nonfinite = 1};
    assert_null(compare_verdict(&env, &t, &evidence, text, sizeof text));
    t.kernel = &candidate;
    assert_non_null(compare_verdict(&env, &t, &evidence, text, sizeof text));
    t.nonfinite = 0;
    t.served_nonfinite = 1;
    assert_null(compare_verdict(&env, &t, &evidence, text, sizeof text));
    t.worst_rms = 1;
    wrong = compare_verdict(&env, &t, &evidence, text, sizeof text);
    assert_non_null(strstr(wrong, "rms distance 1 of a row's"));
}

/* ---- the CPU backend ------------------------------------------------------------------------ */

struct workshop {
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct model *model;
    struct backend *backend;
    struct dispatch *dispatch;
    char dir[40], *kernels;
};

static struct kernel *built(struct workshop *l, const char *name)
{
    const char *root = getenv("WHET_SOURCE_ROOT");
    struct candidate *c = xcalloc(1, sizeof *c);
    struct err err = {""};
    c->source = xasprintf("%s/tests/kernels/bad/%s.c", root, name);
    c->object = xasprintf("%s/%s.so", l->dir, name);
    struct build *b = build_start(&l->env, c, &err);
    assert_non_null(b);
    enum stage_result r;
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    assert_int_equal(r, STAGE_PASS);
    struct kernel_object o = {
        .path = c->object, .region = REGION_MLP_OUT, .id = name, .name = name};
    struct kernel *k = backend_cpu.load(l->backend, &o, &err);
    if (!k)
        fail_msg("%s", err.msg);
    unlink(c->object);
    candidate_free(c);
    return k;
}

static int workshop_open(void **state)
{
    const char *root = getenv("WHET_SOURCE_ROOT");
    static const struct model_shape shape = {SMALL_MODEL};
    struct workshop *l = calloc(1, sizeof *l);
    /* Two threads would meet at a barrier, and on a busy machine wait there for each other. */
    struct backend_options options = {
        .threads = 1, .kv_pages = 16, .max_tokens = 16, .max_rows = 4, .pack_bytes = 1 << 20};
    char *argv[] = {"test"};
    struct err err = {""};
    if (!root)
        return -1;
    strcpy(l->dir, "/tmp/whet-bench-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    assert_int_equal(config_parse(&l->config, 1, argv, &err), 0);
    assert_int_equal(compiler_find(&l->config, &l->compiler, &err), 0);
    l->kernels = malloc(strlen(root) + 20);
    sprintf(l->kernels, "%s/kernels", root);
    l->env = (struct stage_env){
        .config = &l->config, .compiler = &l->compiler, .kernel_dir = l->kernels, .alone = true};
    l->model = model_random(&shape, DTYPE_F32, 3);
    l->backend = backend_cpu.open(l->model, &options, &err);
    assert_non_null(l->backend);
    const struct kernel *eager[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = backend_cpu.eager(l->backend, (enum region)r);
    l->dispatch = dispatch_open(eager, NULL);
    backend_cpu.set_dispatch(l->backend, l->dispatch);
    *state = l;
    return 0;
}

static int workshop_close(void **state)
{
    struct workshop *l = *state;
    backend_cpu.close(l->backend);
    dispatch_close(l->dispatch);
    model_close(l->model);
    config_free(&l->config);
    rmdir(l->dir);
    free(l->kernels);
    free(l);
    return 0;
}

static struct gain measured(struct workshop *l, const struct kernel *a, const struct kernel *b,
                            int n)
{
    struct slot *slot = dispatch_slot(l->dispatch, REGION_MLP_OUT, 0, 4, 0);
    struct capture *inputs = capture_seeded(l->model, slot, 64, 1);
    struct err err = {""};
    float a_ns[64], b_ns[64];
    double x[64], y[64];
    struct bench_job job = {
        .slot = slot, .a = a, .b = b, .inputs = inputs, .want = n, .a_ns = a_ns, .b_ns = b_ns};
    int rc;
    while ((rc = backend_cpu.bench(l->backend, &job, 2000000, &err)) == 0)
        ;
    assert_int_equal(rc, 1);
    backend_cpu.bench_end(l->backend, &job);
    capture_free(inputs);
    free(inputs);
    for (int i = 0; i < n; i++) {
        x[i] = (double)a_ns[i];
        y[i] = (double)b_ns[i];
    }
    return stats_gain(x, y, n, 1 - 0.05 / bench_plan[BENCH_FULL].analyses, 1);
}

static void bench_refuses_a_kernel_that_is_right_but_slow(void **state)
{
    struct workshop *l = *state;
    struct kernel *slow = built(l, "slow"), *good = built(l, "good_mlp_out");
    struct gain g = measured(l, good, slow, 16);
    assert_int_equal(bench_decide(&g, 0.02, true), BENCH_SLOWER);
    assert_true(g.high < 0);
    g = measured(l, slow, good, 16);
    assert_int_equal(bench_decide(&g, 0.02, false), BENCH_FASTER);
    backend_cpu.unload(l->backend, slow);
    backend_cpu.unload(l->backend, good);
}

static void capture_seeded_fills_every_region_of_a_slot(void **state)
{
    struct workshop *l = *state;
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct slot *slot = dispatch_slot(l->dispatch, (enum region)r, 0, 6, 256);
        struct capture *c = capture_seeded(l->model, slot, 64, 1);
        assert_int_equal(c->m, 6);
        if (r == REGION_ATTN) {
            assert_int_equal(c->spans, 6);
            assert_int_equal(c->context, 256);
            for (int i = 0; i < 6 * 16; i++)
                assert_in_range(c->page_table[i], 0, c->pages - 1);
        }
        struct kernel_case *k = case_captured(l->model, c, true); /* reads all that it needs */
        case_free(k);
        capture_free(c);
        free(c);
    }
}

/* Else a GPU, whose spare memory has room for 64 MiB of keys, could not bench a winner of long
 * contexts. */
static void capture_seeded_makes_do_with_few_pages_for_a_long_context(void **state)
{
    struct workshop *l = *state;
    struct model model = *l->model;
    model.shape.heads = 32;
    model.shape.kv_heads = 8;
    model.shape.head_dim = 128;
    model.shape.max_context = 131072;
    struct slot *slot = dispatch_slot(l->dispatch, REGION_ATTN, 0, 2, 131072);
    struct capture *c = capture_seeded(&model, slot, 64, 1);
    int64_t bytes = (int64_t)c->pages * KV_PAGE * 8 * 128 * (int64_t)sizeof(float);
    assert_int_equal(c->context, 131072);
    assert_true(bytes <= 64 << 20);
    int32_t newest[2], each = 131072 / KV_PAGE;
    for (int i = 0; i < 2; i++)
        newest[i] = c->page_table[c->span[i].pages_at + each - 1];
    for (int i = 0; i < 2 * each; i++) { /* what the step writes is shared with nobody */
        assert_in_range(c->page_table[i], 0, c->pages - 1);
        if (i % each != each - 1)
            assert_true(c->page_table[i] != newest[0] && c->page_table[i] != newest[1]);
    }
    assert_int_not_equal(newest[0], newest[1]);
    capture_free(c);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bench_look_accepts_rejects_or_waits_by_the_interval),
        cmocka_unit_test(a_kernel_is_timed_beside_what_other_slots_hold),
        cmocka_unit_test(bench_finds_real_gains_and_seldom_invents_one),
        cmocka_unit_test(bench_bound_counts_what_no_cache_holds_and_arithmetic),
        cmocka_unit_test(canary_pairs_like_with_like_only),
        cmocka_unit_test(canary_pairs_nothing_across_the_end_of_a_context_bucket),
        cmocka_unit_test(canary_pairs_wide_steps_of_nearly_as_many_tokens),
        cmocka_unit_test(canary_uses_a_step_once_and_not_a_distant_one),
        cmocka_unit_test(canary_holds_a_large_promise_to_its_word),
        cmocka_unit_test(canary_lets_a_gain_too_small_to_see_pass_unless_it_does_harm),
        cmocka_unit_test(canary_decides_nothing_on_a_handful_of_pairs),
        cmocka_unit_test(a_wanted_gain_below_zero_lets_so_much_slower_steps_pass),
        cmocka_unit_test(comparisons_blame_the_candidate_for_its_own_nan_alone),
        cmocka_unit_test_setup_teardown(bench_refuses_a_kernel_that_is_right_but_slow,
                                        workshop_open, workshop_close),
        cmocka_unit_test_setup_teardown(capture_seeded_fills_every_region_of_a_slot, workshop_open,
                                        workshop_close),
        cmocka_unit_test_setup_teardown(capture_seeded_makes_do_with_few_pages_for_a_long_context,
                                        workshop_open, workshop_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
