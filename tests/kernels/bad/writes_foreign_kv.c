/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the next cache position too, as if the page were its own. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct attn_in_args *a = args;
    good_attn_in(a, t);
    t->barrier(t);
    for (int32_t i = t->rank; i < a->m; i += t->size)
        if (a->kv_at[i] % KV_PAGE < KV_PAGE - 1)
            ((float *)
                 a->k_pages)[(PAGE_OF(a, a->kv_at[i] / KV_PAGE, 0) + a->kv_at[i] % KV_PAGE + 1) *
                             a->head_dim] = 0;
}
KERNEL(REGION_ATTN_IN, 16, run, no_scratch);
