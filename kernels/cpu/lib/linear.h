/* SPDX-License-Identifier: Apache-2.0 */
/* linear.h - the narrow linear layer that the templates of the decode path share.
 *
 * Reads the knobs ISA, PACK, DIGITS, ROWS, TOKENS, PREFETCH and PREP of the template that includes
 * it. A template prepares its input once per run (norm and digits as needed), then asks for runs
 * of rows; what it does with the sums is its own business.
 *
 *   PACK=0  rows in the model's own format, ROWS at a time, canonical order (rows.h)
 *   PACK=1  panels of 16 rows, ROWS panels at a time, activations in digits (panel.h, digits.h)
 *
 * A norm in front is recomputed by every rank, which is cheaper than a barrier: 2 x HIDDEN
 * multiply-adds a token against HIDDEN x N / threads. PREP=1 shares the rest of the preparation.
 */
#ifndef WHET_KERNELS_CPU_LIB_LINEAR_H
#define WHET_KERNELS_CPU_LIB_LINEAR_H

#include "cpu/lib/norm.h"
#include "cpu/lib/panel.h"
#include "cpu/lib/rows.h"
#include "cpu/lib/shape.h"
#include "cpu/lib/taken.h"

enum { WIDE = PACK ? ROWS * PANEL : ROWS_TOGETHER(ROWS) }; /* rows of W multiplied together */

struct input {
    const float *x; /* PACK=0: [m, ldx] */
    int64_t ldx;
#if PACK
    struct digits row[M_MAX];
#endif
};

/* Scratch: normed rows if `normed`, then digits if PACK; once for each rank unless shared. */
INLINE int64_t input_bytes(const int k, int m, int normed)
{
    int64_t rows = normed ? (int64_t)sizeof(float) * m * k : 0;
    return ((rows + 63) & ~(int64_t)63) + (PACK ? digits_bytes(k, DIGITS, m) : 0);
}

INLINE int64_t input_scratch(const int k, int m, int size, int normed)
{
    return input_bytes(k, m, normed) * (PREP ? 1 : size);
}

#if PACK

/* A normed row is made whole by every rank (its largest value sets the scale), into memory of the
 * rank's own; PREP=1 shares the making of digits. */
INLINE void input_prepare(const struct team *team, struct input *in, const float *x,
                          const int32_t *row, const float *gain, float eps, const int k, int m)
{
    const int blocks = k / BLOCK;
    const int b0 = PREP ? blocks * team->rank / team->size : 0;
    const int b1 = PREP ? blocks * (team->rank + 1) / team->size : blocks;
    uint8_t *at = (uint8_t *)team->scratch + (PREP ? 0 : team->rank * input_bytes(k, m, 0));
    float normed[HIDDEN];
    for (int t = 0; t < m; t++) {
        const float *from = x + (int64_t)(row ? row[t] : t) * k;
        if (gain) {
            norm_row(normed, from, gain, HIDDEN, eps, 0, HIDDEN);
            from = normed;
        }
        digits_fill(at, k, DIGITS, t, from, b0, b1);
    }
    if (PREP)
        team->barrier(team);
    for (int t = 0; t < m; t++)
        in->row[t] = digits_row(at, k, DIGITS, t);
}

#else

INLINE void input_prepare(const struct team *team, struct input *in, const float *x,
                          const int32_t *row, const float *gain, float eps, const int k, int m)
{
    in->x = x;
    in->ldx = k;
    if (!gain)
        return;
    const int blocks = k / BLOCK;
    const int from = PREP ? blocks * team->rank / team->size * BLOCK : 0;
    const int to = PREP ? blocks * (team->rank + 1) / team->size * BLOCK : k;
    float *at = (float *)team->scratch + (PREP ? 0 : team->rank * (int64_t)m * k);
    for (int t = 0; t < m; t++)
        norm_row(at + (int64_t)t * k, x + (int64_t)(row ? row[t] : t) * k, gain, k, eps, from, to);
    if (PREP)
        team->barrier(team);
    in->x = at;
}

#endif

/* out[t * ldo + i] = row (row0 + i) of w . token t for i < count. PACK: row0 is a multiple of 16,
 * and columns up to the next multiple of 16 are written as well. */
INLINE void linear_rows(const int type, const struct weight *w, const int k, int row0, int count,
                        const struct input *in, int m, float *out, int64_t ldo)
{
#if PACK
    const int64_t stride = panel_bytes(type, k);
    const uint8_t *p = (const uint8_t *)w->packed + row0 / PANEL * stride;
    const int panels = (count + PANEL - 1) / PANEL;
    int i = 0;
    for (; i + ROWS <= panels; i += ROWS)
        panel_dot_all(type, DIGITS, p + i * stride, stride, ROWS, in->row, m, TOKENS, k, PREFETCH,
                      out + i * PANEL, ldo);
    for (; ROWS > 1 && i < panels; i++)
        panel_dot_all(type, DIGITS, p + i * stride, stride, 1, in->row, m, TOKENS, k, PREFETCH,
                      out + i * PANEL, ldo);
#else
    const int64_t stride = ROW_BYTES(type, k);
    const uint8_t *p = (const uint8_t *)w->data + row0 * stride;
    for (int i = 0; i < count; i += WIDE)
        rows_together_all(type, p + i * stride, stride, ROWS, count - i < WIDE ? count - i : WIDE,
                          in->x, in->ldx, m, TOKENS, k, PREFETCH, out + i, ldo);
#endif
}

#endif
