/* SPDX-License-Identifier: Apache-2.0 */
/* gemv.cu - projections of one to four tokens: every weight is read once, in 16-byte loads straight
 * into registers. ring.cu is the same with weights that come through shared memory.
 *
 *   attn_in   q, k = rope(norm(n Wqk^T)); v = n Wv^T; k, v into pages  W [(H + 2 KVH) HD, HIDDEN]
 *   attn_out  y = a Wo^T + x                                           W [HIDDEN, H HD]
 *   mlp_in    h = silu(g) u; g, u = rows 2i, 2i+1 of n Wgu^T           W [2 FFN, HIDDEN]
 *   mlp_out   y = h Wdown^T + x                                        W [HIDDEN, FFN]
 *   head      logits = n W^T and the best of each row                  W [VOCAB, HIDDEN]
 *
 * n = rmsnorm(x) * gain is folded in: x * gain is multiplied, the sum's factor 1/rms(x) comes last.
 * Bytes moved: W (2 N K), and x once a block.
 *
 * At one token the stream of weights is easy; what costs is every boundary between kernels, when
 * the previous kernel's last block, its write-back, the load of x and the reduction follow one
 * another. So the first ROWS x UNROLL loads of a lane, and L2 prefetches of what comes after, are
 * issued before the wait for the kernel before this one (cuda.h), which may still run; and K can be
 * split over KW warps, whose part of x then fits registers: no staging, one barrier. A block owns
 * tiles of RW * ROWS rows; with PERSIST it walks over several and its loads never pause between
 * them. A chunk is what a warp loads at once of a row: 16 bytes a lane, 256 weights.
 *
 * Invariant: that of lib/gemv_run.cuh.
 */

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/gemv.def has them; whoever compiles this gives each a value. */
#define NEIGHBOURS 0 /* chunks of a row are dealt to warps in turn */
#define SENT_LATER 0 /* nothing is copied after the gains */
#include "cuda/lib/gemv.cuh"

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/gemv.def"

/* ---- code --------------------------------------------------------------------------------- */

enum { SMEM_STREAM = 0 };

/* Weights in registers: every one that becomes free is loaded again at once, with the next step of
 * this tile or of the next. */
struct Stream {
    const struct region_args &a;
    const struct place at;
    const uint4 *w, *next; /* of this tile and the one after it */
    uint4 buffer[ROWS][UNROLL];

    __device__ __forceinline__ Stream(const struct region_args &args, const struct place &place,
                                      float *)
        : a(args), at(place), w(tile_weights(args, 0, place))
    {
    }

    /* Chunk c of row r of a tile; a part of K that has fewer chunks than others reads nothing. */
    __device__ __forceinline__ uint4 load(const uint4 *from, int r, int c) const
    {
        if (beyond(c, at))
            return make_uint4(0, 0, 0, 0);
        return load_weight<LOAD>(from + (size_t)r * (K / 8) + c * (KW * 32));
    }

    __device__ __forceinline__ void fill()
    {
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                buffer[r][u] = load(w, r, u);
        if (PREFETCH)
            prefetch();
    }

    /* What is not in flight yet of the first tiles, into L2. */
    __device__ __forceinline__ void prefetch() const
    {
        int tiles = min(tiles_of_block(), PREFETCH);
        for (int i = 0; i < tiles; i++) {
            int skip = i == 0 ? UNROLL * KW * 512 : 0;
            for (int r = threadIdx.x; r < TILE && skip < 2 * K; r += THREADS)
                prefetch_l2((const char *)a.w + (size_t)(tile_row(i) + r) * K * 2 + skip,
                            2 * K - skip);
        }
    }

    __device__ __forceinline__ void look(int i, int tiles)
    {
        next = i + 1 < tiles ? tile_weights(a, i + 1, at) : w;
    }

    __device__ __forceinline__ void multiply(const struct input &in, int i, int tiles, float *sum)
    {
#pragma unroll
        for (int j = 0; j < ROWS * M; j++)
            sum[j] = 0;
#pragma unroll(AT_ONCE)
        for (int c = 0; c < C; c += UNROLL) {
            int cn = c + UNROLL, in_tile = cn / C;
            const uint4 *from = in_tile == 0 ? w : in_tile == 1 ? next : 0;
            bool refill = i + in_tile < tiles;
            cn %= C;
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    uint4 now = buffer[r][u];
                    if (refill)
                        buffer[r][u] = load(from, r, cn + u);
                    ::multiply(in, c + u, r, now, at, sum);
                }
        }
        w = next;
    }
};

#include "cuda/lib/gemv_run.cuh"
