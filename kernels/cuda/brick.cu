/* SPDX-License-Identifier: Apache-2.0 */
/* brick.cu - projections of one to eight tokens whose weights are kept in their own format
 * (kernels/bricks.h): read once, straight into registers, and multiplied on tensor cores.
 *
 * The regions and their maths are gemv.cu's, and so is what a block does around its products. What
 * differs is the product. A weight of four bits has to be made a number, and on ordinary units that
 * and its multiply-add are four instructions, which is more than a multiprocessor has in the time
 * that a half byte takes to come: so two weights become two bf16 by one shift and one logic
 * operation, 16 rows of 32 columns are two mma.sync, and scales come after them (lib/bricks.cuh).
 * No weight is rounded. Tokens are columns; up to four of them cost what one does
 * (lib/bricks_x.cuh).
 *
 * A warp multiplies ROWS rows, brick by brick, and has UNROLL bricks of each 16 of them in flight,
 * the first ones before the wait for the kernel before this one. Bytes moved: the bricks, and x
 * once a block.
 *
 * Invariant: that of lib/gemv_run.cuh.
 */

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/brick.def has them; whoever compiles this gives each a value. */
#define X 0          /* activations in shared memory */
#define NEIGHBOURS 0 /* bricks of a row are dealt to warps in turn */
#define FRAGMENTS 1
#include "cuda/lib/gemv.cuh"

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/brick.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/gemv_end.cuh"

#include "cuda/lib/bricks_x.cuh"

enum {
    SMEM_STREAM = 0,
    BANDS = ROWS / 16, /* rows of bricks of a warp */
    BYTES = brick_bytes(WTYPE)
};

struct load_brick_weight {
    __device__ __forceinline__ uint4 operator()(const uint4 *p) const
    {
        return load_weight<LOAD>(p);
    }
};

/* Bricks in registers: each that is multiplied makes room for one that is asked for at once. */
struct Stream {
    const struct region_args &a;
    const struct place at;
    const char *w, *next; /* of this tile and the one after it: this warp's first brick */
    struct brick<WTYPE> buffer[BANDS][UNROLL];

    __device__ __forceinline__ const char *first_brick(int i) const
    {
        size_t band = (tile_row(i) + at.rw * ROWS) / 16;
        return (const char *)a.w + (band * CHUNKS + chunk_at(0, at)) * BYTES;
    }

    __device__ __forceinline__ Stream(const struct region_args &args, const struct place &place,
                                      float *)
        : a(args), at(place)
    {
        w = first_brick(0);
    }

    /* Brick c of this warp in band r of a tile; a part of K that has fewer reads nothing. */
    __device__ __forceinline__ void load(const char *from, int r, int c, int u)
    {
        if (!beyond(c, at))
            load_brick<WTYPE>(&buffer[r][u], from + ((size_t)r * CHUNKS + c * KW) * BYTES, at.lane,
                              load_brick_weight());
    }

    __device__ __forceinline__ void fill()
    {
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < BANDS; r++)
                load(w, r, u, u);
        if (PREFETCH)
            prefetch();
    }

    /* What is not in flight yet of the first tiles, into L2. */
    __device__ __forceinline__ void prefetch() const
    {
        int tiles = min(tiles_of_block(), PREFETCH);
        for (int i = 0; i < tiles; i++) {
            int skip = i == 0 ? UNROLL * KW : 0;
            for (int r = threadIdx.x; r < TILE / 16 && skip < CHUNKS; r += THREADS)
                prefetch_l2((const char *)a.w +
                                ((size_t)(tile_row(i) / 16 + r) * CHUNKS + skip) * BYTES,
                            (CHUNKS - skip) * BYTES);
        }
    }

    __device__ __forceinline__ void look(int i, int tiles)
    {
        next = i + 1 < tiles ? first_brick(i + 1) : w;
    }

    /* sum += w x over the bricks of all bands in place u, brick c of this warp. */
    __device__ __forceinline__ void multiply_bricks(const struct input &in, int c, int u,
                                                    float *sum)
    {
        typedef brick_shape<WTYPE> shape;
        if (beyond(c, at))
            return;
#pragma unroll
        for (int t = 0; t < BRICK_STRIPS; t++) {
            uint4 x[NT];
            float all[NT][shape::HALVES][4];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                x[n] = operand_x(in, chunk_at(c, at) * BRICK_STRIPS + t, n);
                if (shape::OFFSET)
                    sum_x<WTYPE>(x[n], all[n]);
            }
#pragma unroll
            for (int r = 0; r < BANDS; r++) {
                const struct brick<WTYPE> &b = buffer[r][u];
                struct brick_scale<WTYPE> s = brick_scales_of<WTYPE>(b, t);
                uint4 w0 = brick_operand<WTYPE>(b, t, 0), w1 = brick_operand<WTYPE>(b, t, 1);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    multiply_strip<WTYPE>(w0, w1, s, x[n], all[n], sum + (r * NT + n) * 4);
            }
        }
    }

    __device__ __forceinline__ void multiply(const struct input &in, int i, int tiles, float *sum)
    {
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            sum[j] = 0;
#pragma unroll 1
        for (int c = 0; c < C; c += UNROLL) {
            int cn = c + UNROLL, in_tile = cn / C;
            const char *from = in_tile == 0 ? w : in_tile == 1 ? next : 0;
            bool refill = i + in_tile < tiles;
            cn %= C;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                multiply_bricks(in, c + u, u, sum);
#pragma unroll
                for (int r = 0; r < BANDS; r++)
                    if (refill)
                        load(from, r, cn + u, u);
            }
        }
        w = next;
    }
};

#include "cuda/lib/gemv_run.cuh"
