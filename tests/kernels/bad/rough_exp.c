/* SPDX-License-Identifier: Apache-2.0 */
/* An exponential with four right digits. */
#include "kernel.h"
static float rough(float x)
{
    float c = x > -80 ? (x < 80 ? x : 80) : -80, k = (float)(int32_t)(c * 1.44269504f);
    float r = c - k * 0.69314718f, p = 1 + r * (1 + r * (0.5f + r * (0.1666f + r * 0.0416f)));
    union {
        int32_t i;
        float f;
    } two = {((int32_t)k + 127) << 23};
    return p * two.f;
}
static void run(const void *args, const struct team *t)
{
    const struct mlp_in_args *a = args;
    float norm[WIDE], row[WIDE];
    int32_t from, to, k = a->gate.cols, n = a->gate.rows;
    share(t, n, &from, &to);
    for (int32_t i = 0; i < a->m; i++) {
        lane_rmsnorm(norm, a->x + (int64_t)i * k, a->norm, k, a->eps);
        for (int32_t r = from; r < to; r++) {
            row_float(&a->gate, r, row);
            float g = lane_dot(row, norm, k);
            row_float(&a->up, r, row);
            a->h[(int64_t)i * n + r] = g / (1 + rough(-g)) * lane_dot(row, norm, k);
        }
    }
}
KERNEL(REGION_MLP_IN, 16, run, no_scratch);
