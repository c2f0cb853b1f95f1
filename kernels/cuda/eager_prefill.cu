/* SPDX-License-Identifier: Apache-2.0 */
/* eager_prefill.cu - causal attention of runs of tokens over paged KV, on tensor cores.
 *
 * A block of four warps owns a tile of 64 consecutive query rows of one head; a warp owns 16 of
 * them. Keys and values come in tiles of 64 positions (four pages) through cp.async, two tiles
 * deep. S = Q K^T and O += P V are mma m16n8k16 in bf16 with float sums; the softmax is running
 * (FlashAttention 2, Dao 2023), its state in registers. P goes from the accumulators of one
 * product to the operands of the next without leaving them.
 *
 *   q16 [M, heads, HD], pages [page][kv_head][KV_PAGE][HD], a16 [M, heads, HD]
 *
 * Rows of shared memory are padded by 16 bytes, so that ldmatrix meets no bank twice. Positions at
 * or beyond the tile's last token are zeroed on arrival and masked, so what a page holds there
 * does not matter.
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

enum { POSITIONS = 64, THREADS = 128 };

__device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

/* c[16, 8] += a[16, 16] b[16, 8] */
__device__ __forceinline__ void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Positions [from, from + 64) of one kv head into shared rows of HD + 8. */
template <int HD>
__device__ void fetch(bf16 *dst, const void *pages, const struct eager_prefill_args &a,
                      const struct eager_tile &tile, int kvh, int from, int end)
{
    for (int i = threadIdx.x; i < POSITIONS * HD / 8; i += THREADS) {
        int row = i / (HD / 8), d = i % (HD / 8) * 8, at = from + row;
        bool valid = at < end;
        size_t page = a.page_table[tile.pages_at + (valid ? at : 0) / KV_PAGE];
        size_t slot = (page * a.kv_heads + kvh) * KV_PAGE + (valid ? at : 0) % KV_PAGE;
        copy16(dst + row * (HD + 8) + d, (const bf16 *)pages + slot * HD + d, valid);
    }
}

/* The running softmax of two rows of this lane (row and row + 8 of the warp's 16). */
template <int HD> struct rows {
    float top[2], sum[2];
    float o[HD / 8][4];
};

/* Scores of 64 positions to probabilities; rescales what was summed so far. Scores and maxima are
 * kept unscaled, so that scaling is part of the exponent's multiply-add. `edge`: some of these
 * positions are beyond some row of the warp. */
template <int HD>
__device__ __forceinline__ void soften(float s[8][4], struct rows<HD> &r, float scale, int from,
                                       int position, bool edge)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int last = position + half * 8; /* this row sees positions up to here */
        float top = r.top[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &v = s[n][2 * half + j];
                if (edge && from + n * 8 + lane % 4 * 2 + j > last)
                    v = -INFINITY;
                top = fmaxf(top, v);
            }
        top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 2));
        float base = top == -INFINITY ? 0 : top * scale; /* a row that sees nothing yet */
        float keep = exp2_fast(r.top[half] * scale - base), sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &v = s[n][2 * half + j];
                v = exp2_fast(v * scale - base);
                sum += v;
            }
        r.top[half] = top;
        r.sum[half] = r.sum[half] * keep + sum;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            r.o[n][2 * half] *= keep;
            r.o[n][2 * half + 1] *= keep;
        }
    }
}

template <int HD>
__device__ __forceinline__ void multiply(const unsigned q[HD / 16][4], const bf16 *k, const bf16 *v,
                                         struct rows<HD> &r, float scale, int from, int position)
{
    int lane = threadIdx.x % 32;
    bool edge = from + POSITIONS - 1 > position - lane / 4;
    float s[8][4] = {};
    /* lanes 0-7, 8-15, 16-23, 24-31 address: positions 0-7 low and high half of k, then 8-15 */
    const bf16 *at = k + (lane / 16 * 8 + lane % 8) * (HD + 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < 8; n += 2)
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            unsigned b[4];
            load_matrices(b, at + n * 8 * (HD + 8) + c * 16);
            mma(s[n], q[c], b[0], b[1]);
            mma(s[n + 1], q[c], b[2], b[3]);
        }
    soften<HD>(s, r, scale, from, position, edge);
    /* lane groups address: positions 0-7 and 8-15 of the first 8 dimensions, then of the next */
    at = v + (lane / 8 % 2 * 8 + lane % 8) * (HD + 8) + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        unsigned p[4] = {pack_bf16(s[n][0], s[n][1]), pack_bf16(s[n][2], s[n][3]),
                         pack_bf16(s[n + 1][0], s[n + 1][1]), pack_bf16(s[n + 1][2], s[n + 1][3])};
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            unsigned b[4];
            load_transposed(b, at + n * 8 * (HD + 8) + c * 16);
            mma(r.o[2 * c], p, b[0], b[1]);
            mma(r.o[2 * c + 1], p, b[2], b[3]);
        }
    }
}

/* A fragments of this warp's 16 query rows; rows at or beyond `rows` are read as the last one. */
template <int HD>
__device__ void load_queries(unsigned q[HD / 16][4], const struct eager_prefill_args &a,
                             const struct eager_tile &tile, int head, int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int t = tile.first + min(row + half * 8, tile.rows - 1);
        const bf16 *from = (const bf16 *)a.q16 + ((size_t)t * a.heads + head) * HD + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < HD / 16; c++) {
            q[c][half] = *(const unsigned *)(from + c * 16);
            q[c][half + 2] = *(const unsigned *)(from + c * 16 + 8);
        }
    }
}

template <int HD>
__device__ void store_rows(const struct eager_prefill_args &a, const struct eager_tile &tile,
                           struct rows<HD> &r, int head, int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(WARP_ALL, sum, 2);
        if (row + half * 8 >= tile.rows)
            continue;
        size_t at = ((size_t)(tile.first + row + half * 8) * a.heads + head) * HD + lane % 4 * 2;
        float inv = 1.0f / sum;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            float x = r.o[n][2 * half] * inv, y = r.o[n][2 * half + 1] * inv;
            if (a.a16)
                *(unsigned *)((bf16 *)a.a16 + at + n * 8) = pack_bf16(x, y);
            if (a.a)
                *(float2 *)(a.a + at + n * 8) = make_float2(x, y);
        }
    }
}

template <int HD> __device__ void prefill(const struct eager_prefill_args &a)
{
    extern __shared__ __align__(16) bf16 memory[];
    constexpr int SIZE = POSITIONS * (HD + 8);
    int head = blockIdx.y, kvh = head / (a.heads / a.kv_heads);
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    release_next();
    after_previous();
    struct eager_tile tile = a.tile[blockIdx.x];
    int end = tile.position + tile.rows; /* positions that some row sees */
    unsigned q[HD / 16][4];
    struct rows<HD> r;
    load_queries<HD>(q, a, tile, head, row);
    for (int half = 0; half < 2; half++) {
        r.top[half] = -INFINITY;
        r.sum[half] = 0;
    }
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
        r.o[n][0] = r.o[n][1] = r.o[n][2] = r.o[n][3] = 0;
    fetch<HD>(memory, a.k_pages, a, tile, kvh, 0, end);
    fetch<HD>(memory + SIZE, a.v_pages, a, tile, kvh, 0, end);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int from = 0, buffer = 0; from < end; from += POSITIONS, buffer ^= 1) {
        if (from + POSITIONS < end) {
            bf16 *next = memory + (buffer ^ 1) * 2 * SIZE;
            fetch<HD>(next, a.k_pages, a, tile, kvh, from + POSITIONS, end);
            fetch<HD>(next + SIZE, a.v_pages, a, tile, kvh, from + POSITIONS, end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        multiply<HD>(q, memory + buffer * 2 * SIZE, memory + (buffer * 2 + 1) * SIZE, r,
                     a.scale * 1.44269504f, from, tile.position + row);
        __syncthreads();
    }
    store_rows<HD>(a, tile, r, head, row);
}

KERNEL __launch_bounds__(THREADS)
    eager_prefill_64(const __grid_constant__ struct eager_prefill_args a)
{
    prefill<64>(a);
}

KERNEL __launch_bounds__(THREADS)
    eager_prefill_128(const __grid_constant__ struct eager_prefill_args a)
{
    prefill<128>(a);
}
