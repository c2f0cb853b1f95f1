/* SPDX-License-Identifier: Apache-2.0 */
/* Right, after a minute. */
#include "plain.cuh"

OUT_KERNEL
{
    struct out_place p = out_place(a);
    after_previous();
    for (int i = 0; p.live && i < 60000; i++)
        __nanosleep(1000000);
    if (p.live)
        out_store(a, p, out_sum(a, p));
}
