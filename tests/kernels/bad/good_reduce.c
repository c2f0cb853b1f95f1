/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: must pass. */
#include "reduce.h"
static void run(const void *args, const struct team *t)
{
    good_reduce(args, t);
}
KERNEL(REGION_REDUCE, 16, run, no_scratch);
