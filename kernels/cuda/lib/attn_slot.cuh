/* SPDX-License-Identifier: Apache-2.0 */
/* attn_slot.cuh - a page of keys and values of one kv head: in shared memory, where its pieces of
 * 16 bytes lie, and how a warp copies and reads it; or in a warp's registers. Lane (g, q) = (lane /
 * 4, lane % 4).
 *
 * Piece c of row r lies at c ^ swizzle(r), which makes both ways of reading free of bank conflicts:
 * 4 neighbouring pieces of rows 2i and 2i + 1 (keys), and one piece of 8 rows (values).
 *
 * Included behind the constants HD, PIECES, ROW and SIDE.
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_SLOT_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_SLOT_CUH

#include "cuda/lib/stream.cuh"

enum { SLOT = 2 * SIDE, AT_ONCE = 32 / PIECES }; /* rows that a warp copies with one instruction */

/* Bits of a row's number that its pieces are moved by: rows 2i and 2i + 1 differ in the highest, 8
 * neighbouring rows in some, rows 8 apart in none. Linear: swizzle(a ^ b) = swizzle(a) ^
 * swizzle(b).
 */
__device__ __forceinline__ int swizzle(int row)
{
    return (row & 1) << 2 | (row >> 1 & 3);
}

/* Where piece `piece` of a row is in its half of a slot. */
__device__ __forceinline__ int place_of(int row, int piece)
{
    return row * ROW + (piece ^ swizzle(row)) * 16;
}

/* Four 8 x 8 matrices, turned; `at`: this lane's row of them. */
__device__ __forceinline__ uint4 load_turned(const void *at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"((unsigned)__cvta_generic_to_shared(at))
                 : "memory");
    return v;
}

/* Starts the copy of a page into `slot`; rows from `left` on become zeros. k, v: of the page. */
__device__ __forceinline__ void copy_page(char *slot, const char *k, const char *v, int left)
{
    int lane = threadIdx.x % 32, mine = place_of(lane / PIECES, lane % PIECES);
    k += lane * 16, v += lane * 16;
#pragma unroll
    for (int i = 0; i < KV_PAGE / AT_ONCE; i++) {
        bool here = i * AT_ONCE + lane / PIECES < left;
        int place = (mine ^ swizzle(i * AT_ONCE) * 16) + i * 512; /* of that row */
        copy_or_zero(slot + place, k + i * 512, here);
        copy_or_zero(slot + SIDE + place, v + i * 512, here);
    }
}

/* Reads the page at `read` as operands B of the products. */
struct reader {
    const char *read;
    int key_at, value_at;

    __device__ __forceinline__ reader()
        : read(0), key_at(place_of(threadIdx.x % 32 / 4, threadIdx.x % 4)),
          value_at(place_of(threadIdx.x % 16, threadIdx.x % 32 / 16))
    {
    }

    /* Of position g + 8 half: columns 32 c + 8 q .. + 7, two steps of 16. */
    __device__ __forceinline__ uint4 key(int c, int half) const
    {
        return load_staged(read + (key_at ^ c * 64) + half * 8 * ROW);
    }

    /* Of all positions: column g of tiles 2 i, (x, y), and 2 i + 1, (z, w). */
    __device__ __forceinline__ uint4 values(int i) const
    {
        return load_turned(read + SIDE + (value_at ^ i * 32));
    }
};

/* A page in registers. A lane has of keys what key() says, and of values pieces g, g + 8 of
 * positions 2 q, 2 q + 1, 2 q + 8, 2 q + 9: column g of tile 8 e + j is element j of piece g + 8 e.
 */
struct holder {
    uint4 k[HD / 32][2], v[4][HD / 64];

    /* Of positions before `left`; zeros elsewhere. */
    __device__ __forceinline__ void load_keys(const char *page, int left)
    {
        int lane = threadIdx.x % 32;
        page += lane / 4 * ROW + lane % 4 * 16;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int c = 0; c < HD / 32; c++) {
                const uint4 *from = (const uint4 *)(page + half * 8 * ROW + c * 64);
                k[c][half] = lane / 4 + half * 8 < left ? __ldcg(from) : make_uint4(0, 0, 0, 0);
            }
    }

    __device__ __forceinline__ void load_values(const char *page, int left)
    {
        int lane = threadIdx.x % 32;
        page += lane % 4 * 2 * ROW + lane / 4 * 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < HD / 64; e++) {
                int further = i % 2 + i / 2 * 8;
                const uint4 *from = (const uint4 *)(page + further * ROW + e * 128);
                v[i][e] = lane % 4 * 2 + further < left ? __ldcg(from) : make_uint4(0, 0, 0, 0);
            }
    }

    __device__ __forceinline__ uint4 key(int c, int half) const
    {
        return k[c][half];
    }

    static __device__ __forceinline__ unsigned word(uint4 v, int i)
    {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }

    __device__ __forceinline__ uint4 values(int i) const
    {
        enum { LOW = 0x5410, HIGH = 0x7632 }; /* halves of two words */
        unsigned a[4];
#pragma unroll
        for (int p = 0; p < 4; p++)
            a[p] = word(v[p][i / 4], i % 4);
        return make_uint4(__byte_perm(a[0], a[1], LOW), __byte_perm(a[2], a[3], LOW),
                          __byte_perm(a[0], a[1], HIGH), __byte_perm(a[2], a[3], HIGH));
    }
};

#endif
