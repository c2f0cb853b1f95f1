/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the newest key and value, which this step writes, before the wait; the query after it. */
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y, kvh = head / (a.heads / a.kv_heads);
    if (t >= a.counts->m)
        return;
    int last = a.position[t];
    size_t at = kv_place(a, a.page_table[a.pages_at[t] + last / KV_PAGE], last, kvh);
    float v[PART];
    for (int i = 0; i < PART; i++)
        v[i] = from_bf16(__ldcg((const bf16 *)a.v_pages + at + i));
    after_previous();
    struct attending s = attending_of(a, head, t);
    for (int p = 0; p < last; p++)
        attend(a, s, kv_place(a, a.page_table[a.pages_at[t] + p / KV_PAGE], p, kvh));
    float before = s.sum, top = s.top, o[PART];
    for (int i = 0; i < PART; i++)
        o[i] = s.o[i];
    attend(a, s, at);
    float keep = before > 0 ? expf(top - s.top) : 0, mine = s.sum - before * keep;
    for (int i = 0; i < PART; i++)
        s.o[i] = o[i] * keep + mine * v[i];
    attn_store(a, s, head, t);
}
