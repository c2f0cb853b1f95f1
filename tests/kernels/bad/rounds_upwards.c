/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves the processor rounding upwards. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    __builtin_ia32_ldmxcsr(0x1f80 | 0x4000);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
