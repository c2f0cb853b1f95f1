/* SPDX-License-Identifier: Apache-2.0 */
/* Honest: weights repacked to floats, columns first. Must pass. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return (int64_t)w->rows * w->cols * 4;
}
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    float row[WIDE];
    for (int32_t r = row0; r < row1; r++) {
        row_float(w, r, row);
        for (int32_t i = 0; i < w->cols; i++)
            ((float *)packed)[(int64_t)i * w->rows + r] = row[i];
    }
}
static void run(const void *args, const struct team *t)
{
    const struct out_args *a = args;
    float row[WIDE];
    int32_t from, to, k = a->w.cols, n = a->w.rows;
    share(t, n, &from, &to);
    for (int32_t r = from; r < to; r++) {
        for (int32_t i = 0; i < k; i++)
            row[i] = ((const float *)a->w.packed)[(int64_t)i * n + r];
        for (int32_t i = 0; i < a->m; i++)
            a->y[(int64_t)i * n + r] =
                lane_dot(row, a->in + (int64_t)i * k, k) + a->x[(int64_t)i * n + r];
    }
}
const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI,
                                       .region = REGION_MLP_OUT,
                                       .m_max = 16,
                                       .run = run,
                                       .scratch_bytes = no_scratch,
                                       .layout = "columns first",
                                       .packed_bytes = packed_bytes,
                                       .pack = pack};
