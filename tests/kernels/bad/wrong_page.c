/* SPDX-License-Identifier: Apache-2.0 */
/* Takes pages in order of their numbers instead of looking them up. */
#define PAGE(a, s, p) ((s)->pages_at + (p) / KV_PAGE)
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
