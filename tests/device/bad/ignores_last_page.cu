/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves the last page out unless it is the only one or full. */
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y, kvh = head / (a.heads / a.kv_heads);
    after_previous();
    if (t >= a.counts->m)
        return;
    int context = a.position[t] + 1, whole = context / KV_PAGE * KV_PAGE;
    struct attending s = attending_of(a, head, t);
    for (int p = 0; p < (whole > 0 ? whole : context); p++)
        attend(a, s, kv_place(a, a.page_table[a.pages_at[t] + p / KV_PAGE], p, kvh));
    attn_store(a, s, head, t);
}
