/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what nobody has allocated. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    if (p.live)
        out_store(a, p, out_sum(a, p) + 1e-30f * ((const volatile float *)a.in)[1ll << 44]);
}
