/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/eager_attn.c in every build that this processor runs. Where spans have many
 * tokens: right against the oracle, and the same bits with any number of threads. Where they have
 * few: the bits of the canonical order, however keys, heads and tokens are taken together. All of
 * it for keys and values in floats, and for those in bf16. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/case.h"
#include "engine/cpu/case_random.h"
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/kv.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pool.h"
#include "kernels/cpu/lib/lanes.h"
#include "kernels/isa.h"

extern const struct cpu_kernel eager_base[REGION_LOCAL], halves_base[REGION_LOCAL];
#if defined(__x86_64__)
extern const struct cpu_kernel eager_v3[REGION_LOCAL], eager_v4[REGION_LOCAL];
extern const struct cpu_kernel halves_v3[REGION_LOCAL], halves_v4[REGION_LOCAL];
#endif

enum { POOLS = 6 };
static struct pool *pool[POOLS]; /* by size */
static bool halves;              /* keys and values are in bf16 */

/* The builds that run here; returns how many. */
static int builds(const struct cpu_kernel *of[3])
{
    int n = 0;
    of[n++] = halves ? &halves_base[REGION_ATTN] : &eager_base[REGION_ATTN];
#if defined(__x86_64__)
    if (isa_facts()->HAS_AVX2 && __builtin_cpu_supports("bmi2"))
        of[n++] = halves ? &halves_v3[REGION_ATTN] : &eager_v3[REGION_ATTN];
    if (isa_facts()->HAS_AVX512 && __builtin_cpu_supports("bmi2"))
        of[n++] = halves ? &halves_v4[REGION_ATTN] : &eager_v4[REGION_ATTN];
#endif
    return n;
}

static struct model *model_of(int heads, int kv_heads, int head_dim)
{
    struct model_shape shape = {.arch = ARCH_LLAMA,
                                .layers = 1,
                                .hidden = 64,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .ffn = 64,
                                .vocab = 32,
                                .max_context = 4096,
                                .eps = 1e-5f,
                                .rope_base = 10000,
                                .kv_bf16 = halves};
    return model_random(&shape, DTYPE_F32, 5);
}

/* Runs it with so many threads; the output, to be freed. */
static float *output_of(const struct cpu_kernel *k, struct kernel_case *c, int threads,
                        int32_t *rows, int32_t *cols)
{
    float *value;
    case_poison(c);
    pool_run(pool[threads], k->run, case_args(c), k->scratch_bytes(1, threads));
    assert_true(case_output(c, 0, rows, cols, &value));
    assert_null(case_damage(c));
    return value;
}

/* Worst row: root mean square of the difference over that of the reference. */
static double worst_error(const struct oracle_out *ref, const float *got)
{
    int32_t rows = ref->output[0].rows, cols = ref->output[0].cols;
    double worst = 0;
    for (int32_t i = 0; i < rows; i++) {
        double d2 = 0, r2 = 0;
        for (int32_t j = 0; j < cols; j++) {
            double want = ref->output[0].value[(int64_t)i * cols + j];
            double d = (double)got[(int64_t)i * cols + j] - want;
            d2 += d * d;
            r2 += want * want;
        }
        double e = r2 > 0 ? sqrt(d2 / r2) : sqrt(d2);
        worst = e > worst || isnan(e) ? e : worst;
    }
    return worst;
}

static void check(const struct model *m, int tokens, int sequences, int context, enum fill fill)
{
    struct case_shape s = {.region = REGION_ATTN,
                           .m = tokens,
                           .sequences = sequences,
                           .context = context,
                           .ragged = true,
                           .permuted_pages = true};
    struct kernel_case *c = case_random(m, &s, fill, true, true, (uint64_t)tokens);
    const struct cpu_kernel *of[3];
    struct oracle_out ref;
    int32_t rows, cols;
    oracle_run_kv(REGION_ATTN, halves, case_args(c), &ref);
    for (int n = builds(of), i = 0; i < n; i++) {
        float *alone = output_of(of[i], c, 1, &rows, &cols);
        double e = worst_error(&ref, alone);
        if (!(e < 2e-5))
            fail_msg("build %d, %d heads of %d, %d tokens, %d sequences, context %d, %s: error %g",
                     i, m->shape.heads, m->shape.head_dim, tokens, sequences, context,
                     fill_name(fill), e);
        for (int threads = 2; threads < POOLS; threads += 3) {
            float *shared = output_of(of[i], c, threads, &rows, &cols);
            assert_memory_equal(alone, shared, (size_t)rows * (size_t)cols * sizeof *alone);
            free(shared);
        }
        free(alone);
    }
    oracle_free(&ref);
    case_free(c);
}

static void heads_of_any_size_and_number_match_the_oracle(void **state)
{
    (void)state;
    static const int head_dim[] = {36, 64, 80, 96, 128, 256};
    for (size_t i = 0; i < sizeof head_dim / sizeof *head_dim; i++)
        for (int group = 1; group <= 8; group++) {
            int kv_heads = group < 4 ? 2 : 1;
            struct model *m = model_of(kv_heads * group, kv_heads, head_dim[i]);
            check(m, 17 + 3 * group, 1, 290, FILL_NORMAL);
            model_close(m);
        }
}

static void spans_of_any_length_match_the_oracle(void **state)
{
    (void)state;
    static const int tokens[] = {17, 24, 59, 60, 61, 64, 65, 127, 257};
    static const int contexts[] = {1, 16, 255, 256, 257, 530};
    struct model *m = model_of(3, 1, 64);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (size_t j = 0; j < sizeof contexts / sizeof *contexts; j++)
            for (int sequences = 1; sequences <= 4; sequences += 3)
                check(m, tokens[i], sequences, contexts[j], FILL_NORMAL);
    model_close(m);
}

static void unusual_inputs_match_the_oracle(void **state)
{
    (void)state;
    static const enum fill fills[] = {FILL_SMALL, FILL_OUTLIER, FILL_ZERO, FILL_BITS};
    struct model *m = model_of(4, 2, 80);
    for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
        check(m, 75, 2, 300, fills[i]);
    model_close(m);
}

/* ---- few tokens: the canonical order, by lanes.h alone --------------------------------------- */

/* In memory that the next call uses again. */
static const float *rows_at(const struct attn_args *a, const void *pages, const struct span *s,
                            int32_t j, int32_t kvh)
{
    static float row[256];
    int64_t number = a->page_table[s->pages_at + j / KV_PAGE];
    int64_t at = ((number * a->kv_heads + kvh) * KV_PAGE + j % KV_PAGE) * a->head_dim;
    assert_true(a->head_dim <= 256);
    kv_read(halves, pages, at, a->head_dim, row);
    return row;
}

/* One head of a token that looks at n positions. */
static void canonical(const struct attn_args *a, const struct span *s, int32_t n, int32_t kvh,
                      const float *q, float *out)
{
    float top = -INFINITY, sum[LANES] = {0};
    float *p = calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    for (int32_t j = 0; j < n; j++) {
        p[j] = lane_dot(q, rows_at(a, a->k_pages, s, j, kvh), a->head_dim) * a->scale;
        top = p[j] > top ? p[j] : top;
    }
    for (int32_t j = 0; j < n; j++) {
        p[j] = lane_exp(p[j] - top);
        sum[j % LANES] += p[j];
    }
    float r = 1.0f / lane_fold(sum);
    memset(out, 0, (size_t)a->head_dim * sizeof *out);
    for (int32_t j = 0; j < n; j++) {
        const float *v = rows_at(a, a->v_pages, s, j, kvh);
        for (int32_t d = 0; d < a->head_dim; d++)
            out[d] = lane_fma(p[j], v[d], out[d]);
    }
    for (int32_t d = 0; d < a->head_dim; d++)
        out[d] *= r;
    free(p);
}

/* Rows of spans that have few tokens; those of others stay 0. */
static float *canonical_rows(const struct attn_args *a)
{
    int64_t hd = a->head_dim, group = a->heads / a->kv_heads;
    float *out = calloc((size_t)(a->m * a->heads * hd), sizeof *out);
    assert_non_null(out);
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        for (int32_t t = 0; t < s->count && (a->m <= EAGER_NARROW || s->count < 8); t++)
            for (int32_t h = 0; h < a->heads; h++) {
                int64_t at = ((int64_t)(s->first + t) * a->heads + h) * hd;
                canonical(a, s, s->context - s->count + t + 1, (int32_t)(h / group), a->q + at,
                          out + at);
            }
    }
    return out;
}

static void check_bits(const struct model *m, int tokens, int sequences, int context)
{
    struct case_shape shape = {.region = REGION_ATTN,
                               .m = tokens,
                               .sequences = sequences,
                               .context = context,
                               .ragged = true,
                               .permuted_pages = true};
    struct kernel_case *c =
        case_random(m, &shape, FILL_NORMAL, true, true, (uint64_t)(tokens + context));
    const struct attn_args *a = case_args(c);
    const struct cpu_kernel *of[3];
    float *want = canonical_rows(a);
    int32_t rows, cols;
    for (int n = builds(of), i = 0; i < n; i++) {
#if defined(__x86_64__)
        if (of[i] == &eager_base[REGION_ATTN] || of[i] == &halves_base[REGION_ATTN])
            continue; /* it rounds products and sums apart */
#endif
        for (int threads = 1; threads < POOLS; threads++) {
            float *got = output_of(of[i], c, threads, &rows, &cols);
            for (int32_t s = 0; s < a->spans; s++) {
                const struct span *span = &a->span[s];
                int64_t at = (int64_t)span->first * cols, n_row = (int64_t)span->count * cols;
                if ((tokens <= EAGER_NARROW || span->count < 8) &&
                    memcmp(want + at, got + at, (size_t)n_row * sizeof *got) != 0)
                    fail_msg("build %d, %d heads of %d, %d tokens, %d sequences, context %d, %d "
                             "threads: span %d has other bits",
                             i, m->shape.heads, m->shape.head_dim, tokens, sequences, context,
                             threads, s);
            }
            free(got);
        }
    }
    free(want);
    case_free(c);
}

static void few_tokens_keep_the_canonical_order(void **state)
{
    (void)state;
    static const struct {
        int heads, kv_heads, head_dim;
    } of[] = {{9, 3, 64},  {16, 8, 128}, {8, 1, 80}, {6, 2, 36},
              {5, 1, 256}, {4, 4, 96},   {7, 1, 112}};
    static const int contexts[] = {1, 15, 16, 17, 33, 300};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct model *m = model_of(of[i].heads, of[i].kv_heads, of[i].head_dim);
        for (size_t j = 0; j < sizeof contexts / sizeof *contexts; j++) {
            check_bits(m, 1, 1, contexts[j]);
            check_bits(m, 5, 1, contexts[j]);
            check_bits(m, 7, 3, contexts[j]);
        }
        check_bits(m, 16, 2, 100);
        check_bits(m, 30, 9, 100);
        model_close(m);
    }
}

/* More scores than go together: tokens of a span are taken apart. */
static void many_scores_keep_the_canonical_order(void **state)
{
    (void)state;
    struct model *m = model_of(9, 3, 64);
    check_bits(m, 16, 1, 1100);
    check_bits(m, 1, 1, 3000);
    model_close(m);
}

/* ---- both types ------------------------------------------------------------------------------ */

static int in_floats(void **state)
{
    (void)state;
    halves = false;
    return 0;
}

static int in_halves(void **state)
{
    (void)state;
    halves = true;
    return 0;
}

static int open_pools(void **state)
{
    (void)state;
    for (int i = 1; i < POOLS; i++)
        pool[i] = pool_open(i, 0);
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 1; i < POOLS; i++)
        pool_close(pool[i]);
    return 0;
}

#define BOTH(test) cmocka_unit_test_setup(test, in_floats), cmocka_unit_test_setup(test, in_halves)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(heads_of_any_size_and_number_match_the_oracle),
        BOTH(spans_of_any_length_match_the_oracle),
        BOTH(unusual_inputs_match_the_oracle),
        BOTH(few_tokens_keep_the_canonical_order),
        BOTH(many_scores_keep_the_canonical_order),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
