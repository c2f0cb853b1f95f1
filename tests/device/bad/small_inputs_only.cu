/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts what is large. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    float sum = 0;
    for (int i = p.lane; i < a.k; i += 32)
        sum += fminf(fmaxf(a.in[(size_t)p.t * a.k + i], -16), 16) * weight_at(a, p.n, i);
    out_store(a, p, warp_sum(sum));
}
