/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: must pass. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
