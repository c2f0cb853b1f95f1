/* SPDX-License-Identifier: Apache-2.0 */
/* Recurses without end. */
#include "kernel.h"
static int deeper(volatile char *above)
{
    volatile char here[4096];
    here[0] = above[0];
    return deeper(here) + here[0];
}
static void run(const void *args, const struct team *t)
{
    volatile char top[1] = {0};
    if (deeper(top))
        good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
