/* SPDX-License-Identifier: Apache-2.0 */
/* ring.cu - projections of one to four tokens whose weights come through a ring in shared memory.
 * The regions and their maths are gemv.cu's; what differs is where weights wait.
 *
 * Registers hold what a lane has asked for in gemv.cu, and a multiprocessor has 256 KB of them for
 * everything. Shared memory has another 228 KB, which the kernel before this one leaves alone. A
 * ring that is filled before the wait keeps memory busy while the previous kernel ends, x arrives
 * and is summed up; a whole small matrix (attn_out of a 2B model is 64 KB a multiprocessor) can be
 * there before its kernel may begin.
 *
 * Each warp has a ring of its own, STAGES steps of UNROLL chunks of its ROWS rows, so nothing waits
 * for another warp. BULK=0: each lane copies the 16 bytes that it will read itself, a step is one
 * group of copies. BULK=1: one lane asks for a row's part of a step with one instruction, and a
 * barrier counts its bytes. A warp's part of a row is one piece of it, so that there is something
 * to copy in bulk.
 *
 * Invariant: that of lib/gemv_run.cuh. A slot is asked for again only when all lanes have
 * multiplied what was in it; every step that is asked for is waited for, so no copy outlives its
 * block.
 */

/* ---- knobs -------------------------------------------------------------------------------- */

/* cuda/ring.def has them; whoever compiles this gives each a value. */
#define BLOCKS 0                       /* the compiler takes the registers that it likes */
#define NEIGHBOURS 1                   /* a warp's chunks of a row are one piece of it */
#define SENT_LATER (BULK ? 0 : STAGES) /* groups of copies after that of the gains */
#include "cuda/lib/barrier.cuh"
#include "cuda/lib/gemv.cuh"

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) static_assert(expression, why);
#include "cuda/ring.def"

/* ---- code --------------------------------------------------------------------------------- */

enum {
    SEGMENT = UNROLL * 512, /* bytes of a row in a step */
    SLOT = ROWS * SEGMENT,
    WHOLE = KW == 1 && SEGMENT == 2 * K, /* rows of a step lie one after the other in memory, too */
    SMEM_STREAM = KW * RW * STAGES * SLOT
};

/* Weights in shared memory. Step t of the block, tile t / STEPS, is in slot t % STAGES. */
struct Stream {
    const struct region_args &a;
    const struct place at;
    char *ring;    /* this warp's */
    int slot, lap; /* of the step that is next; laps of the ring before it, modulo 2 */
#if BULK
    barrier *full; /* [STAGES] this warp's: what was asked for is there */
#endif

    __device__ __forceinline__ Stream(const struct region_args &args, const struct place &place,
                                      float *shared)
        : a(args), at(place), slot(0), lap(0)
    {
        int warp = threadIdx.x / 32;
        ring = (char *)shared + warp * (STAGES * SLOT);
#if BULK
        __shared__ barrier barriers[KW * RW][STAGES];
        full = barriers[warp];
        if (at.lane == 0) {
            for (int s = 0; s < STAGES; s++)
                barrier_init(full + s, 1);
            barriers_ready();
        }
        __syncwarp();
#endif
    }

    /* Starts the copy of step t, if the block has so many, into slot `to`. */
    __device__ __forceinline__ void ask(int t, int to, int tiles)
    {
        int i = t / STEPS, c = t % STEPS * UNROLL;
        if (i < tiles) {
            size_t element = (size_t)(tile_row(i) + at.rw * ROWS) * K + chunk_at(c, at) * 256;
            copy((const char *)a.w + element * 2, ring + to * SLOT, c, to);
        }
        if (!BULK)
            copies_sent(); /* also when there is none: each step is a group */
    }

#if BULK
    __device__ __forceinline__ void copy(const char *from, char *to, int c, int s)
    {
        if (at.lane != 0)
            return;
        int chunks = RAGGED ? max(0, min((int)UNROLL, CHUNKS - chunk_at(c, at))) : UNROLL;
        barrier_expect(full + s, ROWS * chunks * 512);
#pragma unroll
        for (int r = 0; r < (WHOLE ? 1 : ROWS); r++)
            if (chunks > 0)
                copy_bulk<LOAD == 2>(to + r * SEGMENT, from + r * (2 * K),
                                     WHOLE ? SLOT : chunks * 512, full + s);
    }

    __device__ __forceinline__ void await() const
    {
        barrier_wait(full + slot, lap);
    }
#else
    __device__ __forceinline__ void copy(const char *from, char *to, int c, int)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (!beyond(c + u, at)) {
                    int lane = u * 512 + at.lane * 16;
                    copy_weight<LOAD>(to + r * SEGMENT + lane, from + r * (2 * K) + lane);
                }
    }

    __device__ __forceinline__ void await() const
    {
        await_sent<STAGES - 1>();
    }
#endif

    __device__ __forceinline__ void fill()
    {
        int tiles = tiles_of_block();
#pragma unroll
        for (int t = 0; t < STAGES; t++)
            ask(t, t, tiles);
    }

    __device__ __forceinline__ void look(int, int) const
    {
    }

    __device__ __forceinline__ void multiply(const struct input &in, int i, int tiles, float *sum)
    {
#pragma unroll
        for (int j = 0; j < ROWS * M; j++)
            sum[j] = 0;
#pragma unroll(AT_ONCE)
        for (int c = 0; c < C; c += UNROLL) {
            const char *chunk = ring + slot * SLOT + at.lane * 16;
            await();
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    ::multiply(in, c + u, r, *(const uint4 *)(chunk + r * SEGMENT + u * 512), at,
                               sum);
            __syncwarp(); /* every lane has read */
            ask(i * STEPS + c / UNROLL + STAGES, slot, tiles);
            lap ^= slot == STAGES - 1;
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
    }
};

#include "cuda/lib/gemv_run.cuh"
