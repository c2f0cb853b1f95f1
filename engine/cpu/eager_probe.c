/* SPDX-License-Identifier: Apache-2.0 */
/* eager_probe.c - what a core of this machine can do, in the instruction set of the eager kernels.
 *
 * Compiled with them, once for each instruction set: a peak measured with narrower vectors than
 * the kernels use would not be a peak.
 */
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

enum { CHAINS = 12 }; /* latency 4, two units: 8 chains are enough, 12 leave room */

static double multiply_add(int64_t loops)
{
    vec acc[CHAINS], a = vec_set(0.999f), b = vec_set(1e-3f);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vec_set((float)i);
    for (int64_t r = 0; r < loops; r++)
        for (int i = 0; i < CHAINS; i++)
            acc[i] = vec_fma(acc[i], a, b);
    for (int i = 1; i < CHAINS; i++)
        acc[0] += acc[i];
    volatile float keep = acc[0][0];
    (void)keep;
    return 2.0 * VEC * CHAINS * (double)loops;
}

static void read_all(const uint8_t *p, int64_t bytes)
{
    vec_int acc[4] = {0};
    for (; bytes >= (int64_t)sizeof acc; p += sizeof acc, bytes -= (int64_t)sizeof acc)
        for (int i = 0; i < 4; i++)
            acc[i] |= VEC_LOAD(vec_int, p + i * (int64_t)sizeof acc[0]);
    volatile int32_t keep = (acc[0] | acc[1] | acc[2] | acc[3])[0];
    (void)keep;
}

/* A panel of weights against some tokens of a prompt, as a wide step has them. */
static double product(bool first)
{
    enum { M = 64, N = 256, K = 256 }; /* short, to be undisturbed once */
    float *a = eager_arena(EAGER_INNER, (M * K + N * K + M * N) * (int64_t)sizeof *a);
    float *b = a + M * K, *c = b + N * K;
    for (int64_t i = 0; first && i < M * K + N * K; i++)
        a[i] = (float)(i % 7) - 3;
    eager_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, c, N);
    return 2.0 * M * N * K;
}

const struct eager_probe EAGER(probe) = {multiply_add, read_all, product, 32 * VEC};
