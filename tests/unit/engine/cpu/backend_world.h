/* SPDX-License-Identifier: Apache-2.0 */
/* backend_world.h - a tiny model on the CPU backend, its forward pass by the oracle, and steps and
 * kernels that tests make: what all tests of engine/cpu/backend* stand on.
 */
#ifndef WHET_TESTS_UNIT_ENGINE_CPU_BACKEND_WORLD_H
#define WHET_TESTS_UNIT_ENGINE_CPU_BACKEND_WORLD_H

#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    const struct kernel *eager[REGION_LOCAL];
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
    for (int r = REGION_COUNT; r < REGION_LOCAL; r++)
        eager[r] = backend_cpu.fused(b, (enum region)r);
    *d = dispatch_open_fused(eager, formats_open(model, MACHINE_CPU));
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

static const struct sampling all_logprobs = {SAMPLING_NEUTRAL, .top_logprobs = VOCAB};

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

static inline void run_step(struct backend *be, struct built *b, const struct feed *feed, int n)
{
    struct err e = {0};
    build(b, feed, n);
    assert_int_equal(backend_cpu.step(be, &b->step, NULL, &e), 0);
}

static inline void assert_follows(const struct sampled *got, const int32_t *text, int32_t n)
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

/* ---- kernels -------------------------------------------------------------------------------- */

static int64_t no_bytes(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

/* A kernel of mlp_out for up to `m_max` tokens that does what `run` does. */
static inline struct kernel
test_kernel(struct cpu_kernel *c, void (*run)(const void *, const struct team *), int32_t m_max)
{
    *c = (struct cpu_kernel){.abi = WHET_CPU_ABI,
                             .region = REGION_MLP_OUT,
                             .m_max = m_max,
                             .run = run,
                             .scratch_bytes = no_bytes};
    return (struct kernel){.id = "test", .region = REGION_MLP_OUT, .m_max = m_max, .cpu = c};
}

/* ---- group ---------------------------------------------------------------------------------- */

static int open_backend(void)
{
    struct model_shape shape = tiny();
    model = model_random(&shape, DTYPE_F32, 3);
    cpu = open_cpu(1 << 20, &table);
    for (int i = 0; i < TOKENS; i++) {
        text_a[i] = (i * 7 + 3) % VOCAB;
        text_b[i] = (i * i + 11) % VOCAB;
    }
    return 0;
}

static void close_backend(void)
{
    dispatch_close(table);
    backend_cpu.close(cpu);
    model_close(model);
}

/* For cmocka_run_group_tests(). */
static inline int backend_set_up(void **state)
{
    (void)state;
    return open_backend();
}

static inline int backend_tear_down(void **state)
{
    (void)state;
    close_backend();
    return 0;
}

#endif
