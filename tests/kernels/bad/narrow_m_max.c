/* SPDX-License-Identifier: Apache-2.0 */
/* Takes fewer tokens than the slot has. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 2, run, no_scratch);
