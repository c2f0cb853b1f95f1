/* SPDX-License-Identifier: Apache-2.0 */
/* eager_linear.c - y = x W^T on stored weights, narrow and wide.
 *
 * Narrow (m <= EAGER_NARROW): the canonical order of lanes.h. One token reads blocks straight into
 * registers, and so do two of a format that is decoded in few instructions, one after the other;
 * more tokens expand four rows at a time into a cache-resident buffer and share it.
 * Both add the same products in the same order, so a row's bits do not depend on its neighbours.
 *
 * Wide: up to EAGER_PANEL rows are expanded (1 MiB at most, half of an L2 cache) and multiplied by
 * eager_product.c, or by OpenBLAS where that is as fast. RMSNorm costs no pass over x: the gain is
 * multiplied into the panel, and 1/rms into the rows of the result.
 */
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

/* Tokens in a register tile. Four rows' sums of two tokens leave room for weights among 16 vector
 * registers, where a vector is a part of the lanes and the parts have their turns. */
enum { TILE = 2, PANEL_FLOATS = 1 << 18 };

void *EAGER(input)(struct eager_input *in, const int32_t *row, int64_t extra)
{
    int64_t k = in->k, m = in->m, f = sizeof(float);
    extra = (extra + 63) / 64 * 64;
    int wide = m > EAGER_NARROW;
    int64_t rows = !wide || row ? m * k : 0;
    char *arena = eager_arena(EAGER_OUTER, extra + (rows + m) * f + 64);
    float *copy = (float *)(void *)(arena + extra), *inverse = copy + rows;
    in->narrow = copy;
    in->inverse = in->gain ? inverse : NULL;
    for (int64_t i = 0; i < m; i++) {
        const float *x = in->x + (row ? row[i] : i) * k;
        if (!wide && in->gain)
            lanes_rmsnorm(copy + i * k, x, in->gain, k, in->eps);
        else if (rows)
            memcpy(copy + i * k, x, (size_t)(k * f));
        if (wide && in->gain)
            inverse[i] = lanes_inverse_rms(x, k, in->eps);
    }
    if (rows && wide)
        in->x = copy;
    return arena;
}

/* ---- narrow --------------------------------------------------------------------------------- */

/* y[t][r] = dot of row[r] and x[t] */
static void tile(const float *const row[EAGER_ROWS], const float *const x[TILE], int64_t k,
                 float y[TILE][EAGER_ROWS])
{
    struct lanes acc[TILE][EAGER_ROWS];
    int64_t whole = k / LANES * LANES;
    for (int p = 0; p < PARTS; p++) {
        vec sum[TILE][EAGER_ROWS] = {0};
        for (int64_t i = p * VEC; i < whole; i += LANES) {
            for (int r = 0; r < EAGER_ROWS; r++) {
                vec w = VEC_LOAD(vec, row[r] + i);
                for (int t = 0; t < TILE; t++)
                    sum[t][r] = vec_fma(w, VEC_LOAD(vec, x[t] + i), sum[t][r]);
            }
        }
        for (int t = 0; t < TILE; t++)
            for (int r = 0; r < EAGER_ROWS; r++)
                acc[t][r].p[p] = sum[t][r];
    }
    for (int t = 0; t < TILE; t++) {
        for (int r = 0; whole < k && r < EAGER_ROWS; r++)
            lanes_tail(&acc[t][r], row[r] + whole, x[t] + whole, (int)(k - whole));
        lanes_fold4(acc[t], y[t]);
    }
}

/* Four rows (the last repeated at the end of the matrix) against every token. */
static void rows_by_tokens(const struct weight *w, const struct eager_input *in,
                           const uint8_t *const stored[EAGER_ROWS], int32_t rows, float *y,
                           int64_t ld)
{
    const struct eager_format *f = &EAGER(format)[w->type];
    int64_t k = in->k;
    const float *row[EAGER_ROWS];
    float *buffer = eager_arena(EAGER_INNER, EAGER_ROWS * k * (int64_t)sizeof *buffer);
    for (int r = 0; r < EAGER_ROWS; r++) {
        row[r] = r < rows ? buffer + r * k : row[rows - 1];
        if (w->type == DTYPE_F32)
            row[r] = (const float *)(const void *)stored[r];
        else if (r < rows)
            f->expand(stored[r], buffer + r * k, k);
    }
    for (int32_t i = 0; i < in->m; i += TILE) {
        const float *x[TILE];
        float out[TILE][EAGER_ROWS];
        for (int32_t t = 0; t < TILE; t++)
            x[t] = in->narrow + (i + t < in->m ? i + t : i) * k;
        tile(row, x, k, out);
        for (int32_t t = 0; t < TILE && i + t < in->m; t++)
            memcpy(y + (i + t) * ld, out[t], (size_t)rows * sizeof *y);
    }
}

static void narrow(const struct weight *w, const struct eager_input *in, int32_t n0, int32_t n1,
                   float *y, int64_t ld)
{
    const struct eager_format *f = &EAGER(format)[w->type];
    int64_t stride = EAGER(row_bytes)(w);
    bool direct = in->m <= f->direct && in->k % f->block == 0;
    int32_t step = direct ? EAGER_DOTS : EAGER_ROWS;
    for (int32_t n = n0; n < n1; n += step) {
        const uint8_t *row[EAGER_DOTS];
        int32_t rows = n1 - n < step ? n1 - n : step;
        for (int32_t r = 0; r < step; r++)
            row[r] = (const uint8_t *)w->data + (n + (r < rows ? r : rows - 1)) * stride;
        for (int32_t t = 0; direct && t < in->m; t++) {
            float out[EAGER_DOTS];
            f->dot(row, in->narrow + t * in->k, in->k, out);
            memcpy(y + t * ld + n - n0, out, (size_t)rows * sizeof *y);
        }
        if (!direct)
            rows_by_tokens(w, in, row, rows, y + n - n0, ld);
    }
}

/* ---- wide ----------------------------------------------------------------------------------- */

#if defined(__AVX512F__)

/* Rows [n, n + 16) as a panel, the last row again where there are no more; times the gain. */
static void expand_panel(const struct weight *w, const struct eager_input *in, int32_t n,
                         float *panel)
{
    enum { PIECE = 256 }; /* whole blocks of any format; 16 rows of them are in the cache */
    const struct eager_format *f = &EAGER(format)[w->type];
    int64_t stride = EAGER(row_bytes)(w);
    float rows[LANES * PIECE] __attribute__((aligned(64)));
    for (int64_t k = 0; k < in->k; k += PIECE) {
        int32_t some = in->k - k < PIECE ? (int32_t)(in->k - k) : PIECE;
        float *to = panel + k * LANES;
        for (int32_t r = 0; r < LANES; r++) {
            int32_t row = n + r < w->rows ? n + r : w->rows - 1;
            f->expand((const uint8_t *)w->data + row * stride + k / f->block * f->bytes,
                      rows + r * PIECE, some);
        }
        EAGER(turn)(rows, PIECE, some, to);
        for (int32_t j = 0; in->gain && j < some; j++)
            for (int32_t r = 0; r < LANES; r++)
                to[j * LANES + r] *= in->gain[k + j];
    }
}

static void wide(const struct weight *w, const struct eager_input *in, int32_t n0, int32_t n1,
                 float *y, int64_t ld)
{
    int64_t k = in->k;
    int32_t step = k * EAGER_PANEL > PANEL_FLOATS ? (int32_t)(PANEL_FLOATS / k) : EAGER_PANEL;
    step = step < LANES ? LANES : step / LANES * LANES;
    float *panel = eager_arena(EAGER_INNER, step * k * (int64_t)sizeof *panel);
    struct eager_product p = {.m = in->m,
                              .k = in->k,
                              .x = in->x,
                              .ldx = k,
                              .w = panel,
                              .panel = k * LANES,
                              .row = LANES,
                              .ldy = ld,
                              .scale = in->inverse};
    for (int32_t n = n0; n < n1; n += step) {
        p.columns = n1 - n < step ? n1 - n : step;
        p.y = y + n - n0;
        for (int32_t r = 0; r < p.columns; r += LANES)
            expand_panel(w, in, n + r, panel + r * k);
        EAGER(product)(&p);
    }
}

#else

static void wide(const struct weight *w, const struct eager_input *in, int32_t n0, int32_t n1,
                 float *y, int64_t ld)
{
    const struct eager_format *f = &EAGER(format)[w->type];
    int64_t k = in->k, stride = EAGER(row_bytes)(w);
    int32_t step = k * EAGER_PANEL > PANEL_FLOATS ? (int32_t)(PANEL_FLOATS / k) : EAGER_PANEL;
    step = step < LANES ? LANES : step / LANES * LANES;
    float *panel = eager_arena(EAGER_INNER, step * k * (int64_t)sizeof *panel);
    for (int32_t n = n0; n < n1; n += step) {
        int32_t rows = n1 - n < step ? n1 - n : step;
        const uint8_t *stored = (const uint8_t *)w->data + n * stride;
        const float *b = panel;
        if (w->type == DTYPE_F32 && !in->gain)
            b = (const float *)(const void *)stored;
        for (int32_t r = 0; b == panel && r < rows; r++) {
            float *row = panel + r * k;
            f->expand(stored + r * stride, row, k);
            for (int64_t j = 0; in->gain && j < k; j++)
                row[j] *= in->gain[j];
        }
        eager_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, in->m, rows, in->k, 1, in->x, in->k, b,
                    in->k, 0, y + n - n0, (int)ld);
    }
    for (int64_t i = 0; in->inverse && i < in->m; i++)
        for (int32_t n = 0; n < n1 - n0; n++)
            y[i * ld + n] *= in->inverse[i];
}

#endif

void EAGER(linear)(const struct weight *w, const struct eager_input *in, int32_t n0, int32_t n1,
                   float *y, int64_t ld)
{
    if (in->m <= EAGER_NARROW)
        narrow(w, in, n0, n1, y, ld);
    else
        wide(w, in, n0, n1, y, ld);
}
