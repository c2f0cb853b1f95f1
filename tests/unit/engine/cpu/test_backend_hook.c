/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what the specializer may do beside a CPU backend's steps: load kernels, hook live steps,
 * bench. The steps themselves: test_backend.c. */
#include "tests/unit/engine/cpu/backend_world.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* ---- kernels of the tests ------------------------------------------------------------------- */

static void run_doubled(const void *args, const struct team *team)
{
    struct out_args a = *(const struct out_args *)args;
    eager_cpu(REGION_MLP_OUT)->run(args, team);
    team->barrier(team);
    for (int32_t i = team->rank; i < a.m * a.w.rows; i += team->size)
        a.y[i] *= 1.5f;
}

static void run_slowly(const void *args, const struct team *team)
{
    struct timespec ms50 = {0, 50000000};
    eager_cpu(REGION_MLP_OUT)->run(args, team);
    nanosleep(&ms50, NULL);
}

static void run_to_nan(const void *args, const struct team *team)
{
    struct out_args a = *(const struct out_args *)args;
    eager_cpu(REGION_MLP_OUT)->run(args, team);
    team->barrier(team);
    if (team->rank == 0)
        a.y[a.w.rows - 1] = NAN;
}

static void run_never(const void *args, const struct team *team)
{
    (void)args;
    (void)team;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static void alone_at_the_barrier(const struct team *team)
{
    (void)team;
}

static void captured_inputs_replay_as_a_case(void **state)
{
    (void)state;
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 17, {7, 0, 11}}, 1);
    struct feed both[] = {{text_b, 0, 5, {10, 12, 13}}, {text_a, 17, 20, {7, 0, 11}}};
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct capture c = {0};
        int32_t m = r == REGION_HEAD ? 2 : 8, rows, cols;
        struct hook t = {.kind = HOOK_CAPTURE,
                         .every = 1,
                         .left = 1,
                         .capture = &c,
                         .slot = dispatch_slot(table, (enum region)r, 0, m, 20)};
        assert_int_equal(backend_cpu.hook(cpu, &t), 0);
        run_step(cpu, &b, both, 2);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(t.left, 0);
        assert_int_equal(c.region, r);
        assert_int_equal(c.m, m);
        struct kernel_case *k = case_captured(model, &c, true);
        struct oracle_out ref;
        struct team alone = {.size = 1, .barrier = alone_at_the_barrier};
        float *got;
        eager_cpu((enum region)r)->run(case_args(k), &alone);
        oracle_run((enum region)r, case_args(k), &ref);
        assert_null(case_damage(k));
        assert_true(case_output(k, 0, &rows, &cols, &got));
        assert_int_equal(rows, ref.output[0].rows);
        for (int64_t i = 0; i < (int64_t)rows * cols; i++)
            assert_true(fabs((double)got[i] - ref.output[0].value[i]) < 1e-3);
        for (int32_t i = 0; r == REGION_HEAD && i < 2; i++) {
            int32_t best = 0;
            for (int32_t v = 1; v < VOCAB; v++)
                best = got[i * VOCAB + v] > got[i * VOCAB + best] ? v : best;
            assert_int_equal(best, b.sample[i].out.token);
        }
        free(got);
        oracle_free(&ref);
        case_free(k);
        capture_free(&c);
    }
}

static void a_capture_of_the_head_has_no_more_sequences_than_rows(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct capture c = {0};
    struct hook t = {.kind = HOOK_CAPTURE,
                     .every = 1,
                     .left = 1,
                     .capture = &c,
                     .slot = dispatch_slot(table, REGION_HEAD, 0, 1, 17)};
    build(&b, (struct feed[]){{text_b, 0, 5, {10, 12, 13}}, {text_a, 0, 17, {7, 0, 11}}}, 2);
    b.step.rows = 1; /* the second is not read to its end yet */
    assert_int_equal(backend_cpu.hook(cpu, &t), 0);
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, &e), 0);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.left, 0);
    assert_int_equal(c.m, 1);
    assert_int_equal(c.spans, 1); /* more are a damaged capture to whoever reads its file */
    capture_free(&c);
}

static void an_observed_eager_kernel_differs_in_no_bit(void **state)
{
    (void)state;
    struct built b;
    for (int r = REGION_ATTN_IN; r < REGION_LOCAL; r++) {
        struct hook t = {.kind = HOOK_COMPARE,
                         .every = 1,
                         .left = 4,
                         .slot =
                             dispatch_slot(table, (enum region)r, 0, r == REGION_HEAD ? 1 : 16, 16),
                         .kernel = backend_cpu.eager(cpu, (enum region)r)};
        assert_int_equal(backend_cpu.hook(cpu, &t), 0);
        for (int i = 0; i < 5; i++)
            run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(t.left, 0);
        assert_int_equal(t.comparisons, 4);
        assert_int_equal(t.different, 0);
        assert_int_equal(t.nonfinite, 0);
        assert_true(t.worst_max == 0 && t.worst_rms == 0);
        assert_true(t.kernel_ns > 0 && t.served_ns > 0);
    }
}

static void a_compared_wrong_kernel_is_seen_and_changes_nothing(void **state)
{
    (void)state;
    struct built before, during;
    struct cpu_kernel c, c2;
    struct kernel wrong = test_kernel(&c, run_doubled, 64), lazy = test_kernel(&c2, run_never, 64);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 16, 16);
    run_step(cpu, &before, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    struct hook t = {.kind = HOOK_COMPARE, .every = 2, .left = 2, .slot = s, .kernel = &wrong};
    backend_cpu.hook(cpu, &t);
    for (int i = 0; i < 2; i++) {
        run_step(cpu, &during, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
        assert_memory_equal(&before.sample[0].out, &during.sample[0].out, sizeof(struct sampled));
        assert_int_equal(t.comparisons, 1); /* one matching step in two */
    }
    assert_int_equal(t.different, 1);
    assert_true(fabs(t.worst_rms - 0.5) < 1e-6 && fabs(t.worst_max - 0.5) < 1e-6);
    struct hook t2 = {.kind = HOOK_COMPARE, .every = 1, .left = 1, .slot = s, .kernel = &lazy};
    backend_cpu.hook(cpu, &t2);
    run_step(cpu, &during, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t2.nonfinite, 1); /* stale outputs are NaN, not yesterday's answer */
}

/* Steps of one kernel, one layer compared in each; what lies behind a NaN has them on both sides.
 */
static void a_served_kernel_that_makes_nan_is_seen_beside_eager(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel bad = test_kernel(&c, run_to_nan, 64);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 16, 16);
    int32_t layers = model->shape.layers;
    struct hook t = {
        .kind = HOOK_COMPARE, .every = 1, .left = layers, .slot = s, .kernel = s->eager};
    backend_cpu.hook(cpu, &t);
    dispatch_publish(table, s, &bad);
    for (int32_t i = 0; i < layers; i++)
        run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    dispatch_publish(table, s, s->eager);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.comparisons, layers);
    assert_int_equal(t.served_nonfinite, 1); /* in layer 0 */
    assert_int_equal(t.nonfinite, 0);
}

static void a_hook_compares_the_runs_of_the_kernel_it_names(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel other = test_kernel(&c, run_doubled, 64);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 16, 16);
    struct hook t = {.kind = HOOK_COMPARE,
                     .every = 1,
                     .left = 9,
                     .slot = s,
                     .kernel = s->eager,
                     .served = &other};
    backend_cpu.hook(cpu, &t);
    run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    assert_int_equal(t.comparisons, 0);
    dispatch_publish(table, s, &other);
    run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    dispatch_publish(table, s, s->eager);
    run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.comparisons, 1);
    assert_int_equal(t.different, 1);
}

/* ---- captures beside a serving engine -------------------------------------------------------- */

enum { HANDED = SANITIZED ? 25 : 100, WITHDRAWN = SANITIZED ? 150 : 600 };
static const enum region with_x[] = {REGION_ATTN_IN, REGION_MLP_IN, REGION_MLP_OUT, REGION_MLP};
enum { WITH_X = sizeof with_x / sizeof *with_x };

/* The other thread's part, and what the engine's finds after it. */
static struct {
    float *x[2][WITH_X][3]; /* [text][region][layer]: inputs as a step alone has them */
    atomic_bool over;
    atomic_long steps;
    int torn, left_behind;
} beside;

static void run_text(int text)
{
    struct built b;
    const struct feed feed[2] = {{text_a, 0, 16, {2, 5, 8}}, {text_b, 0, 16, {3, 6, 9}}};
    run_step(cpu, &b, &feed[text], 1);
}

static struct hook capture_hook(enum region r, struct capture *c)
{
    return (struct hook){.kind = HOOK_CAPTURE,
                         .every = 1,
                         .left = 1,
                         .capture = c,
                         .slot = dispatch_slot(table, r, 0, 16, 16)};
}

static void capture_alone(int text, int region)
{
    for (int32_t i = 0; i < model->shape.layers; i++) {
        struct capture c = {0};
        struct hook t = capture_hook(with_x[region], &c);
        backend_cpu.hook(cpu, &t);
        run_text(text);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(t.left, 0);
        assert_null(beside.x[text][region][c.layer]);
        beside.x[text][region][c.layer] = c.x;
        c.x = NULL;
        capture_free(&c);
    }
}

static void wait_for_steps(long n)
{
    for (long until = atomic_load(&beside.steps) + n; atomic_load(&beside.steps) < until;)
        sched_yield();
}

/* Whether all of it is one layer's inputs in one of the two steps. */
static bool is_of_one_step(const struct capture *c, enum region r, int region)
{
    size_t bytes = (size_t)(16 * model->shape.hidden) * sizeof(float);
    return c->m == 16 && c->region == r && c->x &&
           (memcmp(c->x, beside.x[0][region][c->layer], bytes) == 0 ||
            memcmp(c->x, beside.x[1][region][c->layer], bytes) == 0);
}

/* One whose owner waits for it: it is whole when it is handed over, and stays so while the hook
 * does. */
static void take_handed(int region)
{
    struct capture c = {0};
    struct hook t = capture_hook(with_x[region], &c);
    backend_cpu.hook(cpu, &t);
    while (atomic_load(&t.left) > 0)
        ;
    bool whole = is_of_one_step(&c, with_x[region], region);
    wait_for_steps(2);
    backend_cpu.hook(cpu, NULL);
    beside.torn += !whole || !is_of_one_step(&c, with_x[region], region);
    capture_free(&c);
}

/* One whose owner gives up: from then on nothing is written into it, however late the engine is. */
static void take_withdrawn(int region, int spin)
{
    static const struct capture nothing;
    struct capture c;
    memset(&c, 0, sizeof c);
    struct hook t = capture_hook(with_x[region], &c);
    backend_cpu.hook(cpu, &t);
    for (volatile int i = 0; i < spin; i++)
        ;
    backend_cpu.hook(cpu, NULL);
    if (atomic_load(&t.left) > 0) {
        wait_for_steps(1); /* the one that was under way */
        beside.left_behind += memcmp(&c, &nothing, sizeof c) != 0;
    }
    capture_free(&c);
}

static void *captures(void *unused)
{
    for (int i = 0; i < HANDED; i++)
        take_handed(i % WITH_X);
    for (int i = 0; i < WITHDRAWN; i++)
        take_withdrawn(i % WITH_X, i * 7919 % 60000);
    atomic_store(&beside.over, true);
    return unused;
}

/* A probe measures a kernel against eager on captured inputs, so what a hook hands out must be one
 * region's inputs in one layer of one step, whatever the engine does meanwhile. */
static void a_capture_beside_a_serving_engine_is_of_one_step(void **state)
{
    (void)state;
    pthread_t other;
    for (int text = 0; text < 2; text++)
        for (int region = 0; region < WITH_X; region++)
            capture_alone(text, region);
    assert_int_equal(pthread_create(&other, NULL, captures, NULL), 0);
    while (!atomic_load(&beside.over)) {
        run_text((int)(atomic_load(&beside.steps) & 1));
        atomic_fetch_add(&beside.steps, 1);
    }
    pthread_join(other, NULL);
    assert_int_equal(beside.torn, 0);
    assert_int_equal(beside.left_behind, 0);
    for (int text = 0; text < 2; text++)
        for (int i = 0; i < WITH_X * 3; i++)
            free(beside.x[text][i / 3][i % 3]);
}

/* ---- bench ---------------------------------------------------------------------------------- */

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void bench_is_resumable_and_sees_a_slower_kernel(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct capture c = {0};
    struct cpu_kernel slow_cpu;
    struct kernel slow = test_kernel(&slow_cpu, run_slowly, 64);
    float a_ns[15], b_ns[15];
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 16, 16);
    struct hook t = {.kind = HOOK_CAPTURE, .every = 1, .left = 1, .capture = &c, .slot = s};
    backend_cpu.hook(cpu, &t);
    run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.hook(cpu, NULL);
    struct bench_job job = {
        .slot = s, .a = s->eager, .b = &slow, .inputs = &c, .want = 15, .a_ns = a_ns, .b_ns = b_ns};
    int slices = 0, done = 0;
    while ((done = backend_cpu.bench(cpu, &job, 1, &e)) == 0)
        slices++;
    assert_int_equal(done, 1);
    assert_int_equal(job.have, 15);
    assert_int_equal(slices + 1, 16 * 4); /* one run a slice; the first pair warms up */
    backend_cpu.bench_end(cpu, &job);
    qsort(a_ns, 15, sizeof *a_ns, compare_floats);
    qsort(b_ns, 15, sizeof *b_ns, compare_floats);
    /* However busy the machine is: a sleep is never shorter, and of 15 runs of two threads one does
     * not wait that long for a core. */
    assert_true(b_ns[0] >= 50e6f && a_ns[0] < 50e6f);
    job = (struct bench_job){.slot = dispatch_slot(table, REGION_HEAD, 0, 1, 1),
                             .a = s->eager,
                             .b = &slow,
                             .inputs = &c,
                             .want = 1,
                             .a_ns = a_ns,
                             .b_ns = b_ns};
    assert_int_equal(backend_cpu.bench(cpu, &job, 1, &e), -1);
    assert_non_null(strstr(e.msg, "another region"));
    capture_free(&c);
}

/* ---- loading -------------------------------------------------------------------------------- */

static const char source[] =
    "#include \"kernels/args.h\"\n"
    "static void run(const void *args, const struct team *t) {\n"
    "    const struct out_args *a = args;\n"
    "    const float *w = a->w.packed;\n" /* columns first */
    "    for (int n = t->rank; n < a->w.rows; n += t->size)\n"
    "        for (int i = 0; i < a->m; i++) {\n"
    "            float s = a->x[i * a->w.rows + n];\n"
    "            for (int k = 0; k < a->w.cols; k++)\n"
    "                s += a->in[i * a->w.cols + k] * w[k * a->w.rows + n];\n"
    "            a->y[i * a->w.rows + n] = s;\n"
    "        }\n"
    "}\n"
    "static int64_t scratch(int32_t m, int32_t size) { return 0 * m * size; }\n"
    "#ifndef BYTES\n"
    "#define BYTES 4l * w->rows * w->cols\n"
    "#endif\n"
    "static int64_t bytes(const struct weight *w) { return (void)w, BYTES; }\n"
    "static void pack(const struct weight *w, void *p, int32_t r0, int32_t r1) {\n"
    "    const float *src = w->data; float *dst = p;\n"
    "    for (int n = r0; n < r1; n++)\n"
    "        for (int k = 0; k < w->cols; k++)\n"
    "            dst[k * w->rows + n] = src[n * w->cols + k];\n"
    "}\n"
    "const struct cpu_kernel NAME = {ABI, REGION_MLP_OUT, 64, run, scratch, \"transposed\",\n"
    "                                bytes, pack};\n";

static char folder[64];

static const char *compile(const char *name, const char *defines)
{
    static char path[128];
    char *command;
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    char *file = xasprintf("%s/%s.c", folder, name);
    FILE *f = fopen(file, "w");
    fputs(source, f);
    fclose(f);
    const char *root = getenv("WHET_SOURCE_ROOT");
    command =
        xasprintf("cc -O1 -shared -fPIC -I%s %s -o %s %s", root ? root : ".", defines, path, file);
    assert_int_equal(system(command), 0);
    free(command);
    free(file);
    return path;
}

static struct kernel_object object(const char *path)
{
    return (struct kernel_object){.path = path,
                                  .region = REGION_MLP_OUT,
                                  .origin = ORIGIN_TEMPLATE,
                                  .id = "0123456789abcdef",
                                  .name = "mlp_out test"};
}

static void a_loaded_kernel_serves_from_its_packed_weights(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct kernel_object o = object(compile("good", "-DNAME=whet_kernel -DABI=WHET_CPU_ABI"));
    struct kernel *k = backend_cpu.load(cpu, &o, &e);
    assert_non_null(k);
    assert_string_equal(k->id, "0123456789abcdef");
    struct kernel *twin = backend_cpu.load(cpu, &o, &e); /* shares the packed copy */
    assert_non_null(twin);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 6, 6);
    dispatch_publish(table, s, k);
    backend_cpu.unload(cpu, twin);
    run_step(cpu, &b, &(struct feed){text_b, 0, 6, {3, 2, 1}}, 1);
    assert_follows(&b.sample[0].out, text_b, 6);
    dispatch_publish(table, s, s->eager);
    struct hook t = {.kind = HOOK_COMPARE, .every = 1, .left = 3, .slot = s, .kernel = k};
    backend_cpu.hook(cpu, &t);
    for (int i = 0; i < 3; i++)
        run_step(cpu, &b, &(struct feed){text_b, 0, 6, {3, 2, 1}}, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.comparisons, 3);
    assert_true(t.worst_rms < 1e-5);
    backend_cpu.unload(cpu, k);
}

/* A name is a claim of the object: whoever shares a copy must agree on how long it is. */
static void a_layout_of_another_size_is_not_shared(void **state)
{
    (void)state;
    struct err e = {0};
    struct kernel_object o = object(compile("whole", "-DNAME=whet_kernel -DABI=WHET_CPU_ABI"));
    struct kernel *whole = backend_cpu.load(cpu, &o, &e);
    assert_non_null(whole);
    o = object(compile("small", "-DNAME=whet_kernel -DABI=WHET_CPU_ABI -DBYTES=64"));
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "transposed has 64 bytes"));
    backend_cpu.unload(cpu, whole);
}

static void loading_says_what_is_wrong(void **state)
{
    (void)state;
    struct err e = {0};
    struct kernel_object o = object("/nowhere/kernel.so");
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "/nowhere/kernel.so"));
    o = object(compile("nameless", "-DNAME=something -DABI=WHET_CPU_ABI"));
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "whet_kernel"));
    o = object(compile("old", "-DNAME=whet_kernel -DABI=77"));
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "interface 77"));
    o = object(compile("other", "-DNAME=whet_kernel -DABI=WHET_CPU_ABI"));
    o.region = REGION_HEAD;
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "expected head"));
}

static void packed_weights_are_limited_and_given_back(void **state)
{
    (void)state;
    struct err e = {0};
    struct dispatch *d;
    int64_t need = 3 * 64 * 96 * 4;
    struct kernel_object o = object(compile("packs", "-DNAME=whet_kernel -DABI=WHET_CPU_ABI"));
    struct backend *b = open_cpu(need - 1, &d);
    assert_null(backend_cpu.load(b, &o, &e));
    assert_non_null(strstr(e.msg, "pack_mib"));
    dispatch_close(d);
    backend_cpu.close(b);
    b = open_cpu(need, &d);
    for (int i = 0; i < 3; i++) { /* room for one layout: only if unload gives it back */
        struct kernel *k = backend_cpu.load(b, &o, &e);
        assert_non_null(k);
        backend_cpu.unload(b, k);
    }
    dispatch_close(d);
    backend_cpu.close(b);
}

/* ---- group ---------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/whet-test-backend-XXXXXX");
    return mkdtemp(folder) ? open_backend() : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    close_backend();
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_inputs_replay_as_a_case),
        cmocka_unit_test(an_observed_eager_kernel_differs_in_no_bit),
        cmocka_unit_test(a_compared_wrong_kernel_is_seen_and_changes_nothing),
        cmocka_unit_test(a_served_kernel_that_makes_nan_is_seen_beside_eager),
        cmocka_unit_test(a_hook_compares_the_runs_of_the_kernel_it_names),
        cmocka_unit_test(a_capture_beside_a_serving_engine_is_of_one_step),
        cmocka_unit_test(bench_is_resumable_and_sees_a_slower_kernel),
        cmocka_unit_test(a_loaded_kernel_serves_from_its_packed_weights),
        cmocka_unit_test(a_layout_of_another_size_is_not_shared),
        cmocka_unit_test(loading_says_what_is_wrong),
        cmocka_unit_test(packed_weights_are_limited_and_given_back),
        cmocka_unit_test(a_capture_of_the_head_has_no_more_sequences_than_rows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
