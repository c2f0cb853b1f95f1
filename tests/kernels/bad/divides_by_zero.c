/* SPDX-License-Identifier: Apache-2.0 */
/* Divides integers by the rank. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    volatile int32_t rank = t->rank;
    volatile int32_t each = 64 / rank;
    (void)each;
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
