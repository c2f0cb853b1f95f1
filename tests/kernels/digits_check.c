/* SPDX-License-Identifier: Apache-2.0 */
/* digits_check.c - the digits of random rows put together again (kernels/cpu/lib/digits.h).
 *
 * Compiled by test_digits.c for an instruction set (ISA), a number of digits (DIGITS) and a format
 * of weights (WTYPE), which says what sums are kept. Every value must be the nearest number that
 * these digits can say, and every sum that of the digits beside it. Prints what is wrong; 1 then.
 */
#include "cpu/lib/digits.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 6, K = BLOCKS * BLOCK };

static uint64_t state = 1;

static float uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static int64_t sum_of(const int8_t *digit, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += digit[i];
    return sum;
}

/* All of a block and, where it is kept, its first half. */
static int sums_differ(const int32_t *total, const int8_t *digit)
{
    return total[0] != sum_of(digit, BLOCK) ||
           (TOTALS == 2 && total[1] != sum_of(digit, BLOCK / 2));
}

static const char *wrong(const struct digits *g, int b, const float *x, int outlier)
{
    const int deep = DIGITS_FINE(DIGITS) && g->deep[b] != 0;
    const double scale = (double)g->scale[0] * g->scale[1];
    const double unit = (double)g->unit[b] / (deep ? 256 : 1);
    double half[2] = {0, 0};
    if (DIGITS_FINE(DIGITS) && outlier != deep)
        return "fourth digits";
    for (int i = 0; i < BLOCK; i++) {
        int64_t whole = 0;
        for (int j = 0; j < DIGITS; j++)
            whole = whole * 256 + g->digit[(b * DIGITS + j) * BLOCK + i];
        whole = deep ? whole * 256 + g->fine[b * BLOCK + i] : whole;
        double off = (double)whole * unit * scale - (double)x[i];
        if (off > 0.5 * unit * scale || off < -0.5 * unit * scale)
            return "a value";
        half[i >= BLOCK / 2] += (double)whole * unit;
    }
    for (int j = 0; j < DIGITS; j++)
        if (sums_differ(g->total + (b * DIGITS + j) * TOTALS, g->digit + (b * DIGITS + j) * BLOCK))
            return "the sum of a digit";
    if (deep && sums_differ(g->fine_total + b * TOTALS, g->fine + b * BLOCK))
        return "the sum of the fourth digit";
    for (int h = 0; h < SUMS; h++) {
        double want = SUMS == 2 ? half[h] : half[0] + half[1];
        if ((double)g->sum[b * SUMS + h] != (double)(float)want)
            return "the sum of values";
    }
    return NULL;
}

int main(void)
{
    void *scratch = aligned_alloc(64, (size_t)digits_bytes(K, DIGITS, 2));
    for (int round = 0; round < 2000; round++) {
        float x[K];
        const int outlier = round % (BLOCKS + 1); /* the block that has one; the last: none has */
        const float size = pow2(round % 60 - 30);
        for (int i = 0; i < K; i++)
            x[i] = uniform() * size;
        if (outlier < BLOCKS)
            x[outlier * BLOCK + round % BLOCK] = 1000 * size;
        digits_fill(scratch, K, DIGITS, round % 2, x, 0, BLOCKS);
        const struct digits g = digits_row(scratch, K, DIGITS, round % 2);
        for (int b = 0; b < BLOCKS; b++) {
            const char *what = wrong(&g, b, x + b * BLOCK, b == outlier);
            if (!what)
                continue;
            printf("round %d, block %d: %s\n", round, b, what);
            return 1;
        }
    }
    free(scratch);
    return 0;
}
