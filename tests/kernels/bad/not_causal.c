/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a chunk see the whole chunk, also what comes after them. */
#define LAST(s, token, context) ((s)->context)
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
