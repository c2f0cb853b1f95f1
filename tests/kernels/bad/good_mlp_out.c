/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: must pass. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
