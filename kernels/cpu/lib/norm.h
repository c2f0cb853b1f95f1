/* SPDX-License-Identifier: Apache-2.0 */
/* norm.h - RMSNorm of one row in the canonical order. */
#ifndef WHET_KERNELS_CPU_LIB_NORM_H
#define WHET_KERNELS_CPU_LIB_NORM_H

#include "cpu/lib/isa.h"

/* out = rmsnorm(x) * gain for the columns [from, to), canonical order; k % 32 == 0. */
INLINE void norm_row(float *out, const float *x, const float *gain, const int k, float eps,
                     int from, int to)
{
    vf sum = vf_zero();
    for (int i = 0; i < k; i += LANES)
        sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    vf r = vf_set(1.0f / __builtin_sqrtf(vf_fold(sum) / (float)k + eps));
    for (int i = from; i < to; i += LANES)
        vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), r), vf_load(gain + i)));
}

#endif
