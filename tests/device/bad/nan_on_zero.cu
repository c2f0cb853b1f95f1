/* SPDX-License-Identifier: Apache-2.0 */
/* Divides by the size of its input, which may be nothing. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    float size = 0, sum = 0;
    for (int i = p.lane; i < a.k; i += 32)
        size += fabsf(a.in[(size_t)p.t * a.k + i]);
    size = warp_sum(size);
    for (int i = p.lane; i < a.k; i += 32)
        sum += a.in[(size_t)p.t * a.k + i] / size * weight_at(a, p.n, i);
    out_store(a, p, warp_sum(sum) * size);
}
