/* SPDX-License-Identifier: Apache-2.0 */
/* With an odd m the second half of the last row is not written. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    struct out_args most = *a;
    most.m = a->m - 1;
    good_out(a->m % 2 ? &most : a, t);
    if (a->m % 2 == 0 || t->rank != 0)
        return;
    struct team alone = *t;
    alone.size = 1;
    struct out_args last = *a;
    last.m = 1;
    last.w.rows = a->w.rows / 2;
    last.in += (int64_t)(a->m - 1) * a->w.cols;
    last.x += (int64_t)(a->m - 1) * a->w.rows;
    last.y += (int64_t)(a->m - 1) * a->w.rows;
    good_out(&last, &alone);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
