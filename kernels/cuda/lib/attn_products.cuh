/* SPDX-License-Identifier: Apache-2.0 */
/* attn_products.cuh - a page of keys and values times the queries of a kv head on tensor cores,
 * with a running softmax between the two products. One warp; lane (g, q) = (lane / 4, lane % 4).
 *
 * Products are m16n8k16: for scores, query heads by 8 positions; for the output, the weights of
 * those heads by 8 columns of values. Scores leave the first as operand A of the second wants them.
 * As eager's, queries and weights are float, so each is three terms of bf16 (8 bits each). A head
 * needs three rows: for up to 4 heads they are rows g, g + 4 and g + 8 of one product, for up to 8
 * heads g and g + 8 of one, and g of another. Tensor cores cut sums off instead of rounding them,
 * so none stays in them for longer than 32 columns or a page: those are added up by ordinary units.
 * A score is then wrong by 3 or 4 float units of what it is summed up from, where eager's is by
 * one; admission allows 8 (specializer/admission/comparator.c).
 *
 * Included behind the constants HD, G, PASSES and CHUNKS and a struct pages that has key() and
 * values() of the page that is open (attn_pages.cuh, attn_share.cuh).
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_PRODUCTS_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_PRODUCTS_CUH

#include "cuda/lib/mma.cuh"
#include "cuda/lib/stream.cuh"

/* Operand A of the three terms of a float: one product's, or two's. Lane (g, q) = (lane / 4, lane %
 * 4) gives two neighbours x and two y, 8 columns further, of its head: g, or g % 4. */
__device__ __forceinline__ void terms(float x0, float x1, float y0, float y1, uint4 *a)
{
    unsigned x[3], y[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        x[i] = pack_bf16(x0, x1), y[i] = pack_bf16(y0, y1);
        x0 -= low_bf16(x[i]), x1 -= high_bf16(x[i]);
        y0 -= low_bf16(y[i]), y1 -= high_bf16(y[i]);
    }
    if (PASSES == 2) {
        a[0] = make_uint4(x[0], x[1], y[0], y[1]);
        a[PASSES - 1] = make_uint4(x[2], 0, y[2], 0);
    } else {
        bool second = threadIdx.x & 16; /* rows 4 to 7 */
        a[0] = second ? make_uint4(x[1], 0, y[1], 0) : make_uint4(x[0], x[2], y[0], y[2]);
    }
}

/* The same value of a head's other lanes: rows g and g + 4 share a head of up to 4. */
__device__ __forceinline__ float of_head(float v)
{
    return PASSES == 1 ? v + __shfl_xor_sync(WARP_ALL, v, 16) : v;
}

/* c += a b, for all terms. */
__device__ __forceinline__ void multiply(float *c, const uint4 *a, unsigned b0, unsigned b1)
{
#pragma unroll
    for (int i = 0; i < PASSES; i++)
        mma_bf16(c, a[i], b0, b1);
}

/* Sums of a warp for the lane's head: top is the same in all lanes of a head, sum is of the lane's
 * positions, o of the lane's terms. o[i]: columns 8 i + 2 q, + 1. */
struct running {
    float top, sum, o[HD / 8][2];
};

/* Queries as operand A, in base 2: put(i, terms) for i = 0 .. HD / 16 - 1. Steps 2 c and 2 c + 1
 * are columns 32 c + 8 q .. + 7, half each, so that a lane's part of the keys for both is 16 bytes.
 */
template <typename Put>
__device__ __forceinline__ void load_queries(const struct cuda_attn_args &args, int t, int kvh,
                                             const Put &put)
{
    int lane = threadIdx.x % 32, h = lane / 4 % (PASSES == 1 ? 4 : 8);
    float scale = args.scale * 1.44269504f;
    const float *from =
        args.q + ((size_t)t * HEADS + kvh * G + (h < G ? h : 0)) * HD + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 a[PASSES];
            float4 v = load_x4(from + c * 32 + i * 4);
            terms(v.x * scale, v.y * scale, v.z * scale, v.w * scale, a);
            put(2 * c + i, a);
        }
}

/* In registers. */
struct queries {
    uint4 a[HD / 16][PASSES];

    __device__ __forceinline__ void load(const struct cuda_attn_args &args, int t, int kvh)
    {
        load_queries(args, t, kvh, [this](int i, const uint4 *terms) {
#pragma unroll
            for (int j = 0; j < PASSES; j++)
                a[i][j] = terms[j];
        });
    }

    __device__ __forceinline__ void get(int i, uint4 *terms) const
    {
#pragma unroll
        for (int j = 0; j < PASSES; j++)
            terms[j] = a[i][j];
    }
};

/* In shared memory, each lane's own, for kernels that have no registers to spare. */
struct queries_aside {
    enum { BYTES = HD / 16 * PASSES * 32 * 16 }; /* of a warp */
    uint4 *own;

    __device__ __forceinline__ queries_aside(char *shared)
        : own((uint4 *)(shared + threadIdx.x / 32 * BYTES) + threadIdx.x % 32)
    {
    }

    __device__ __forceinline__ void load(const struct cuda_attn_args &args, int t, int kvh)
    {
        load_queries(args, t, kvh, [this](int i, const uint4 *terms) {
#pragma unroll
            for (int j = 0; j < PASSES; j++)
                own[(i * PASSES + j) * 32] = terms[j];
        });
    }

    __device__ __forceinline__ void get(int i, uint4 *terms) const
    {
#pragma unroll
        for (int j = 0; j < PASSES; j++)
            terms[j] = load_staged(own + (i * PASSES + j) * 32);
    }
};

/* s: of positions 2 q, 2 q + 1, 2 q + 8, 2 q + 9 in a page; minus infinity from `left` on. */
template <typename Queries>
__device__ __forceinline__ void score(const Queries &q, const struct pages &p, int left, float *s)
{
    int first = threadIdx.x % 4 * 2;
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        uint4 k0 = p.key(c, 0), k1 = p.key(c, 1);
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        uint4 a[PASSES];
        q.get(2 * c, a);
        multiply(p0, a, k0.x, k0.y);
        multiply(p1, a, k1.x, k1.y);
        q.get(2 * c + 1, a);
        multiply(p0, a, k0.z, k0.w);
        multiply(p1, a, k1.z, k1.w);
        s[0] += p0[0] + p0[2], s[1] += p0[1] + p0[3];
        s[2] += p1[0] + p1[2], s[3] += p1[1] + p1[3];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = of_head(s[i]);
        s[i] = first + i % 2 + i / 2 * 8 < left ? sum : -INFINITY;
    }
}

/* A page's scores become weights; what the sums so far still weigh. The page has a position: top is
 * a number. */
__device__ __forceinline__ float weigh(struct running *r, float *s)
{
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 1));
    top = fmaxf(r->top, fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 2)));
    float keep = exp2_fast(r->top - top);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = exp2_fast(s[i] - top);
    r->top = top;
    r->sum = r->sum * keep + ((s[0] + s[1]) + (s[2] + s[3]));
    return keep;
}

__device__ __forceinline__ void add(struct running *r, const float *s, float keep,
                                    const struct pages &p)
{
    uint4 a[PASSES];
    terms(s[0], s[1], s[2], s[3], a);
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        uint4 b = p.values(i);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        multiply(c, a, b.x, b.y);
        multiply(d, a, b.z, b.w);
        r->o[2 * i][0] = r->o[2 * i][0] * keep + (c[0] + c[2]);
        r->o[2 * i][1] = r->o[2 * i][1] * keep + (c[1] + c[3]);
        r->o[2 * i + 1][0] = r->o[2 * i + 1][0] * keep + (d[0] + d[2]);
        r->o[2 * i + 1][1] = r->o[2 * i + 1][1] * keep + (d[1] + d[3]);
    }
}

__device__ __forceinline__ void begin(struct running *r)
{
    r->top = -INFINITY;
    r->sum = 0;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        r->o[i][0] = r->o[i][1] = 0;
}

#endif
