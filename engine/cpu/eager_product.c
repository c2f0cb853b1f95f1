/* SPDX-License-Identifier: Apache-2.0 */
/* eager_product.c - a matrix product of floats in register tiles, for vectors of 16 or 8.
 *
 * Weights come in panels of 16 columns, so that a multiply-add takes one vector of them and one
 * broadcast x: no sums across lanes. TOKENS x COLS sums are in registers while up to CHUNK products
 * are added to each, in rising order; then they join what is in memory. A chunk of a tile's x stays
 * in the first-level cache while all panels pass by. It is read where it lies: six rows are three
 * multiples of their distance from two addresses, which are few enough registers.
 *
 * On AVX-512 this leaves less of the peak than OpenBLAS does (docs/lab/2026-11-25-cpu-zen4.md).
 * On AVX2 it does so only where matrices are small, as those of attention are. Elsewhere it is not
 * built.
 */
#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

#if defined(EAGER_HAS_PRODUCT)

/* 24 sums, 4 weights and an x in 32 registers; or 6 sums of two registers in 16. A square tile has
 * the fewest loads for its multiply-adds, which counts where a neighbour on the core's other thread
 * takes its share of the ports. Sums as long as OpenBLAS's: what is compared with eager's errors
 * (specializer/admission) finds those it always found. */
enum { TOKENS = 6, COLS = PARTS == 1 ? 4 : 1, CHUNK = 384 };
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
#include "kernels/cpu/lib/turn.h"

/* y[t][16 c + lane] (+)= sum_k x[t][k] w[c][k][lane], times scale[t] */
INLINE void tile(const struct eager_product *p, const int tokens, const int cols, int32_t n,
                 const float *x, const float *w, float *y, int add, const float *scale)
{
    const int64_t ld = p->ldx, ld3 = 3 * ld;
    struct lanes acc[TOKENS][COLS];
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        UNROLLED
        for (int c = 0; c < cols; c++)
            acc[t][c] = lanes_zero();
    }
    _Pragma("GCC unroll 4") for (int32_t k = 0; k < n; k++, w += p->row)
    {
        struct lanes one[COLS];
        UNROLLED
        for (int c = 0; c < cols; c++)
            one[c] = lanes_load(w + c * p->panel);
        UNROLLED
        for (int t = 0; t < tokens; t++) {
            vec broadcast = vec_set(x[t / 3 * ld3 + t % 3 * ld + k]);
            UNROLLED
            for (int c = 0; c < cols; c++) {
                UNROLLED
                for (int i = 0; i < PARTS; i++)
                    acc[t][c].p[i] = vec_fma(broadcast, one[c].p[i], acc[t][c].p[i]);
            }
        }
    }
    UNROLLED
    for (int t = 0; t < tokens; t++) {
        UNROLLED
        for (int c = 0; c < cols; c++) {
            UNROLLED
            for (int i = 0; i < PARTS; i++) {
                float *to = y + t * p->ldy + c * LANES + i * VEC;
                vec sum = add ? acc[t][c].p[i] + VEC_LOAD(vec, to) : acc[t][c].p[i];
                if (scale)
                    sum *= vec_set(scale[t]);
                memcpy(to, &sum, sizeof sum);
            }
        }
    }
}

/* A panel whose last columns are not there: through memory of its own. */
static void tile_edge(const struct eager_product *p, int tokens, int32_t columns, int32_t n,
                      const float *x, const float *w, float *y, int add, const float *scale)
{
    struct eager_product edge = *p;
    float sums[LANES] = {0};
    edge.ldy = LANES;
    for (int t = 0; t < tokens; t++) {
        if (add)
            memcpy(sums, y + t * p->ldy, (size_t)columns * sizeof *sums);
        tile(&edge, 1, 1, n, x + t * p->ldx, w, sums, add, scale ? scale + t : NULL);
        memcpy(y + t * p->ldy, sums, (size_t)columns * sizeof *sums);
    }
}

/* `tokens` tokens (a constant) by all panels. */
INLINE void across(const struct eager_product *p, const int tokens, int32_t n, const float *x,
                   const float *w, float *y, int add, const float *scale)
{
    int32_t c = 0;
    for (; c + COLS * LANES <= p->columns; c += COLS * LANES)
        tile(p, tokens, COLS, n, x, w + c / LANES * p->panel, y + c, add, scale);
    for (; COLS > 2 && c + 2 * LANES <= p->columns; c += 2 * LANES)
        tile(p, tokens, COLS / 2, n, x, w + c / LANES * p->panel, y + c, add, scale);
    for (; c + LANES <= p->columns; c += LANES)
        tile(p, tokens, 1, n, x, w + c / LANES * p->panel, y + c, add, scale);
    if (c < p->columns)
        tile_edge(p, tokens, p->columns - c, n, x, w + c / LANES * p->panel, y + c, add, scale);
}

void EAGER(product)(const struct eager_product *p)
{
    int32_t chunks = (p->k + CHUNK - 1) / CHUNK;
    for (int32_t i = 0; i < chunks; i++) {
        int32_t from = (int32_t)((int64_t)p->k * i / chunks);
        int32_t n = (int32_t)((int64_t)p->k * (i + 1) / chunks) - from;
        const float *w = p->w + from * p->row;
        int add = p->add || i > 0;
        for (int32_t t = 0, tokens; t < p->m; t += tokens) {
            tokens = p->m - t < TOKENS ? p->m - t : TOKENS;
            tokens = tokens < TOKENS && tokens > 4 ? 4 : tokens;
            const float *x = p->x + t * p->ldx + from;
            float *y = p->y + t * p->ldy;
            const float *scale = p->scale && i == chunks - 1 ? p->scale + t : NULL;
            if (tokens == TOKENS)
                across(p, TOKENS, n, x, w, y, add, scale);
            else if (tokens == 4)
                across(p, 4, n, x, w, y, add, scale);
            else
                for (int32_t j = 0; j < tokens; j++)
                    across(p, 1, n, x + j * p->ldx, w, y + j * p->ldy, add,
                           scale ? scale + j : NULL);
        }
    }
}

void EAGER(turn)(const float *from, int64_t stride, int32_t n, float *to)
{
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        turn16(from + i, stride, to + (int64_t)i * LANES);
    for (; i < n; i++)
        for (int lane = 0; lane < LANES; lane++)
            to[(int64_t)i * LANES + lane] = from[lane * stride + i];
}

#endif
