/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/eager*: right against the oracle, and the same bits wherever it runs.
 *
 * The canonical order is checked from outside: `canonical_*` below spell it out with lanes.h alone.
 */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/case_random.h"
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pool.h"
#include "engine/quant.h"
#include "kernels/cpu/lib/lanes.h"

extern const struct cpu_kernel eager_base[REGION_LOCAL];
#if defined(__x86_64__)
extern const struct cpu_kernel eager_v3[REGION_LOCAL], eager_v4[REGION_LOCAL];
extern const struct eager_format format_v3[DTYPE_COUNT], format_v4[DTYPE_COUNT];
#endif

static struct pool *pool[4]; /* by size */

static struct model_shape shape_small(void)
{
    return (struct model_shape){.arch = ARCH_LLAMA,
                                .layers = 1,
                                .hidden = 256,
                                .heads = 6,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .ffn = 512,
                                .vocab = 277,
                                .max_context = 4096,
                                .eps = 1e-5f,
                                .rope_base = 10000};
}

static void run(const struct cpu_kernel *k, struct kernel_case *c, int threads)
{
    case_poison(c);
    pool_run(pool[threads], k->run, case_args(c), k->scratch_bytes(1, threads));
}

/* Worst over rows: root mean square of the difference over that of the reference row. */
static double worst_error(struct kernel_case *c)
{
    struct oracle_out ref;
    double worst = 0;
    oracle_run(case_region(c), case_args(c), &ref);
    for (int o = 0; o < ref.outputs; o++) {
        int32_t rows, cols;
        float *got;
        assert_true(case_output(c, o, &rows, &cols, &got));
        assert_int_equal(rows, ref.output[o].rows);
        assert_int_equal(cols, ref.output[o].cols);
        for (int32_t i = 0; i < rows; i++) {
            double d2 = 0, r2 = 0;
            for (int32_t j = 0; j < cols; j++) {
                double want = ref.output[o].value[(int64_t)i * cols + j];
                double d = (double)got[(int64_t)i * cols + j] - want;
                d2 += d * d;
                r2 += want * want;
            }
            double e = r2 > 0 ? sqrt(d2 / r2) : sqrt(d2);
            worst = e > worst || isnan(e) ? e : worst;
        }
        free(got);
    }
    oracle_free(&ref);
    return worst;
}

static void check(const struct model *m, struct case_shape s, enum fill fill, int threads)
{
    struct kernel_case *c = case_random(m, &s, fill, true, true, (uint64_t)s.m * 31 + s.region);
    run(eager_cpu(s.region), c, threads);
    const char *damage = case_damage(c);
    double e = worst_error(c);
    double limit = fill == FILL_DENORMAL ? 1e-3 : 2e-5; /* subnormals have few bits to begin with */
    if (damage || !(e < limit))
        fail_msg("region %d m %d sequences %d context %d fill %s threads %d: error %g, %s",
                 s.region, s.m, s.sequences, s.context, fill_name(fill), threads, e,
                 damage ? damage : "no damage");
    case_free(c);
}

static void every_region_matches_the_oracle(void **state)
{
    (void)state;
    static const int tokens[] = {1, 2, 3, 7, 16, 17, 40};
    struct model_shape shape = shape_small();
    struct model *m = model_random(&shape, DTYPE_Q4_1, 5);
    for (int r = 0; r < REGION_LOCAL; r++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            struct case_shape s = {.region = (enum region)r,
                                   .m = tokens[i],
                                   .sequences = 3,
                                   .context = 50,
                                   .ragged = true,
                                   .permuted_pages = true};
            check(m, s, FILL_NORMAL, (int)(i % 3) + 1);
        }
    model_close(m);
}

static void every_format_matches_the_oracle(void **state)
{
    (void)state;
    static const enum region linear[] = {REGION_EMBED,  REGION_ATTN_IN, REGION_ATTN_OUT,
                                         REGION_MLP_IN, REGION_MLP_OUT, REGION_HEAD};
    static const int tokens[] = {1, 9, 20};
    struct model_shape shape = shape_small();
    shape.heads = 8; /* 512 columns of wo: whole blocks of 256 */
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct model *m = model_random(&shape, DTYPE_F32, 5);
        struct layer *l = &m->layer[0];
        struct weight *w[] = {&m->embed, &m->head, &l->wq, &l->wk,  &l->wv,
                              &l->wo,    &l->gate, &l->up, &l->down};
        for (size_t i = 0; i < sizeof w / sizeof *w; i++)
            w[i]->type = t; /* case_random draws blocks of that format */
        for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
            for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++) {
                struct case_shape s = {
                    .region = linear[i], .m = tokens[k], .sequences = 1, .context = 30};
                check(m, s, FILL_NORMAL, 2);
            }
        model_close(m);
    }
}

static void expanded_rows_equal_dequant_row(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct weight w = {.rows = 40, .cols = 512, .type = t};
        uint8_t *data = xaligned((size_t)dtype_bytes((enum dtype)t, 40 * 512));
        float *want = xmalloc(512 * sizeof *want), *got = xmalloc(512 * sizeof *got);
        struct random r = {7};
        random_weight(&r, &w, data, false);
        for (int i = 0; i < 40; i++) {
            const uint8_t *row = data + dtype_bytes((enum dtype)t, 512) * i;
            dequant_row((enum dtype)t, row, want, 512);
            format_base[t].expand(row, got, 512);
            for (int j = 0; j < 512; j++)
                assert_true(got[j] == want[j]); /* the sign of a zero may differ */
#if defined(__x86_64__)
            if (__builtin_cpu_supports("avx512vl"))
                format_v4[t].expand(row, got, 512);
            for (int j = 0; j < 512; j++)
                assert_true(got[j] == want[j]);
            if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
                format_v3[t].expand(row, got, 512);
            for (int j = 0; j < 512; j++)
                assert_true(got[j] == want[j]);
#endif
        }
        free(data);
        free(want);
        free(got);
    }
}

static void odd_shapes_and_heads_match_the_oracle(void **state)
{
    (void)state;
    static const struct {
        int hidden, heads, kv_heads, head_dim, ffn, vocab, interleaved;
        enum arch arch;
    } odd[] = {
        {100, 3, 3, 10, 77, 51, 0, ARCH_LLAMA},  {52, 1, 1, 4, 7, 3, 1, ARCH_LLAMA},
        {96, 4, 1, 128, 130, 99, 0, ARCH_QWEN3}, {64, 8, 2, 80, 48, 130, 1, ARCH_QWEN3},
        {72, 4, 2, 36, 99, 64, 0, ARCH_QWEN2},   {576, 9, 3, 64, 100, 65, 1, ARCH_LLAMA},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct model_shape shape = shape_small();
        shape.arch = odd[i].arch;
        shape.hidden = odd[i].hidden;
        shape.heads = odd[i].heads;
        shape.kv_heads = odd[i].kv_heads;
        shape.head_dim = odd[i].head_dim;
        shape.ffn = odd[i].ffn;
        shape.vocab = odd[i].vocab;
        shape.rope_interleaved = odd[i].interleaved;
        struct model *m = model_random(&shape, i % 2 ? DTYPE_BF16 : DTYPE_F32, 7);
        for (int r = 0; r < REGION_LOCAL; r++)
            for (int tokens = 1; tokens < 20; tokens += 6) {
                struct case_shape s = {.region = (enum region)r,
                                       .m = tokens,
                                       .sequences = 2,
                                       .context = 21,
                                       .ragged = true,
                                       .permuted_pages = true};
                check(m, s, FILL_NORMAL, 3);
            }
        model_close(m);
    }
}

static void attention_is_right_at_page_edges_and_long_contexts(void **state)
{
    (void)state;
    static const int contexts[] = {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 600, 1200};
    static const int tokens[] = {1, 5, 16, 33, 150};
    struct model_shape shape = shape_small();
    struct model *m = model_random(&shape, DTYPE_F32, 5);
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++)
            for (int sequences = 1; sequences <= 4; sequences += 3) {
                if (contexts[i] > 300 && tokens[j] > 33) /* 180,000 products of heads are minutes */
                    continue;
                struct case_shape s = {.region = REGION_ATTN,
                                       .m = tokens[j],
                                       .sequences = sequences,
                                       .context = contexts[i],
                                       .ragged = true,
                                       .permuted_pages = true};
                check(m, s, FILL_NORMAL, 2);
            }
    model_close(m);
}

static void unusual_inputs_match_the_oracle(void **state)
{
    (void)state;
    static const enum fill fills[] = {FILL_SMALL, FILL_OUTLIER, FILL_ZERO, FILL_DENORMAL,
                                      FILL_BITS};
    struct model_shape shape = shape_small();
    struct model *m = model_random(&shape, DTYPE_Q8_0, 5);
    for (int r = 0; r < REGION_LOCAL; r++)
        for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
            for (int tokens = 1; tokens <= 19; tokens += 9) {
                struct case_shape s = {
                    .region = (enum region)r, .m = tokens, .sequences = 2, .context = 40};
                if (r != REGION_MLP_IN || fills[i] != FILL_DENORMAL) /* gate * up is below 1e-45 */
                    check(m, s, fills[i], 2);
            }
    model_close(m);
}

/* Whole-number weights and 0/1 inputs: every partial sum is exact, so any order gives these bits.
 */
static void exact_sums_are_exact(void **state)
{
    (void)state;
    struct model_shape shape = shape_small();
    for (int t = DTYPE_Q8_0; t <= DTYPE_Q5_1; t++) {
        struct model *m = model_random(&shape, DTYPE_F32, 5);
        m->layer[0].down.type = t;
        for (int tokens = 1; tokens <= 30; tokens += 29) {
            struct case_shape s = {.region = REGION_MLP_OUT, .m = tokens};
            struct kernel_case *c = case_random(m, &s, FILL_BITS, true, true, 3);
            run(eager_cpu(REGION_MLP_OUT), c, 2);
            assert_true(worst_error(c) == 0);
            case_free(c);
        }
        model_close(m);
    }
}

/* ---- bits ----------------------------------------------------------------------------------- */

static float *bits_of(const struct cpu_kernel *k, struct kernel_case *c, int threads, int o,
                      size_t *bytes)
{
    int32_t rows, cols;
    float *v;
    run(k, c, threads);
    assert_true(case_output(c, o, &rows, &cols, &v));
    *bytes = (size_t)rows * (size_t)cols * sizeof *v;
    return v;
}

static void assert_same_bits(const struct cpu_kernel *a, const struct cpu_kernel *b,
                             struct kernel_case *c, int threads_a, int threads_b)
{
    for (int o = 0; o < (case_region(c) == REGION_ATTN_IN ? 3 : 1); o++) {
        size_t n, n2;
        float *x = bits_of(a, c, threads_a, o, &n), *y = bits_of(b, c, threads_b, o, &n2);
        assert_int_equal(n, n2);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
    }
}

/* The copy for processors without fused multiply-adds rounds products and sums apart: other bits,
 * but close ones, and the same with any threads. In a sanitized build it has those of the others.
 */
static void assert_base(const struct cpu_kernel *best, const struct cpu_kernel *base,
                        struct kernel_case *c)
{
    assert_same_bits(base, base, c, 1, 3);
    if (SANITIZED) {
        assert_same_bits(best, base, c, 2, 2);
        return;
    }
    for (int o = 0; o < (case_region(c) == REGION_ATTN_IN ? 3 : 1); o++) {
        size_t n, n2;
        float *x = bits_of(best, c, 2, o, &n), *y = bits_of(base, c, 2, o, &n2), top = 0;
        assert_int_equal(n, n2);
        for (size_t i = 0; i < n / sizeof *x; i++)
            top = fmaxf(top, fabsf(x[i]));
        for (size_t i = 0; i < n / sizeof *x; i++)
            assert_true(x[i] == y[i] || fabsf(x[i] - y[i]) <= 1e-4f * top);
        free(x);
        free(y);
    }
}

static void narrow_bits_do_not_depend_on_instruction_set_or_threads(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16, DTYPE_Q8_0,
                                       DTYPE_Q4_1, DTYPE_IQ4_NL, DTYPE_MXFP4};
    static const int tokens[] = {1, 2, 5, 16};
    struct model_shape shape = shape_small();
    shape.arch = ARCH_QWEN3;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct model *m = model_random(&shape, types[t], 5);
        for (int r = 0; r < REGION_LOCAL; r++)
            for (size_t i = 0; i < 4; i++) {
                struct case_shape s = {
                    .region = (enum region)r, .m = tokens[i], .sequences = 2, .context = 70};
                struct kernel_case *c = case_random(m, &s, FILL_NORMAL, true, false, 11);
                const struct cpu_kernel *best = eager_cpu((enum region)r);
                assert_same_bits(best, best, c, 1, 3);
                if (best != &eager_base[r])
                    assert_base(best, &eager_base[r], c);
#if defined(__x86_64__)
                if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
                    assert_same_bits(best, &eager_v3[r], c, 2, 2);
#endif
                case_free(c);
            }
        model_close(m);
    }
}

/* Whoever took which rows. */
static void wide_bits_are_the_same_every_time(void **state)
{
    (void)state;
    struct model_shape shape = shape_small();
    struct model *m = model_random(&shape, DTYPE_Q4_1, 5);
    for (int r = 0; r < REGION_LOCAL; r++) {
        struct case_shape s = {
            .region = (enum region)r, .m = 70, .sequences = 2, .context = 90, .ragged = true};
        struct kernel_case *c = case_random(m, &s, FILL_NORMAL, true, false, 11);
        for (int i = 0; i < 4; i++)
            assert_same_bits(eager_cpu((enum region)r), eager_cpu((enum region)r), c, 3, 3);
        case_free(c);
    }
    model_close(m);
}

static void one_token_has_the_bits_it_has_in_a_step_of_many(void **state)
{
    (void)state;
    struct model_shape shape = shape_small();
    for (int t = 0; t <= DTYPE_Q5_1; t++) {
        struct model *m = model_random(&shape, DTYPE_F32, 5);
        m->layer[0].down.type = t;
        struct case_shape s = {.region = REGION_MLP_OUT, .m = 7};
        struct kernel_case *c = case_random(m, &s, FILL_NORMAL, true, true, 9);
        size_t n;
        float *seven = bits_of(eager_cpu(REGION_MLP_OUT), c, 2, 0, &n);
        struct out_args one = *(struct out_args *)case_args(c);
        float *y = xcalloc((size_t)shape.hidden, sizeof *y);
        one.m = 1;
        one.in += 6 * shape.ffn;
        one.x += 6 * shape.hidden;
        one.y = y;
        pool_run(pool[2], eager_cpu(REGION_MLP_OUT)->run, &one, 0);
        assert_memory_equal(y, seven + 6 * shape.hidden, (size_t)shape.hidden * sizeof *y);
        free(y);
        free(seven);
        case_free(c);
        model_close(m);
    }
}

static void linear_regions_follow_the_canonical_order(void **state)
{
    (void)state;
    struct model_shape shape = shape_small();
    shape.ffn = 500; /* a tail of 4 behind the sets of 16 */
    struct model *m = model_random(&shape, DTYPE_F16, 5);
    struct case_shape s = {.region = REGION_MLP_OUT, .m = 1};
    for (s.m = 1; s.m <= 3; s.m++) {
        struct kernel_case *c = case_random(m, &s, FILL_NORMAL, true, true, 9);
        const struct out_args *a = case_args(c);
        float *w = xmalloc((size_t)shape.ffn * sizeof *w);
        run(eager_cpu(REGION_MLP_OUT), c, 2);
        for (int i = 0; i < s.m; i++)
            for (int n = 0; n < shape.hidden; n++) {
                dequant_row(DTYPE_F16, (const char *)a->w.data + n * 2 * shape.ffn, w, shape.ffn);
                float want = lane_dot(w, a->in + i * shape.ffn, shape.ffn);
                want += a->x[i * shape.hidden + n];
                assert_memory_equal(&want, &a->y[i * shape.hidden + n], sizeof want);
            }
        free(w);
        case_free(c);
    }
    model_close(m);
}

/* Rows of one token are read in other ways as they become longer; a step's last rows are fewer than
 * are read together. */
static void rows_of_any_length_follow_the_canonical_order(void **state)
{
    (void)state;
    enum { ROWS = 21, LONG = 10240 };
    static const int cols[] = {256, 512, 1536, LONG};
    float *w = xmalloc(LONG * sizeof *w), *x = xmalloc(LONG * sizeof *x);
    for (int i = 0; i < LONG; i++)
        x[i] = (float)((i * 37 + 11) % 101 - 50) / 64;
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (size_t k = 0; k < sizeof cols / sizeof *cols; k++) {
            int64_t stride = dtype_bytes((enum dtype)t, cols[k]);
            char *data = xmalloc((size_t)(ROWS * stride));
            float y[ROWS], before[ROWS];
            for (int n = 0; n < ROWS; n++) {
                for (int i = 0; i < cols[k]; i++)
                    w[i] = (float)((i * 29 + n * 53 + i / 16 * 7) % 97 - 48) / 512;
                quant_row((enum dtype)t, w, data + n * stride, cols[k]);
                before[n] = (float)n;
            }
            struct out_args a = {.m = 1, .in = x, .x = before, .y = y};
            a.w = (struct weight){.type = t, .rows = ROWS, .cols = cols[k], .data = data};
            pool_run(pool[2], eager_cpu(REGION_MLP_OUT)->run, &a, 0);
            for (int n = 0; n < ROWS; n++) {
                dequant_row((enum dtype)t, data + n * stride, w, cols[k]);
                float want = lane_dot(w, x, cols[k]) + before[n];
                assert_memory_equal(&want, &y[n], sizeof want);
            }
            free(data);
        }
    free(w);
    free(x);
}

static void attention_and_mlp_follow_the_canonical_order(void **state)
{
    (void)state;
    struct model_shape shape = shape_small();
    struct model *m = model_random(&shape, DTYPE_F32, 5);
    struct case_shape s = {.region = REGION_MLP_IN, .m = 1};
    struct kernel_case *c = case_random(m, &s, FILL_NORMAL, true, true, 9);
    const struct mlp_in_args *a = case_args(c);
    float n[256];
    run(eager_cpu(REGION_MLP_IN), c, 2);
    lane_rmsnorm(n, a->x, a->norm, shape.hidden, a->eps);
    for (int i = 0; i < shape.ffn; i++) {
        float g = lane_dot((const float *)a->gate.data + i * 256, n, 256);
        float want = lane_silu_mul(g, lane_dot((const float *)a->up.data + i * 256, n, 256));
        assert_memory_equal(&want, &a->h[i], sizeof want);
    }
    case_free(c);
    s = (struct case_shape){.region = REGION_ATTN, .m = 1, .sequences = 1, .context = 37};
    c = case_random(m, &s, FILL_NORMAL, true, true, 9);
    const struct attn_args *t = case_args(c);
    run(eager_cpu(REGION_ATTN), c, 1);
    for (int h = 0; h < 6; h++) {
        float p[37], sum[LANES] = {0}, top = -INFINITY, out[64] = {0};
        const float *k = (const float *)t->k_pages + (h / 3) * 16 * 64, *v = t->v_pages;
        for (int j = 0; j < 37; j++) { /* pages in order: page j / 16 is page j / 16 */
            p[j] = lane_dot(t->q + h * 64, k + (j / 16 * 32 + j % 16) * 64, 64) * t->scale;
            top = fmaxf(top, p[j]);
        }
        for (int j = 0; j < 37; j++)
            sum[j % 16] += p[j] = lane_exp(p[j] - top);
        float r = 1.0f / lane_fold(sum);
        for (int d = 0; d < 64; d++) {
            for (int j = 0; j < 37; j++)
                out[d] = lane_fma(p[j], v[((h / 3) * 16 + j / 16 * 32 + j % 16) * 64 + d], out[d]);
            out[d] *= r;
        }
        assert_memory_equal(out, t->a + h * 64, sizeof out);
    }
    case_free(c);
    model_close(m);
}

/* ---- group ---------------------------------------------------------------------------------- */

static int open_pools(void **state)
{
    (void)state;
    for (int i = 1; i < 4; i++)
        pool[i] = pool_open(i, 0);
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 1; i < 4; i++)
        pool_close(pool[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_region_matches_the_oracle),
        cmocka_unit_test(every_format_matches_the_oracle),
        cmocka_unit_test(expanded_rows_equal_dequant_row),
        cmocka_unit_test(odd_shapes_and_heads_match_the_oracle),
        cmocka_unit_test(attention_is_right_at_page_edges_and_long_contexts),
        cmocka_unit_test(unusual_inputs_match_the_oracle),
        cmocka_unit_test(exact_sums_are_exact),
        cmocka_unit_test(narrow_bits_do_not_depend_on_instruction_set_or_threads),
        cmocka_unit_test(wide_bits_are_the_same_every_time),
        cmocka_unit_test(one_token_has_the_bits_it_has_in_a_step_of_many),
        cmocka_unit_test(linear_regions_follow_the_canonical_order),
        cmocka_unit_test(rows_of_any_length_follow_the_canonical_order),
        cmocka_unit_test(attention_and_mlp_follow_the_canonical_order),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
