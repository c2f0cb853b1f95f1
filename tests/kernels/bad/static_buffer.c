/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks use one static buffer for different rows. */
#include "kernel.h"
static float norm[WIDE];
static void run(const void *args, const struct team *t)
{
    const struct mlp_in_args *a = args;
    int32_t k = a->gate.cols;
    for (int32_t i = t->rank; i < a->m; i += t->size) {
        lane_rmsnorm(norm, a->x + (int64_t)i * k, a->norm, k, a->eps);
        mlp_rows(a, norm, i, 0, a->gate.rows);
    }
}
KERNEL(REGION_MLP_IN, 16, run, no_scratch);
