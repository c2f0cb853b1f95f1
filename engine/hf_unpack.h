/* SPDX-License-Identifier: Apache-2.0 */
/* hf_unpack.h - inside engine/hf_*.c: one matrix of a quantized checkpoint, found and checked, and
 * the blocks that it becomes. */
#ifndef WHET_ENGINE_HF_UNPACK_H
#define WHET_ENGINE_HF_UNPACK_H

#include "engine/hf_quant.h"

struct source {
    enum hf_method method;
    int32_t rows, cols;
    int32_t group, groups; /* columns of a group; groups of a row */
    int32_t zero_offset;
    const uint32_t *code, *zero;    /* no zero points: 8 */
    const int32_t *index;           /* groups of columns that are in no order */
    const uint8_t *byte;            /* FP8 */
    const float *scale;             /* as stored, but floats */
    int32_t block_rows, block_cols; /* FP8: of one scale */
    enum dtype scale_type, type;    /* type: what it becomes */
};

/* What a matrix becomes (hf_quant.h has the list). */
enum dtype hf_unpack_type(const struct source *s);

/* All rows of a matrix into `data`, by as many threads as there are cores. false: there is a code
 * that stands for no number. */
bool hf_unpack(const struct source *s, uint8_t *data);

#endif
