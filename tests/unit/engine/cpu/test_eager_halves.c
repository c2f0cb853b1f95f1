/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of attn_in in engine/cpu/eager_region.c where the cache has bf16, in every build that this
 * processor runs: k and v of a narrow step are those of the cache of floats, rounded once, at the
 * end; those of a wide one are as near to the oracle as bf16 is. q has the same bits as ever. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/case.h"
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pool.h"
#include "engine/quant.h"
#include "kernels/isa.h"

extern const struct cpu_kernel eager_base[REGION_LOCAL], halves_base[REGION_LOCAL];
#if defined(__x86_64__)
extern const struct cpu_kernel eager_v3[REGION_LOCAL], eager_v4[REGION_LOCAL];
extern const struct cpu_kernel halves_v3[REGION_LOCAL], halves_v4[REGION_LOCAL];
#endif

enum { THREADS = 4 };
static struct pool *pool[THREADS]; /* by size */

/* The builds that run here, for floats and for bf16; returns how many. */
static int builds(const struct cpu_kernel *of[3][2])
{
    int n = 0;
    of[n][0] = eager_base, of[n++][1] = halves_base;
#if defined(__x86_64__)
    if (isa_facts()->HAS_AVX2 && __builtin_cpu_supports("bmi2"))
        of[n][0] = eager_v3, of[n++][1] = halves_v3;
    if (isa_facts()->HAS_AVX512 && __builtin_cpu_supports("bmi2"))
        of[n][0] = eager_v4, of[n++][1] = halves_v4;
#endif
    return n;
}

/* Qwen2 has biases, Qwen3 a norm of each head of q and k. */
static struct model *model_of(enum arch arch, int heads, int kv_heads, int head_dim)
{
    struct model_shape shape = {.arch = arch,
                                .layers = 1,
                                .hidden = 96,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .ffn = 64,
                                .vocab = 32,
                                .max_context = 4096,
                                .eps = 1e-5f,
                                .rope_base = 10000,
                                .rope_interleaved = arch == ARCH_LLAMA};
    return model_random(&shape, DTYPE_F32, 5);
}

static float *output_of(const struct cpu_kernel *k, struct kernel_case *c, int threads, int i,
                        int32_t *n)
{
    int32_t rows, cols;
    float *value;
    case_poison(c);
    pool_run(pool[threads], k->run, case_args(c), k->scratch_bytes(1, threads));
    assert_true(case_output(c, i, &rows, &cols, &value));
    assert_null(case_damage(c));
    *n = rows * cols;
    return value;
}

/* Either `model` in turn, as nothing but its shape says what its cache has. */
static struct kernel_case *case_of(struct model *model, bool kv_bf16, int tokens)
{
    const struct case_shape shape = {.region = REGION_ATTN_IN,
                                     .m = tokens,
                                     .sequences = tokens < 3 ? 1 : 3,
                                     .context = 40,
                                     .ragged = true,
                                     .permuted_pages = true};
    model->shape.kv_bf16 = kv_bf16;
    return case_random(model, &shape, FILL_NORMAL, true, true, (uint64_t)tokens);
}

static void check_narrow(struct model *m, int tokens)
{
    const struct cpu_kernel *of[3][2];
    for (int n = builds(of), b = 0; b < n; b++)
        for (int threads = 1; threads < THREADS; threads++)
            for (int i = 0; i < 3; i++) {
                int32_t count, same;
                struct kernel_case *c = case_of(m, false, tokens);
                float *want = output_of(&of[b][0][REGION_ATTN_IN], c, threads, i, &count);
                case_free(c);
                c = case_of(m, true, tokens);
                float *got = output_of(&of[b][1][REGION_ATTN_IN], c, threads, i, &same);
                case_free(c);
                assert_int_equal(count, same);
                for (int32_t j = 0; j < count; j++) {
                    float is = i == 0 ? want[j] : bf16_to_f32(f32_to_bf16(want[j]));
                    if (memcmp(&got[j], &is, sizeof is) != 0)
                        fail_msg("build %d, %d tokens, %d threads, output %d: %a, not %a of %a", b,
                                 tokens, threads, i, (double)got[j], (double)is, (double)want[j]);
                }
                free(want);
                free(got);
            }
}

static void keys_and_values_of_few_tokens_are_rounded_once(void **state)
{
    (void)state;
    static const enum arch arch[] = {ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3};
    static const int tokens[] = {1, 2, 7, 16};
    for (size_t a = 0; a < 3; a++)
        for (size_t i = 0; i < 4; i++) {
            struct model *m = model_of(arch[a], 6, a == 1 ? 2 : 3, a == 2 ? 128 : 64);
            check_narrow(m, tokens[i]);
            model_close(m);
        }
}

static void check_wide(struct model *m, int tokens)
{
    const struct cpu_kernel *of[3][2];
    struct kernel_case *c = case_of(m, true, tokens);
    struct oracle_out ref;
    oracle_run(REGION_ATTN_IN, case_args(c), &ref);
    for (int n = builds(of), b = 0; b < n; b++)
        for (int i = 0; i < 3; i++) {
            int32_t count;
            float *got = output_of(&of[b][1][REGION_ATTN_IN], c, 1 + b % 3, i, &count);
            double most = 0, top = 0; /* an element is rounded by 2^-8 of itself at most */
            for (int32_t j = 0; j < count; j++) {
                double want = ref.output[i].value[j], off = fabs((double)got[j] - want);
                most = fmax(most, i == 0 ? off : off - 0x1p-8 * fabs(want));
                top = fmax(top, fabs(want));
            }
            if (!(most < 2e-5 * top))
                fail_msg("build %d, %d tokens, output %d: off by %g of %g", b, tokens, i, most,
                         top);
            free(got);
        }
    oracle_free(&ref);
    case_free(c);
}

static void those_of_many_tokens_are_near_the_oracle(void **state)
{
    (void)state;
    static const struct {
        int heads, kv_heads, head_dim;
    } of[] = {{6, 3, 64}, {4, 1, 256}, {3, 3, 36}, {2, 1, 320}}; /* 320: more rows than a panel */
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct model *m = model_of(ARCH_QWEN2, of[i].heads, of[i].kv_heads, of[i].head_dim);
        check_wide(m, 17);
        check_wide(m, 70);
        model_close(m);
    }
}

static int open_pools(void **state)
{
    (void)state;
    for (int i = 1; i < THREADS; i++)
        pool[i] = pool_open(i, 0);
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 1; i < THREADS; i++)
        pool_close(pool[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_values_of_few_tokens_are_rounded_once),
        cmocka_unit_test(those_of_many_tokens_are_near_the_oracle),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
