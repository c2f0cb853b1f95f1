/* SPDX-License-Identifier: Apache-2.0 */
/* brick.cu - projections of one to four tokens whose weights are kept in their own format
 * (kernels/bricks.h): read once, through a ring in shared memory, and multiplied on tensor cores.
 *
 * The regions and their maths are gemv.cu's, and so is what a block does around its products. What
 * differs is the product. A weight of four bits has to be made a number, and on ordinary units that
 * and its multiply-add are four instructions, which is more than a multiprocessor has in the time
 * that half a byte takes to come: so four codes become an operand of int8 by one shift and one
 * logic operation, 16 rows of 32 columns are one mma.sync, and scales come after it
 * (lib/bricks_int.cuh). No weight is rounded. Activations are whole numbers of two int8 digits,
 * with a power of two for each 32 of them; digits of tokens are columns, with strips beside them
 * where tokens are few (lib/bricks_digits.cuh). Codes of F8 become half floats two by two with one
 * instruction, and activations halves with a power of two for each 256 (lib/bricks_half.cuh).
 *
 * A warp multiplies ROWS rows, brick by brick. A brick is one piece of memory, so one lane asks for
 * it with one instruction and a barrier counts its bytes; each warp has a ring of its own with
 * STAGES bricks of each 16 rows, filled before the wait for the kernel before this one. (In
 * registers so many bricks leave room for few warps.) Bytes moved: the bricks, and x once a block.
 *
 * Invariant: that of lib/gemv_run.cuh. A slot is asked for again only when all lanes have
 * multiplied what was in it; every step that is asked for is waited for, so no copy outlives its
 * block.
 */

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/brick.def has them; whoever compiles this gives each a value. */
#define XREGS 0 /* activations in shared memory */
#define UNROLL 1
#define NEIGHBOURS 0 /* bricks of a row are dealt to warps in turn */
#define FRAGMENTS 1
#include "cuda/lib/barrier.cuh"
#include "cuda/lib/gemv.cuh"

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/brick.def"

/* ---- code --------------------------------------------------------------------------------- */

#include "cuda/lib/gemv_end.cuh"

#include "cuda/lib/bricks_x.cuh"

enum {
    BANDS = ROWS / 16, /* rows of bricks of a warp */
    BYTES = brick_bytes(WTYPE),
    SLOT = BANDS * BYTES,
    SMEM_STREAM = KW * RW * STAGES * SLOT
};

/* Bricks in shared memory. Step t of the block, tile t / C, is in slot t % STAGES. */
struct Stream {
    const struct region_args &a;
    const struct place at;
    char *ring;    /* this warp's */
    int slot, lap; /* of the step that is next; laps of the ring before it, modulo 2 */
    barrier *full; /* [STAGES] this warp's: what was asked for is there */

    __device__ __forceinline__ Stream(const struct region_args &args, const struct place &place,
                                      float *shared)
        : a(args), at(place), slot(0), lap(0)
    {
        __shared__ barrier barriers[KW * RW][STAGES];
        int warp = threadIdx.x / 32;
        ring = (char *)shared + warp * (STAGES * SLOT);
        full = barriers[warp];
        if (at.lane == 0) {
            for (int s = 0; s < STAGES; s++)
                barrier_init(full + s, 1);
            barriers_ready();
        }
        __syncwarp();
    }

    /* Asks for step t, if the block has so many, into slot `to`. */
    __device__ __forceinline__ void ask(int t, int to, int tiles)
    {
        int i = t / C, c = t % C;
        if (at.lane != 0 || i >= tiles)
            return;
        bool some = !beyond(c, at);
        size_t band = (tile_row(i) + at.rw * ROWS) / 16;
        const char *from =
            (const char *)a.w + (band * ACROSS + chunks_before() + chunk_at(c, at)) * BYTES;
        barrier_expect(full + to, some ? SLOT : 0);
#pragma unroll
        for (int r = 0; r < BANDS; r++)
            if (some)
                copy_bulk<LOAD == 2>(ring + to * SLOT + r * BYTES,
                                     from + (size_t)r * ACROSS * BYTES, BYTES, full + to);
    }

    __device__ __forceinline__ void fill()
    {
        int tiles = tiles_of_block();
#pragma unroll
        for (int t = 0; t < STAGES; t++)
            ask(t, t, tiles);
        if (PREFETCH)
            prefetch();
    }

    /* What is not in flight yet of the first tiles, into L2. */
    __device__ __forceinline__ void prefetch() const
    {
        int tiles = min(tiles_of_block(), PREFETCH);
        for (int i = 0; i < tiles; i++) {
            int skip = i == 0 ? STAGES * KW : 0;
            for (int r = threadIdx.x; r < TILE / 16 && skip < CHUNKS; r += THREADS)
                prefetch_l2((const char *)a.w +
                                ((size_t)(tile_row(i) / 16 + r) * ACROSS + chunks_before() + skip) *
                                    BYTES,
                            (min((int)CHUNKS, ACROSS - chunks_before()) - skip) * BYTES);
        }
    }

    __device__ __forceinline__ void look(int, int) const
    {
    }

    __device__ __forceinline__ void multiply(const struct input &in, int i, int tiles, float *sum)
    {
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            sum[j] = 0;
#pragma unroll 1
        for (int c = 0; c < C; c++) {
            barrier_wait(full + slot, lap);
#pragma unroll
            for (int r = 0; r < BANDS; r++) {
                const char *brick = ring + slot * SLOT + r * BYTES;
                int strip = chunk_at(c, at) * BRICK_STRIPS;
                if (beyond(c, at))
                    continue;
                multiply_brick<WTYPE>(brick, in, strip, at, sum + r * BAND_SUMS);
            }
            __syncwarp(); /* every lane has read */
            ask(i * C + c + STAGES, slot, tiles);
            lap ^= slot == STAGES - 1;
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
    }
};

#include "cuda/lib/gemv_run.cuh"
