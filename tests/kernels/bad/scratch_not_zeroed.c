/* SPDX-License-Identifier: Apache-2.0 */
/* Adds to scratch that it takes for zero. */
#include "kernel.h"
static int64_t scratch(int32_t m, int32_t size)
{
    (void)m;
    return (int64_t)size * WIDE * 4;
}
static void run(const void *args, const struct team *t)
{
    const struct mlp_in_args *a = args;
    float norm[WIDE], *sum = (float *)t->scratch + (int64_t)t->rank * WIDE;
    int32_t from, to, k = a->gate.cols;
    share(t, a->gate.rows, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        lane_rmsnorm(norm, a->x + (int64_t)i * k, a->norm, k, a->eps);
        for (int32_t j = 0; j < k; j++)
            sum[j] += norm[j];
        mlp_rows(a, sum, i, from, to);
        for (int32_t j = 0; j < k; j++)
            sum[j] = 0;
    }
}
KERNEL(REGION_MLP_IN, 16, run, scratch);
