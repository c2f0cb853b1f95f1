/* SPDX-License-Identifier: Apache-2.0 */
/* Rotates by the index in the step instead of the position. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct attn_in_args *a = args;
    for (int32_t i = t->rank; i < a->m; i += t->size)
        attn_in_token(a, i, i, a->kv_at[i]);
}
KERNEL(REGION_ATTN_IN, 16, run, no_scratch);
