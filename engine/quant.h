/* SPDX-License-Identifier: Apache-2.0 */
/* quant.h - element formats of weights: sizes, names, conversion to float.
 *
 * Formats and their layouts: kernels/args.h (enum dtype). Conversion is the definition of what a
 * stored weight means, so every kernel and the oracle agree with dequant_row().
 */
#ifndef WHET_ENGINE_QUANT_H
#define WHET_ENGINE_QUANT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/args.h"

/* Stands below a table of formats that leaves its length to its rows: formats are only ever
 * appended, so a new one without a row there does not compile. */
#define EVERY_DTYPE(table)                                         \
    _Static_assert(sizeof(table) / sizeof *(table) == DTYPE_COUNT, \
                   "every weight format needs a row in this table")

/* "Q4_1", ... for any valid dtype. */
const char *dtype_name(enum dtype t);
/* Values in a block (1 for plain formats) and bytes of a block. */
int dtype_block(enum dtype t);
int dtype_block_bytes(enum dtype t);
/* Bytes of `n` values; n is a multiple of dtype_block(t). */
int64_t dtype_bytes(enum dtype t, int64_t n);

/* n values starting at block-aligned `src` to float. n is a multiple of dtype_block(t). */
void dequant_row(enum dtype t, const void *src, float *dst, int64_t n);
/* The inverse for tests, fixtures and conversion at load; any dtype, finite values. */
void quant_row(enum dtype t, const float *src, void *dst, int64_t n);

/* A float of 8 bits, s eeee mmm, of the range of float8_e4m3fn. The two codes that are no number
 * there, 7f and ff, are 480 here: a model with such a weight is refused when it is read. */
float e4m3_to_f32(uint8_t q);

/* What the codes of IQ4_NL and IQ4_XS, and of MXFP4, are before the scale. */
extern const float iq4_values[16], mxfp4_values[16];

/* The scale of an MXFP4 block for mxfp4_values[]: 2^(e - 128). */
static inline float mxfp4_scale(uint8_t e)
{
    uint32_t bits = MXFP4_SCALE(e);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f); /* round to nearest even */

#endif
