/* SPDX-License-Identifier: Apache-2.0 */
/* Does not come back. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
    for (volatile int forever = 1; forever;)
        ;
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
