/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: sums in another order than eager (two halves), so other bits and the same quality. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    float row[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows, half = k / 2 / 16 * 16;
    share(t, n, &from, &to);
    for (int32_t r = from; r < to; r++) {
        row_float(&a->w, r, row);
        for (int32_t i = 0; i < a->m; i++) {
            const float *in = a->in + (int64_t)i * k;
            float sum = lane_dot(row + half, in + half, k - half) + lane_dot(row, in, half);
            a->y[(int64_t)i * n + r] = sum + a->x[(int64_t)i * n + r];
        }
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
