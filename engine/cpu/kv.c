/* SPDX-License-Identifier: Apache-2.0 */
/* kv.c - see kv.h. */
#include "engine/cpu/kv.h"

#include <string.h>

#include "engine/quant.h"

void kv_read(bool bf16, const void *pages, int64_t at, int32_t n, float *to)
{
    const uint16_t *half = pages;
    if (!bf16)
        memcpy(to, (const float *)pages + at, (size_t)n * sizeof *to);
    for (int32_t i = 0; bf16 && i < n; i++)
        to[i] = bf16_to_f32(half[at + i]);
}

void kv_write(bool bf16, const float *from, int64_t n, void *pages, int64_t at)
{
    uint16_t *half = pages;
    if (!bf16)
        memcpy((float *)pages + at, from, (size_t)n * sizeof *from);
    for (int64_t i = 0; bf16 && i < n; i++)
        half[at + i] = f32_to_bf16(from[i]);
}
