/* SPDX-License-Identifier: Apache-2.0 */
/* Says that it can leave bf16, and leaves floats whatever it is asked for. */
#define LEAVES16 1
#include "plain.cuh"

ATTN_KERNEL
{
    int head = blockIdx.x, t = blockIdx.y;
    after_previous();
    if (t >= a.counts->m || !a.a)
        return;
    struct attending s = attended(a, head, t);
    attn_store(a, s, head, t);
}
