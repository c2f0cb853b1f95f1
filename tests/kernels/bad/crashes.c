/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a null pointer. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    *(volatile int *)8 = 1;
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
