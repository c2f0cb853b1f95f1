/* SPDX-License-Identifier: Apache-2.0 */
/* test_regions.c - every eager region on the device against the oracle, on inputs drawn here.
 *
 * Weights are the same on both sides, so what differs is the rounding of activations to bf16 before
 * a product (relative 2^-9 an element) and float sums. Bounds are on the worst row's relative RMS.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/oracle.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "kernels/bricks.h"
#include "tests/device/device_test.h"

/* Spans of one token each, of contexts around `context`, over shuffled pages. */
static void draw_spans(struct capture *c, const struct model_shape *s, uint64_t *state)
{
    int32_t each = (c->context + KV_PAGE - 1) / KV_PAGE, all = each * c->m;
    c->span = xcalloc((size_t)c->m, sizeof *c->span);
    c->page_table = xmalloc((size_t)all * sizeof *c->page_table);
    for (int32_t i = 0; i < all; i++)
        c->page_table[i] = i;
    for (int32_t i = all - 1; i > 0; i--) {
        int32_t j = (int32_t)(rng(state) % (uint64_t)(i + 1)), t = c->page_table[i];
        c->page_table[i] = c->page_table[j];
        c->page_table[j] = t;
    }
    for (int32_t i = 0; i < c->m; i++) {
        int32_t less = i == 0 ? 0 : (int32_t)(rng(state) % (uint64_t)c->context);
        c->span[i] = (struct span){i, 1, c->context - less, i * each};
    }
    c->spans = c->m;
    c->pages = all;
    int64_t n = (int64_t)all * KV_PAGE * s->kv_heads * s->head_dim;
    c->k_pages = rng_normals(state, n, true);
    c->v_pages = rng_normals(state, n, true);
}

static void draw(struct capture *c, const struct model_shape *s, uint64_t seed)
{
    uint64_t state = seed;
    int64_t q = (int64_t)s->heads * s->head_dim, m = c->m;
    if (c->region != REGION_ATTN)
        c->x = rng_normals(&state, m * s->hidden, false);
    if (c->region == REGION_ATTN || c->region == REGION_ATTN_OUT)
        c->in = rng_normals(&state, m * q, false);
    if (c->region == REGION_MLP_OUT)
        c->in = rng_normals(&state, m * s->ffn, false);
    if (c->region == REGION_ATTN)
        draw_spans(c, s, &state);
    if (c->region == REGION_ATTN_IN) {
        c->position = xmalloc((size_t)m * sizeof *c->position);
        for (int64_t i = 0; i < m; i++)
            c->position[i] = i == 0 ? 0 : (int32_t)(rng(&state) % 4000);
    }
}

static void bind(const struct model *m, const struct capture *c, union region_args *a,
                 float *const rope[2], int32_t *row)
{
    memset(a, 0, sizeof *a);
    a->embed.m = c->m;
    bind_layer(m, c->region, c->layer, a);
    switch (c->region) {
    case REGION_ATTN_IN:
        a->attn_in.x = c->x;
        a->attn_in.position = c->position;
        a->attn_in.rope_cos = rope[0];
        a->attn_in.rope_sin = rope[1];
        break;
    case REGION_ATTN:
        a->attn.spans = c->spans;
        a->attn.q = c->in;
        a->attn.k_pages = c->k_pages;
        a->attn.v_pages = c->v_pages;
        a->attn.span = c->span;
        a->attn.page_table = c->page_table;
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        a->out.in = c->in;
        a->out.x = c->x;
        break;
    case REGION_MLP_IN:
        a->mlp_in.x = c->x;
        break;
    default:
        for (int32_t i = 0; i < c->m; i++)
            row[i] = i;
        a->head.x = c->x;
        a->head.row = row;
        break;
    }
}

/* Device's column of a column of the file's order. */
static int32_t column(const struct model_shape *s, const struct capture *c, int output, int32_t i)
{
    if (c->region != REGION_ATTN_IN || output == 2 || s->rope_interleaved)
        return i;
    int32_t half = s->head_dim / 2, d = i % s->head_dim;
    return i - d + (d < half ? 2 * d : 2 * (d - half) + 1);
}

static double worst_rms(const struct model_shape *s, const struct capture *c, int output,
                        const float *got, const struct oracle_out *want)
{
    double worst = 0;
    int32_t cols = want->output[output].cols;
    for (int32_t r = 0; r < want->output[output].rows; r++) {
        double error = 0, square = 0;
        for (int32_t i = 0; i < cols; i++) {
            double w = want->output[output].value[(int64_t)r * cols + i];
            double d = (double)got[(int64_t)r * cols + column(s, c, output, i)] - w;
            error += d * d;
            square += w * w;
        }
        double rms = sqrt(error / (square + 1e-30));
        worst = isfinite(rms) ? fmax(worst, rms) : HUGE_VAL;
    }
    return worst;
}

static double run_one(struct rig *r, const char *name, enum region region, int32_t m,
                      int32_t context, double bound, float *const rope[2])
{
    const struct model_shape *s = &r->model->shape;
    struct capture c = {.region = region, .layer = 1, .m = m, .spans = m, .context = context};
    union region_args args;
    struct oracle_out want;
    struct err e = {""};
    int32_t row[NARROW];
    float *got[3];
    double worst = 0;
    draw(&c, s, (uint64_t)(m * 131 + context));
    bind(r->model, &c, &args, rope, row);
    oracle_run(region, &args, &want);
    int failed = inputs_run(r->b, r->ops->eager(r->b, region), &c, got, &e);
    check(!failed, false, "%s %s m=%d context=%d runs: %s", name, region_name(region), m, context,
          e.msg);
    for (int o = 0; !failed && o < want.outputs; o++) {
        double rms = worst_rms(s, &c, o, got[o], &want);
        worst = fmax(worst, rms);
        check(rms <= bound, false, "%s %s m=%d context=%d output %d: rms %.2e, at most %.1e", name,
              region_name(region), m, context, o, rms, bound);
    }
    for (int o = 0; o < 3; o++)
        free(got[o]);
    oracle_free(&want);
    capture_free(&c);
    return worst;
}

static void run_shape(const struct shape_row *row, enum dtype type)
{
    static const int32_t ms[] = {1, 2, 3, 5, 16, 33, 64};
    static const int32_t contexts[] = {1, 15, 16, 17, 64, 65, 300, 1000, 4096};
    static const double bound[REGION_COUNT] = {0, 6e-3, 1e-4, 4e-3, 8e-3, 4e-3, 4e-3};
    struct rig r;
    float *rope[2];
    struct model *model = model_random(&row->shape, type, 7);
    model->own_formats = true;
    if (!rig_open(&r, &whet_backend_cuda, model, 512, 128, 64)) {
        rig_close(&r);
        return;
    }
    size_t n = (size_t)r.b->positions * (size_t)row->shape.head_dim / 2;
    rope[0] = xmalloc(n * sizeof(float));
    rope[1] = xmalloc(n * sizeof(float));
    rope_tables(&row->shape, r.b->positions, rope[0], rope[1]);
    for (int g = REGION_ATTN_IN; g < REGION_COUNT; g++) {
        double worst = 0;
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            if (g != REGION_ATTN)
                worst =
                    fmax(worst, run_one(&r, row->name, (enum region)g, ms[i], 1, bound[g], rope));
        for (size_t i = 0; g == REGION_ATTN && i < sizeof contexts / sizeof *contexts; i++)
            for (int32_t m = 1; m <= (contexts[i] > 300 ? 3 : 20); m += m < 3 ? 1 : 17)
                worst = fmax(worst,
                             run_one(&r, row->name, REGION_ATTN, m, contexts[i], bound[g], rope));
        printf("     %-18s %-4s %-9s worst rms %.2e\n", row->name, dtype_name(type),
               region_name((enum region)g), worst);
    }
    free(rope[0]);
    free(rope[1]);
    rig_close(&r);
    model_close(r.model);
}

void test_regions(void)
{
    for (int i = 0; i < device_shape_count; i++)
        if (strstr(device_shapes[i].name, part_of))
            run_shape(&device_shapes[i], DTYPE_BF16);
}

/* Weights in their own formats: rows that are whole bricks, and where the format allows it rows
 * that are not. */
void test_formats(void)
{
    static const int some[] = {0, 2, 3};
    bool before = brief;
    brief = true; /* contexts do not depend on weights */
    for (int k = 0; k < BRICK_KINDS; k++)
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
            int t = brick_type(k);
            const struct shape_row *row = &device_shapes[some[i]];
            bool whole = row->shape.hidden % 256 == 0;
            if (strstr(dtype_name((enum dtype)t), part_of) &&
                (whole || dtype_block((enum dtype)t) == 32)) {
                run_shape(row, (enum dtype)t);
                test_steps_of(row, (enum dtype)t);
            }
        }
    if (strstr("mixed", part_of)) {
        test_steps_mixed(&device_shapes[0], DTYPE_Q4_K, DTYPE_Q6_K);
        test_steps_mixed(&device_shapes[3], DTYPE_Q4_0, DTYPE_Q8_0);
    }
    brief = before;
}
