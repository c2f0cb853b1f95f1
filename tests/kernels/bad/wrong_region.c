/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel of another region. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
KERNEL(REGION_ATTN_OUT, 16, run, no_scratch);
