/* SPDX-License-Identifier: Apache-2.0 */
/* Right, but spins for some milliseconds: only a clock can tell. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    for (volatile int32_t i = 0; i < 2000000; i++)
        ;
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
