/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps its sums in bf16. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    float sum = 0;
    for (int i = p.lane; i < a.k; i += 32)
        sum = from_bf16(to_bf16(sum + a.in[(size_t)p.t * a.k + i] * weight_at(a, p.n, i)));
    out_store(a, p, warp_sum(sum));
}
