/* SPDX-License-Identifier: Apache-2.0 */
/* The unstable formula: exp(s) overflows for scores that the stable one takes. */
#define EXP(s, top) lane_exp(s)
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
