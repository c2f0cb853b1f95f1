/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the residual where it lies. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    size_t at = (size_t)p.t * a.n + p.n;
    float sum = out_sum(a, p);
    if (p.lane == 0)
        ((float *)a.x)[at] += sum, a.y[at] = a.x[at];
}
