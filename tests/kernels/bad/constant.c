/* SPDX-License-Identifier: Apache-2.0 */
/* Returns zeros. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    for (int64_t i = 0; t->rank == 0 && i < (int64_t)a->m * a->w.rows; i++)
        a->y[i] = 0;
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
