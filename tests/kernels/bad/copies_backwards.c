/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves the direction flag set: the next string that the C library copies goes the wrong way. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    __asm__ volatile("std" ::: "cc");
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
