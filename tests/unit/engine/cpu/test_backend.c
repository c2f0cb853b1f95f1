/* Tests of engine/cpu/backend*: a step against the oracle's forward pass, and what the specializer
 * may do beside it: load kernels, tap live steps, bench. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/backend.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/oracle.h"

enum { VOCAB = 20, PAGES = 24, TOKENS = 40 };

static struct model *model;
static struct backend *cpu;
static struct dispatch *table;

static struct model_shape tiny(void)
{
    return (struct model_shape){.arch = ARCH_QWEN3,
                                .layers = 3,
                                .hidden = 64,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .ffn = 96,
                                .vocab = VOCAB,
                                .max_context = 256,
                                .eps = 1e-6f,
                                .rope_base = 10000};
}

static struct backend *open_cpu(int64_t pack_bytes, struct dispatch **d)
{
    const struct kernel *eager[REGION_COUNT];
    struct backend_options o = {.threads = 2,
                                .kv_pages = PAGES,
                                .max_tokens = TOKENS,
                                .max_rows = 8,
                                .pack_bytes = pack_bytes};
    struct err e = {0};
    struct backend *b = backend_cpu.open(model, &o, &e);
    assert_non_null(b);
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = backend_cpu.eager(b, (enum region)r);
    *d = dispatch_open(eager);
    backend_cpu.set_dispatch(b, *d);
    return b;
}

/* ---- the forward pass by the oracle --------------------------------------------------------- */

static float *to_floats(struct oracle_out *out, int i)
{
    int64_t n = (int64_t)out->output[i].rows * out->output[i].cols;
    float *f = xmalloc((size_t)n * sizeof *f);
    for (int64_t j = 0; j < n; j++)
        f[j] = (float)out->output[i].value[j];
    return f;
}

static float *oracle_region(enum region r, const void *args)
{
    struct oracle_out out;
    oracle_run(r, args, &out);
    float *f = to_floats(&out, 0);
    oracle_free(&out);
    return f;
}

static void to_pages(const float *rows, int32_t n, float *pages)
{
    for (int32_t i = 0; i < n; i++)
        for (int h = 0; h < 2; h++)
            memcpy(pages + ((i / KV_PAGE * 2 + h) * KV_PAGE + i % KV_PAGE) * 32,
                   rows + i * 64 + h * 32, 32 * sizeof(float));
}

/* Attention half of a layer; returns q-projection's attention output, [n, 128]. */
static float *oracle_attention(int layer, int32_t n, const float *x, const float *cosine,
                               const float *sine)
{
    union region_args in = {0}, at = {0};
    static float k[3 * KV_PAGE * 64], v[3 * KV_PAGE * 64];
    static const int32_t pages[3] = {0, 1, 2};
    int32_t position[TOKENS];
    struct span span = {0, n, n, 0};
    struct oracle_out out;
    for (int32_t i = 0; i < n; i++)
        position[i] = i;
    bind_layer(model, REGION_ATTN_IN, layer, &in);
    in.attn_in.m = n;
    in.attn_in.x = x;
    in.attn_in.rope_cos = cosine;
    in.attn_in.rope_sin = sine;
    in.attn_in.position = position;
    oracle_run(REGION_ATTN_IN, &in, &out);
    float *q = to_floats(&out, 0), *kr = to_floats(&out, 1), *vr = to_floats(&out, 2);
    oracle_free(&out);
    to_pages(kr, n, k);
    to_pages(vr, n, v);
    bind_layer(model, REGION_ATTN, layer, &at);
    at.attn.m = n;
    at.attn.spans = 1;
    at.attn.q = q;
    at.attn.k_pages = k;
    at.attn.v_pages = v;
    at.attn.span = &span;
    at.attn.page_table = pages;
    float *a = oracle_region(REGION_ATTN, &at);
    free(q);
    free(kr);
    free(vr);
    return a;
}

static float *oracle_residual(enum region r, int layer, int32_t n, float *in, float *x)
{
    union region_args args = {0};
    bind_layer(model, r, layer, &args);
    args.out.m = n;
    args.out.in = in;
    args.out.x = x;
    float *y = oracle_region(r, &args);
    free(in);
    free(x);
    return y;
}

/* Log-probabilities of what follows the first `n` tokens. */
static void oracle_forward(const int32_t *tokens, int32_t n, double logprob[VOCAB])
{
    static float cosine[TOKENS * 16], sine[TOKENS * 16];
    union region_args args = {0};
    rope_tables(&model->shape, TOKENS, cosine, sine);
    bind_layer(model, REGION_EMBED, 0, &args);
    args.embed.m = n;
    args.embed.tokens = tokens;
    float *x = oracle_region(REGION_EMBED, &args);
    for (int l = 0; l < model->shape.layers; l++) {
        x = oracle_residual(REGION_ATTN_OUT, l, n, oracle_attention(l, n, x, cosine, sine), x);
        bind_layer(model, REGION_MLP_IN, l, &args);
        args.mlp_in.m = n;
        args.mlp_in.x = x;
        x = oracle_residual(REGION_MLP_OUT, l, n, oracle_region(REGION_MLP_IN, &args), x);
    }
    int32_t row = n - 1;
    struct oracle_out out;
    bind_layer(model, REGION_HEAD, 0, &args);
    args.head.m = 1;
    args.head.row = &row;
    args.head.x = x;
    oracle_run(REGION_HEAD, &args, &out);
    double top = -HUGE_VAL, sum = 0;
    for (int i = 0; i < VOCAB; i++)
        top = fmax(top, out.output[0].value[i]);
    for (int i = 0; i < VOCAB; i++)
        sum += exp(out.output[0].value[i] - top);
    for (int i = 0; i < VOCAB; i++)
        logprob[i] = out.output[0].value[i] - top - log(sum);
    oracle_free(&out);
    free(x);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static const struct sampling all_logprobs = {
    .top_p = 1, .repetition_penalty = 1, .top_logprobs = VOCAB};

/* A step of several sequences: each feeds tokens [from, to) of `text`, and wants its last row. */
struct feed {
    const int32_t *text;
    int32_t from, to, pages[3];
};

struct built {
    struct step step;
    int32_t tokens[TOKENS], position[TOKENS], kv_at[TOKENS], page_table[16], row[4];
    struct span span[4];
    struct sample_row sample[4];
};

static void build(struct built *b, const struct feed *feed, int n)
{
    memset(b, 0, sizeof *b);
    for (int s = 0; s < n; s++) {
        const struct feed *f = &feed[s];
        b->span[s] = (struct span){b->step.m, f->to - f->from, f->to, s * 3};
        memcpy(b->page_table + s * 3, f->pages, sizeof f->pages);
        for (int32_t p = f->from; p < f->to; p++) {
            int32_t i = b->step.m++;
            b->tokens[i] = f->text[p];
            b->position[i] = p;
            b->kv_at[i] = f->pages[p / KV_PAGE] * KV_PAGE + p % KV_PAGE;
        }
        b->row[s] = b->step.m - 1;
        b->sample[s] = (struct sample_row){.params = &all_logprobs, .target = -1};
        b->step.context = f->to > b->step.context ? f->to : b->step.context;
    }
    b->step.tokens = b->tokens;
    b->step.position = b->position;
    b->step.kv_at = b->kv_at;
    b->step.span = b->span;
    b->step.page_table = b->page_table;
    b->step.row = b->row;
    b->step.sample = b->sample;
    b->step.spans = b->step.rows = n;
    b->step.pages = 3 * n;
}

static void run_step(struct backend *be, struct built *b, const struct feed *feed, int n)
{
    struct err e = {0};
    build(b, feed, n);
    assert_int_equal(backend_cpu.step(be, &b->step, NULL, NULL, &e), 0);
}

static void assert_follows(const struct sampled *got, const int32_t *text, int32_t n)
{
    double want[VOCAB];
    oracle_forward(text, n, want);
    assert_int_equal(got->tops, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs((double)got->top_logprob[i] - want[got->top_id[i]]) < 2e-4))
            fail_msg("after %d tokens: token %d has %f, the oracle says %f", n, got->top_id[i],
                     (double)got->top_logprob[i], want[got->top_id[i]]);
}

static int32_t text_a[TOKENS], text_b[TOKENS];

static void step_equals_the_oracles_forward_pass(void **state)
{
    (void)state;
    struct built b;
    for (int32_t n = 1; n <= 40; n += n < 3 ? 1 : 12) {
        run_step(cpu, &b, &(struct feed){text_a, 0, n, {5, 2, 9}}, 1);
        assert_follows(&b.sample[0].out, text_a, n);
    }
}

static void chunks_and_single_tokens_give_the_same_answer(void **state)
{
    (void)state;
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 19, {1, 4, 3}}, 1);
    run_step(cpu, &b, &(struct feed){text_a, 19, 30, {1, 4, 3}}, 1);
    for (int32_t n = 30; n < 36; n++) {
        run_step(cpu, &b, &(struct feed){text_a, n, n + 1, {1, 4, 3}}, 1);
        assert_follows(&b.sample[0].out, text_a, n + 1);
    }
}

static void sequences_in_one_step_do_not_mix(void **state)
{
    (void)state;
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 17, {7, 0, 11}}, 1);
    struct feed both[] = {{text_b, 0, 20, {10, 12, 13}}, {text_a, 17, 18, {7, 0, 11}}};
    run_step(cpu, &b, both, 2);
    assert_follows(&b.sample[0].out, text_b, 20);
    assert_follows(&b.sample[1].out, text_a, 18);
}

static void counters_tell_what_ran(void **state)
{
    (void)state;
    struct built b;
    struct slot *s = dispatch_slot(table, REGION_MLP_IN, 11, 11);
    uint64_t steps = s->counters.steps, runs = s->counters.runs, tokens = s->counters.tokens;
    run_step(cpu, &b, &(struct feed){text_a, 0, 11, {1, 2, 3}}, 1);
    assert_int_equal(s->counters.steps - steps, 1);
    assert_int_equal(s->counters.runs - runs, 3);
    assert_int_equal(s->counters.tokens - tokens, 33);
    assert_true(s->counters.ns > 0);
}

static void step_refuses_what_it_was_not_opened_for(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    build(&b, &(struct feed){text_a, 0, 5, {1, 2, 3}}, 1);
    b.position[4] = 256;
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "position 256"));
    b.step.m = TOKENS + 1;
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "41 tokens"));
}

static void machine_constants_are_plausible(void **state)
{
    (void)state;
    const struct machine *m = backend_cpu.machine(cpu);
    assert_true(m->read_bandwidth > 1e8 && m->read_bandwidth < 1e13);
    assert_true(m->peak_flops > 1e8 && m->peak_flops < 1e15);
    assert_true(m->boundary_s > 0 && m->boundary_s < 0.01);
    assert_non_null(strstr(m->device, "2 threads"));
}

/* ---- kernels of the tests ------------------------------------------------------------------- */

static _Atomic int32_t calls;

static void run_counted(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_fetch_add(&calls, 1);
    eager_cpu(REGION_MLP_OUT)->run(args, team);
}

static void run_doubled(const void *args, const struct team *team)
{
    struct out_args a = *(const struct out_args *)args;
    run_counted(args, team);
    team->barrier(team);
    for (int32_t i = team->rank; i < a.m * a.w.rows; i += team->size)
        a.y[i] *= 1.5f;
}

static void run_slowly(const void *args, const struct team *team)
{
    struct timespec ms2 = {0, 2000000};
    eager_cpu(REGION_MLP_OUT)->run(args, team);
    nanosleep(&ms2, NULL);
}

static void run_never(const void *args, const struct team *team)
{
    (void)args;
    (void)team;
}

static int64_t no_bytes(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

static struct kernel test_kernel(struct cpu_kernel *c,
                                 void (*run)(const void *, const struct team *), int32_t m_max)
{
    *c = (struct cpu_kernel){.abi = WHET_CPU_ABI,
                             .region = REGION_MLP_OUT,
                             .m_max = m_max,
                             .run = run,
                             .scratch_bytes = no_bytes};
    return (struct kernel){.id = "test", .region = REGION_MLP_OUT, .m_max = m_max, .cpu = c};
}

static void override_replaces_one_slot_in_one_step(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct cpu_kernel c;
    struct kernel k = test_kernel(&c, run_counted, 64);
    struct slot *mine = dispatch_slot(table, REGION_MLP_OUT, 4, 4);
    struct slot *other = dispatch_slot(table, REGION_MLP_OUT, 8, 8);
    build(&b, &(struct feed){text_a, 0, 4, {1, 2, 3}}, 1);
    calls = 0;
    assert_int_equal(backend_cpu.step(cpu, &b.step, mine, &k, &e), 0);
    assert_int_equal(calls, 3);
    assert_int_equal(backend_cpu.step(cpu, &b.step, other, &k, &e), 0);
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, NULL, &e), 0);
    assert_int_equal(calls, 3);
}

static void kernels_that_take_fewer_tokens_fall_back_to_eager(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel k = test_kernel(&c, run_counted, 3);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 4, 4);
    calls = 0;
    dispatch_publish(table, s, &k);
    run_step(cpu, &b, &(struct feed){text_a, 0, 4, {1, 2, 3}}, 1);
    assert_int_equal(calls, 0);
    assert_follows(&b.sample[0].out, text_a, 4);
    dispatch_publish(table, s, s->eager);
}

/* ---- taps ----------------------------------------------------------------------------------- */

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
        struct tap t = {.kind = TAP_CAPTURE,
                        .every = 1,
                        .left = 1,
                        .capture = &c,
                        .slot = dispatch_slot(table, (enum region)r, m, 20)};
        assert_int_equal(backend_cpu.tap(cpu, &t), 0);
        run_step(cpu, &b, both, 2);
        backend_cpu.tap(cpu, NULL);
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

static void a_tapped_eager_kernel_differs_in_no_bit(void **state)
{
    (void)state;
    struct built b;
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct tap t = {.kind = TAP_COMPARE,
                        .every = 1,
                        .left = 4,
                        .slot = dispatch_slot(table, (enum region)r, r == REGION_HEAD ? 1 : 16, 16),
                        .kernel = backend_cpu.eager(cpu, (enum region)r)};
        assert_int_equal(backend_cpu.tap(cpu, &t), 0);
        for (int i = 0; i < 5; i++)
            run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
        backend_cpu.tap(cpu, NULL);
        assert_int_equal(t.left, 0);
        assert_int_equal(t.looks, 4);
        assert_int_equal(t.different, 0);
        assert_int_equal(t.nonfinite, 0);
        assert_true(t.worst_max == 0 && t.worst_rms == 0);
        assert_true(t.kernel_ns > 0 && t.served_ns > 0);
    }
}

static void a_tapped_wrong_kernel_is_seen_and_changes_nothing(void **state)
{
    (void)state;
    struct built before, during;
    struct cpu_kernel c, c2;
    struct kernel wrong = test_kernel(&c, run_doubled, 64), lazy = test_kernel(&c2, run_never, 64);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 16, 16);
    run_step(cpu, &before, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    struct tap t = {.kind = TAP_COMPARE, .every = 2, .left = 2, .slot = s, .kernel = &wrong};
    backend_cpu.tap(cpu, &t);
    for (int i = 0; i < 2; i++) {
        run_step(cpu, &during, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
        assert_memory_equal(&before.sample[0].out, &during.sample[0].out, sizeof(struct sampled));
        assert_int_equal(t.looks, 1); /* one matching step in two */
    }
    assert_int_equal(t.different, 1);
    assert_true(fabs(t.worst_rms - 0.5) < 1e-6 && fabs(t.worst_max - 0.5) < 1e-6);
    struct tap t2 = {.kind = TAP_COMPARE, .every = 1, .left = 1, .slot = s, .kernel = &lazy};
    backend_cpu.tap(cpu, &t2);
    run_step(cpu, &during, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.tap(cpu, NULL);
    assert_int_equal(t2.nonfinite, 1); /* stale outputs are NaN, not yesterday's answer */
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
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 16, 16);
    struct tap t = {.kind = TAP_CAPTURE, .every = 1, .left = 1, .capture = &c, .slot = s};
    backend_cpu.tap(cpu, &t);
    run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.tap(cpu, NULL);
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
    assert_true(b_ns[7] > a_ns[7] + 1e6f);
    job = (struct bench_job){.slot = dispatch_slot(table, REGION_HEAD, 1, 1),
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
    "static int64_t bytes(const struct weight *w) { return 4l * w->rows * w->cols; }\n"
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
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 6, 6);
    dispatch_publish(table, s, k);
    backend_cpu.unload(cpu, twin);
    run_step(cpu, &b, &(struct feed){text_b, 0, 6, {3, 2, 1}}, 1);
    assert_follows(&b.sample[0].out, text_b, 6);
    dispatch_publish(table, s, s->eager);
    struct tap t = {.kind = TAP_COMPARE, .every = 1, .left = 3, .slot = s, .kernel = k};
    backend_cpu.tap(cpu, &t);
    for (int i = 0; i < 3; i++)
        run_step(cpu, &b, &(struct feed){text_b, 0, 6, {3, 2, 1}}, 1);
    backend_cpu.tap(cpu, NULL);
    assert_int_equal(t.looks, 3);
    assert_true(t.worst_rms < 1e-5);
    backend_cpu.unload(cpu, k);
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
    struct model_shape shape = tiny();
    model = model_random(&shape, DTYPE_F32, 3);
    cpu = open_cpu(1 << 20, &table);
    for (int i = 0; i < TOKENS; i++) {
        text_a[i] = (i * 7 + 3) % VOCAB;
        text_b[i] = (i * i + 11) % VOCAB;
    }
    snprintf(folder, sizeof folder, "/tmp/whet-test-backend-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    dispatch_close(table);
    backend_cpu.close(cpu);
    model_close(model);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_equals_the_oracles_forward_pass),
        cmocka_unit_test(chunks_and_single_tokens_give_the_same_answer),
        cmocka_unit_test(sequences_in_one_step_do_not_mix),
        cmocka_unit_test(counters_tell_what_ran),
        cmocka_unit_test(step_refuses_what_it_was_not_opened_for),
        cmocka_unit_test(machine_constants_are_plausible),
        cmocka_unit_test(override_replaces_one_slot_in_one_step),
        cmocka_unit_test(kernels_that_take_fewer_tokens_fall_back_to_eager),
        cmocka_unit_test(captured_inputs_replay_as_a_case),
        cmocka_unit_test(a_tapped_eager_kernel_differs_in_no_bit),
        cmocka_unit_test(a_tapped_wrong_kernel_is_seen_and_changes_nothing),
        cmocka_unit_test(bench_is_resumable_and_sees_a_slower_kernel),
        cmocka_unit_test(a_loaded_kernel_serves_from_its_packed_weights),
        cmocka_unit_test(loading_says_what_is_wrong),
        cmocka_unit_test(packed_weights_are_limited_and_given_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
