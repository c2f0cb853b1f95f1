/* SPDX-License-Identifier: Apache-2.0 */
/* Loads 16 activations too many; the values are not even used. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    good_out(a, t);
    volatile float sink = 0;
    for (int32_t j = 0; j < 32; j++)
        sink += a->in[(int64_t)a->m * a->w.cols + j];
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
