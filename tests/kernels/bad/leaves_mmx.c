/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves the x87 registers to MMX: the next long double of whoever called it is no number. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    __asm__ volatile("pxor %%mm0, %%mm0" ::: "mm0");
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
