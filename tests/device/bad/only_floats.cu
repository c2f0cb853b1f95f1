/* SPDX-License-Identifier: Apache-2.0 */
/* Says that it can leave bf16, and leaves floats whatever it is asked for. */
#define LEAVES16 1
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y, kvh = head / (a.heads / a.kv_heads);
    after_previous();
    if (t >= a.counts->m || !a.a)
        return;
    struct attending s = attending_of(a, head, t);
    for (int p = 0; p <= a.position[t]; p++)
        attend(a, s, kv_place(a, a.page_table[a.pages_at[t] + p / KV_PAGE], p, kvh));
    attn_store(a, s, head, t);
}
