/* SPDX-License-Identifier: Apache-2.0 */
/* attn_pages.cuh - where pages of keys and values wait for attn_mma.cu, and how a warp reads them
 * as operand B of its products. Lane (g, q) = (lane / 4, lane % 4).
 *
 *   STAGES > 0   in a ring in shared memory, a slot a page, filled in copies of 16 bytes
 *   STAGES = 0   in registers, a page: keys of the next are asked for when keys have been
 *                multiplied, values when values have
 *
 * Both have
 *
 *   fill(written)  before anything is read, asks for the first pages; but for that of the newest
 *                  position, which is written later, unless it is `written`
 *   complete()     then asks for that page, if it is among the first
 *   open(n)        page n is here: read it by
 *   key(c, half)     of position g + 8 half: columns 32 c + 8 q .. + 7, two steps of 16
 *   keys_read(n)     when key() will not be called any more
 *   values(i)        of all positions: column g of tiles 2 i, (x, y), and 2 i + 1, (z, w)
 *   close(n)       page n has been read
 *   leave(o, to)   o[i][j] of the lane, column 2 q + j of tile i, to its place in a row
 *
 * Numbers of pages are loaded 32 at a time, one a lane, so that no page waits for its address.
 *
 * attn_mma.cu includes this behind its constants (HD, PIECES, ROW, SIDE, CHUNKS, UNITS).
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_PAGES_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_PAGES_CUH

#include "cuda/lib/attn_slot.cuh"

/* What a warp is about: every UNITS-th page of one token's and kv head's positions. */
struct walk {
    const char *k, *v; /* of page 0 */
    const int *table;
    int lane, unit;
    int context, pages; /* positions of the token; pages of this warp */
    int page;           /* number of page n / 32 * 32 + lane, n: the last that at() was asked for */

    __device__ __forceinline__ walk(const struct cuda_attn_args &a, int kvh, int unit_,
                                    int context_, int pages_at)
        : k((const char *)a.k_pages + kvh * SIDE), v((const char *)a.v_pages + kvh * SIDE),
          table(a.page_table + pages_at), lane(threadIdx.x % 32), unit(unit_), context(context_),
          page(0)
    {
        int all = (context + KV_PAGE - 1) / KV_PAGE;
        pages = all > unit ? (all - unit + UNITS - 1) / UNITS : 0;
    }

    /* Positions in page n of this warp and behind it. */
    __device__ __forceinline__ int left_at(int n) const
    {
        return context - (unit + n * UNITS) * KV_PAGE;
    }

    /* Whether page n has the newest position. */
    __device__ __forceinline__ bool newest_in(int n) const
    {
        return n == pages - 1 && left_at(n) <= KV_PAGE;
    }

    /* Bytes from k and v to page n, which there is. Pages are asked for in order. */
    __device__ __forceinline__ size_t at(int n)
    {
        if (n % 32 == 0 && n + lane < pages)
            page = table[unit + (n + lane) * UNITS];
        return (size_t)__shfl_sync(WARP_ALL, page, n % 32) * (KV_HEADS * SIDE);
    }
};

#if STAGES > 0

/* ---- in shared memory ---------------------------------------------------------------------- */

struct pages : reader {
    struct walk w;
    char *ring;
    int slot;

    __device__ __forceinline__ pages(const struct walk &walk, char *shared)
        : w(walk), ring(shared + threadIdx.x / 32 * (STAGES * SLOT)), slot(0)
    {
    }

    /* Starts the copy of page n, which exists, into slot `to`. */
    __device__ __forceinline__ void ask(int n, int to)
    {
        size_t at = w.at(n);
        copy_page(ring + to * SLOT, w.k + at, w.v + at, w.left_at(n));
    }

    __device__ __forceinline__ void fill(bool written)
    {
#pragma unroll 1 /* a kernel begins with an empty instruction cache */
        for (int n = 0; n < STAGES; n++) {
            if (n < w.pages && (written || !w.newest_in(n)))
                ask(n, n);
            copies_sent(); /* also when there is none: each page is a group */
        }
    }

    /* No group of its own: it is the last page of the warp, which waits for everything. */
    __device__ __forceinline__ void complete()
    {
        int n = w.pages - 1;
        if (n >= 0 && n < STAGES && w.newest_in(n))
            ask(n, n);
    }

    __device__ __forceinline__ void open(int n)
    {
        if (n == w.pages - 1)
            await_copies();
        else
            await_sent<STAGES - 1>();
        __syncwarp(); /* of every lane */
        read = ring + slot * SLOT;
    }

    __device__ __forceinline__ void keys_read(int)
    {
    }

    __device__ __forceinline__ void close(int n)
    {
        __syncwarp(); /* every lane has read */
        if (n + STAGES < w.pages)
            ask(n + STAGES, slot);
        copies_sent();
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }

    __device__ __forceinline__ void leave(const float (*o)[2], float *to) const
    {
#pragma unroll
        for (int i = 0; i < HD / 8; i++)
            *(float2 *)(to + i * 8 + w.lane % 4 * 2) = make_float2(o[i][0], o[i][1]);
    }
};

#else

/* ---- in registers -------------------------------------------------------------------------- */

struct pages : holder {
    struct walk w;
    size_t at; /* of the page whose keys have been asked for */

    __device__ __forceinline__ pages(const struct walk &walk, char *) : w(walk), at(0)
    {
    }

    __device__ __forceinline__ void ask()
    {
        at = w.at(0);
        load_keys(w.k + at, w.left_at(0));
        load_values(w.v + at, w.left_at(0));
    }

    __device__ __forceinline__ void fill(bool written)
    {
        if (w.pages > 0 && (written || !w.newest_in(0)))
            ask();
    }

    __device__ __forceinline__ void complete()
    {
        if (w.newest_in(0))
            ask();
    }

    __device__ __forceinline__ void open(int)
    {
    }

    __device__ __forceinline__ void keys_read(int n)
    {
        if (n + 1 < w.pages) {
            at = w.at(n + 1);
            load_keys(w.k + at, w.left_at(n + 1));
        }
    }

    __device__ __forceinline__ void close(int n)
    {
        if (n + 1 < w.pages)
            load_values(w.v + at, w.left_at(n + 1));
    }

    __device__ __forceinline__ void leave(const float (*o)[2], float *to) const
    {
#pragma unroll
        for (int i = 0; i < HD / 8; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++)
                *(float4 *)(to + i / 8 * 64 + w.lane % 4 * 16 + j * 8 + i % 8) =
                    make_float4(o[i][j], o[i + 1][j], o[i + 2][j], o[i + 3][j]);
    }
};

#endif
#endif
