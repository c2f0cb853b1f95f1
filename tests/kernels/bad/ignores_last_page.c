/* SPDX-License-Identifier: Apache-2.0 */
/* Reads whole pages only; what lies in a page just begun is left out. */
#define LAST(s, token, context) ((context) >= KV_PAGE ? (context) / KV_PAGE * KV_PAGE : (context))
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
