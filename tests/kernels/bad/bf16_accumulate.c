/* SPDX-License-Identifier: Apache-2.0 */
/* Accumulates in bf16. */
#include "kernel.h"
static float to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    v.u = (v.u + 0x7fff + (v.u >> 16 & 1)) & 0xffff0000;
    return v.f;
}
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    float row[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t r = from; r < to; r++) {
        row_float(&a->w, r, row);
        for (int32_t i = 0; i < a->m; i++) {
            float sum = 0;
            for (int32_t j = 0; j < k; j++)
                sum = to_bf16(sum + row[j] * a->in[(int64_t)i * k + j]);
            a->y[(int64_t)i * n + r] = sum + a->x[(int64_t)i * n + r];
        }
    }
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
