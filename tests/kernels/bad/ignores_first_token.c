/* SPDX-License-Identifier: Apache-2.0 */
/* A window: positions further back than 64 are left out, which short prompts do not notice. */
#define FIRST(context) ((context) > 64 ? (context)-64 : 0)
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_attn(args, t);
}
KERNEL(REGION_ATTN, 16, run, no_scratch);
