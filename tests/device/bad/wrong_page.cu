/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the sequence's pages to lie one after the other. */
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y, kvh = head / (a.heads / a.kv_heads);
    after_previous();
    if (t >= a.counts->m)
        return;
    struct attending s = attending_of(a, head, t);
    for (int p = 0; p <= a.position[t]; p++)
        attend(a, s, kv_place(a, a.pages_at[t] + p / KV_PAGE, p, kvh));
    attn_store(a, s, head, t);
}
