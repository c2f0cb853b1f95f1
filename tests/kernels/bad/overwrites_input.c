/* SPDX-License-Identifier: Apache-2.0 */
/* Scales its input in place. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    good_out(a, t);
    if (t->rank == 0)
        ((float *)a->in)[0] *= 2;
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
