/* SPDX-License-Identifier: Apache-2.0 */
/* Honest, with what is allowed: shared scratch and a barrier. Must pass. */
#include "kernel.h"
static int64_t scratch(int32_t m, int32_t size)
{
    (void)size;
    return (int64_t)m * 64 * 4;
}
static void run(const void *args, const struct team *t)
{
    const struct mlp_in_args *a = args;
    float *norm = t->scratch;
    int32_t from, to, k = a->gate.cols;
    for (int32_t i = t->rank; i < a->m; i += t->size)
        lane_rmsnorm(norm + i * k, a->x + (int64_t)i * k, a->norm, k, a->eps);
    t->barrier(t);
    share(t, a->gate.rows, &from, &to);
    for (int32_t i = 0; i < a->m; i++)
        mlp_rows(a, norm + i * k, i, from, to);
}
KERNEL(REGION_MLP_IN, 16, run, scratch);
