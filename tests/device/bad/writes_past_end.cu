/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a word beyond the rows of the bucket. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (!p.live)
        return;
    out_store(a, p, out_sum(a, p));
    if (p.n == 0 && p.t == 0 && p.lane == 0)
        a.y[(size_t)M_MAX * a.n + 3] = 0;
}
