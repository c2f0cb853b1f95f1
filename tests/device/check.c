/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - counting checks, and numbers by chance: shared by the programs of this folder. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "config/err.h"
#include "engine/quant.h"
#include "tests/device/device_test.h"

int checks_made, checks_failed;

void check(bool ok, bool always, const char *fmt, ...)
{
    va_list args;
    checks_made++;
    checks_failed += !ok;
    if (ok && !always)
        return;
    if (checks_failed > 200 && !ok)
        return;
    printf("%s ", ok ? "ok  " : "FAIL");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

uint64_t rng(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

float rng_normal(uint64_t *state)
{
    double u = (double)((rng(state) >> 11) + 1) * 0x1p-53, v = (double)(rng(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

float *rng_normals(uint64_t *state, int64_t n, bool bf16)
{
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        v[i] = rng_normal(state);
        if (bf16)
            v[i] = bf16_to_f32(f32_to_bf16(v[i]));
    }
    return v;
}
