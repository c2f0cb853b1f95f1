/* SPDX-License-Identifier: Apache-2.0 */
/* Right. */
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y;
    after_previous();
    if (t >= a.counts->m)
        return;
    struct attending s = attended(a, head, t);
    attn_store(a, s, head, t);
}
