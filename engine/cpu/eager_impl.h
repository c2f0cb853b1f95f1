/* SPDX-License-Identifier: Apache-2.0 */
/* eager_impl.h - what the files of the eager kernels share.
 *
 * eager_format.c, eager_linear.c, eager_product.c, eager_attn*.c and eager_region.c are compiled
 * once for each instruction set of interest with -DEAGER_ISA=<suffix>; EAGER(name) is
 * name_<suffix>. eager.c, compiled once, picks a table at run time. Row-major matrices with leading
 * dimensions `ld`.
 */
#ifndef WHET_ENGINE_CPU_EAGER_IMPL_H
#define WHET_ENGINE_CPU_EAGER_IMPL_H

#include "engine/cpu/blas.h"
#include "engine/cpu/eager.h"

#ifndef EAGER_ISA
#define EAGER_ISA base
#endif
#define EAGER_PASTE2(name, isa) name##_##isa
#define EAGER_PASTE(name, isa) EAGER_PASTE2(name, isa)
#define EAGER(name) EAGER_PASTE(name, EAGER_ISA)

enum {
    EAGER_ROWS = 4,   /* weight rows in flight in a narrow product */
    EAGER_DOTS = 8,   /* and in one of a single token */
    EAGER_PANEL = 256 /* weight rows of a wide product at most */
};

/* Working memory of the calling thread, 64-byte aligned, good until its next call with a larger
 * size. `part` names independent areas. */
enum eager_part { EAGER_OUTER, EAGER_INNER, EAGER_PARTS };
void *eager_arena(enum eager_part part, int64_t bytes);

/* Every half-precision number as a float: a scale costs a load, which a decode loop has to spare,
 * and none of the vector operations that bound it. */
extern float eager_half[1 << 16];

/* The product of openblas_open(). */
extern __typeof__(cblas_sgemm) *eager_sgemm;

/* One element format. */
struct eager_format {
    int32_t block, bytes; /* values and bytes of a block; 16 and their bytes for plain formats */
    int32_t direct;       /* so many tokens at most are multiplied by dot(), one after the other */
    /* n values (whole blocks; any n for plain formats) to float */
    void (*expand)(const uint8_t *src, float *dst, int64_t n);
    /* y[r] = canonical dot of row[r] and x over whole blocks */
    void (*dot)(const uint8_t *const row[EAGER_DOTS], const float *x, int64_t n,
                float y[EAGER_DOTS]);
};
extern const struct eager_format EAGER(format)[]; /* a row for every enum dtype */
int64_t EAGER(row_bytes)(const struct weight *w);

/* The input of a linear layer: x [m, K], or rmsnorm(x) * gain when `gain` is set. */
struct eager_input {
    const float *x;
    int32_t m, k;
    const float *gain;
    float eps;
    float *narrow;  /* m <= EAGER_NARROW: the normalized rows */
    float *inverse; /* wider: 1/rms of each row */
};
/* Prepares `in` in the caller's outer arena (which holds `extra` bytes more, returned). Rows are
 * x[row[i]] when `row` is given. */
void *EAGER(input)(struct eager_input *in, const int32_t *row, int64_t extra);

/* y[i * ld + n - n0] = in . w for rows [n0, n1), n1 - n0 <= EAGER_PANEL. Uses the inner arena. */
void EAGER(linear)(const struct weight *w, const struct eager_input *in, int32_t n0, int32_t n1,
                   float *y, int64_t ld);

/* eager_product.c: y[i * ldy + n] = (y if `add`, +) sum_k x[i * ldx + k] w[n][k], times scale[i] if
 * there is one, for m rows and `columns` columns. w[n][k] is at w[n / 16 * panel + k * row + n %
 * 16]; whole vectors of 16 are read. Only where vectors have 16 or 8 floats. */
#if defined(__AVX2__)
#define EAGER_HAS_PRODUCT
#endif
struct eager_product {
    int32_t m, columns, k, add;
    const float *x, *w, *scale;
    float *y;
    int64_t ldx, ldy, panel, row;
};
void EAGER(product)(const struct eager_product *p);
/* to[i * 16 + lane] = from[lane * stride + i] for i < n: 16 rows as a panel. */
void EAGER(turn)(const float *from, int64_t stride, int32_t n, float *to);

/* Rank's share [*from, *to) of n things in units. */
void eager_share(const struct team *t, int32_t n, int32_t unit, int32_t *from, int32_t *to);

/* Pieces of n weight rows that this rank computes, at most EAGER_PANEL each: its share in order; or
 * of a wide step, with vectors of 16, the next that no rank has taken yet (team.taken[count]), in
 * pieces that become smaller towards the end. Where they begin depends on n and the size of the
 * team alone, and so do the bits of a result. */
struct eager_pieces {
    const struct team *team;
    int32_t n, count, end; /* `end` of this rank's share */
    int32_t at, number;    /* the next piece begins there, and is this one of all */
    int32_t from, to;      /* the piece */
};
struct eager_pieces EAGER(pieces)(const struct team *t, int32_t m, int32_t n, int count);
bool EAGER(piece)(struct eager_pieces *p);

/* Attention over keys and values in floats, and in bf16. */
void EAGER(attn)(const void *args, const struct team *team);
void EAGER(attn_halves)(const void *args, const struct team *team);

extern const struct cpu_kernel EAGER(eager)[REGION_LOCAL];
extern const struct cpu_kernel EAGER(halves)[REGION_LOCAL]; /* keys and values in bf16 */
extern const struct eager_probe EAGER(probe);

#endif
