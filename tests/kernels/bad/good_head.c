/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: must pass. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_head(args, t);
}
KERNEL(REGION_HEAD, 16, run, no_scratch);
