/* SPDX-License-Identifier: Apache-2.0 */
/* hf_unpack.c - rows of a quantized checkpoint into blocks of whet's own formats.
 *
 * A weight is scale x (code - zero point). Rows are made in stretches: two of the layouts lie
 * across the rows (hf_parts.c has all), and a stretch uses whole lines of them. 440 million weights
 * of AWQ take a quarter of a second (2 virtual cores of an AMD EPYC, 2026-11-23).
 */
#include "engine/hf_unpack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "config/cores.h"
#include "engine/quant.h"

enum { BLOCK = DTYPE_BLOCK(DTYPE_Q8_0), STRETCH = 64, THREADS_MAX = 32 };
enum { ALONE = 1 << 18 /* weights that are not worth a thread */ };

/* ---- what a checkpoint says ------------------------------------------------------------------ */

/* Nibble of a word that has output i of eight. */
static int awq_place(int32_t i)
{
    return (i & 1) * 4 + (i >> 1);
}

static int code_at(const struct source *s, int32_t row, int32_t col)
{
    int64_t rows = s->rows;
    if (s->method == HF_AWQ)
        return s->code[col * (rows / 8) + row / 8] >> 4 * awq_place(row % 8) & 15;
    if (s->method == HF_GPTQ)
        return s->code[col / 8 * rows + row] >> col % 8 * 4 & 15;
    return s->code[row * (((int64_t)s->cols + 7) / 8) + col / 8] >> col % 8 * 4 & 15;
}

static int zero_at(const struct source *s, int32_t row, int32_t group)
{
    int64_t rows = s->rows;
    if (!s->zero)
        return 8;
    if (s->method == HF_AWQ)
        return s->zero[group * (rows / 8) + row / 8] >> 4 * awq_place(row % 8) & 15;
    if (s->method == HF_GPTQ)
        return (int)(s->zero[group * (rows / 8) + row / 8] >> row % 8 * 4 & 15) + s->zero_offset;
    return s->zero[row / 8 * (int64_t)s->groups + group] >> row % 8 * 4 & 15;
}

static float scale_at(const struct source *s, int32_t row, int32_t group)
{
    return s->scale[s->method == HF_PACKED ? (int64_t)row * s->groups + group
                                           : (int64_t)group * s->rows + row];
}

static int32_t group_at(const struct source *s, int32_t col)
{
    return s->index ? s->index[col] : col / s->group;
}

/* ---- what it becomes ------------------------------------------------------------------------- */

/* hf_quant.h has the list. */
enum dtype hf_unpack_type(const struct source *s)
{
    bool middle = true;
    if (s->method == HF_FP8)
        return DTYPE_F8;
    if (s->index || s->cols % BLOCK || (s->groups > 1 && s->group % BLOCK))
        return s->scale_type;
    for (int64_t i = 0; i < (int64_t)s->rows * s->groups; i++)
        if (f16_to_f32(f32_to_f16(s->scale[i])) != s->scale[i])
            return s->scale_type;
    for (int32_t r = 0; middle && r < s->rows; r++)
        for (int32_t g = 0; middle && g < s->groups; g++)
            middle = zero_at(s, r, g) == 8;
    return middle ? DTYPE_Q4_0 : DTYPE_Q8_0;
}

/* 32 columns from `col` on: `number` is code - zero point of each. */
static void put_block(const struct source *s, int32_t row, int32_t col, const int8_t *number,
                      uint8_t *to)
{
    uint16_t d = f32_to_f16(scale_at(s, row, group_at(s, col)));
    memcpy(to, &d, sizeof d);
    if (s->type == DTYPE_Q8_0) {
        memcpy(to + 2, number, BLOCK);
        return;
    }
    for (int i = 0; i < BLOCK / 2; i++)
        to[2 + i] = (uint8_t)((number[i] + 8) | (number[i + BLOCK / 2] + 8) << 4);
}

static void put_row(const struct source *s, int32_t row, const int8_t *number, uint8_t *to)
{
    int bytes = dtype_block_bytes(s->type);
    if (dtype_block(s->type) == BLOCK) {
        for (int32_t c = 0; c < s->cols; c += BLOCK, to += bytes)
            put_block(s, row, c, number + c, to);
        return;
    }
    for (int32_t c = 0; c < s->cols; c++, to += bytes) {
        float w = scale_at(s, row, group_at(s, c)) * number[c];
        quant_row(s->type, &w, to, 1);
    }
}

/* A stretch of rows as codes less zero points. */
struct stretch {
    int32_t from, to;
    int8_t *zero;   /* [rows, groups] */
    int8_t *number; /* [rows, cols] */
};

/* One by one: groups in any order. */
static void fill_singly(const struct source *s, const struct stretch *k)
{
    for (int32_t c = 0; c < s->cols; c++) {
        int32_t g = group_at(s, c);
        for (int32_t r = 0; r < k->to - k->from; r++)
            k->number[(int64_t)r * s->cols + c] =
                (int8_t)(code_at(s, k->from + r, c) - k->zero[(int64_t)r * s->groups + g]);
    }
}

/* Eight columns at once, which share a group and, but for AWQ, a word. */
static void fill_eights(const struct source *s, const struct stretch *k)
{
    int64_t rows = s->rows, cols = s->cols;
    bool awq = s->method == HF_AWQ;
    for (int64_t c = 0; c < cols; c += 8) {
        const int8_t *zero = k->zero + c / s->group;
        int8_t *to = k->number + c;
        for (int64_t r = k->from; r < k->to; r++, zero += s->groups, to += cols) {
            const uint32_t *word = s->code + c * (rows / 8) + r / 8; /* AWQ's, of eight columns */
            uint32_t one = awq                      ? 0
                           : s->method == HF_PACKED ? s->code[r * (cols / 8) + c / 8]
                                                    : s->code[c / 8 * rows + r];
            int shift = 4 * awq_place((int32_t)(r % 8));
            for (int i = 0; i < 8; i++)
                to[i] = (int8_t)((awq ? word[i * (rows / 8)] >> shift & 15 : one >> 4 * i & 15) -
                                 (uint32_t)*zero);
        }
    }
}

static void put_four_bits(const struct source *s, int32_t from, int32_t to, uint8_t *data)
{
    int64_t bytes = dtype_bytes(s->type, s->cols);
    struct stretch k = {from, to, xmalloc((size_t)STRETCH * (size_t)s->groups),
                        xmalloc((size_t)STRETCH * (size_t)s->cols)};
    for (int32_t r = from; r < to; r++)
        for (int32_t g = 0; g < s->groups; g++)
            k.zero[(int64_t)(r - from) * s->groups + g] = (int8_t)zero_at(s, r, g);
    if (s->index || s->group % 8 || s->cols % 8)
        fill_singly(s, &k);
    else
        fill_eights(s, &k);
    for (int32_t r = from; r < to; r++)
        put_row(s, r, k.number + (int64_t)(r - from) * s->cols, data + r * bytes);
    free(k.zero);
    free(k.number);
}

/* false: there is a code that stands for no number. */
static bool put_fp8(const struct source *s, int32_t from, int32_t to, uint8_t *data)
{
    uint8_t *block = data + from * dtype_bytes(DTYPE_F8, s->cols);
    bool numbers = true;
    for (int32_t r = from; r < to; r++) {
        const uint8_t *q = s->byte + (int64_t)r * s->cols;
        const float *scale = s->scale + (int64_t)(r / s->block_rows) * s->groups;
        for (int32_t c = 0; c < s->cols; c += BLOCK, block += DTYPE_BYTES(DTYPE_F8)) {
            memcpy(block, scale + c / s->block_cols, sizeof *scale);
            memcpy(block + 4, q + c, BLOCK);
            for (int i = 0; i < BLOCK; i++)
                numbers = numbers && (q[c + i] & 0x7f) != 0x7f;
        }
    }
    return numbers;
}

/* ---- all rows -------------------------------------------------------------------------------- */

struct work {
    const struct source *source;
    uint8_t *data;
    _Atomic int32_t next;
    _Atomic bool no_number;
};

static void *make_rows(void *arg)
{
    struct work *k = arg;
    const struct source *s = k->source;
    for (;;) {
        int32_t from = atomic_fetch_add(&k->next, STRETCH);
        if (from >= s->rows)
            return NULL;
        int32_t to = s->rows - from < STRETCH ? s->rows : from + STRETCH;
        if (s->method != HF_FP8)
            put_four_bits(s, from, to, k->data);
        else if (!put_fp8(s, from, to, k->data))
            k->no_number = true;
    }
}

bool hf_unpack(const struct source *s, uint8_t *data)
{
    struct work k = {.source = s, .data = data};
    pthread_t thread[THREADS_MAX];
    int64_t cores = cores_usable(), more = s->rows / STRETCH;
    int started = 0;
    more = (int64_t)s->rows * s->cols < ALONE ? 0 : more;
    while (started < cores - 1 && started < more && started < THREADS_MAX &&
           pthread_create(&thread[started], NULL, make_rows, &k) == 0)
        started++;
    make_rows(&k);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return !k.no_number;
}
