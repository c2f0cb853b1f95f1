/* SPDX-License-Identifier: Apache-2.0 */
/* Adds a little noise from the clock. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    good_out(a, t);
    if (t->rank == 0 && __builtin_ia32_rdtsc() & 0x40)
        a->y[0] = a->y[0] * (1 + 1e-7f);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
