/* SPDX-License-Identifier: Apache-2.0 */
/* eager_bricks.cu - eager matrix products with weights that are kept in their own format
 * (kernels/bricks.h).
 *
 *   eager_bricks_T_N   d[m, n] = x16[m, k] w[n, k]^T (+ c), up to 8 N tokens: every weight is read
 *                      once and no weight is rounded, activations are bf16, sums float
 *   eager_expand_T     rows of w as bf16, which the library's products take: more tokens
 *   eager_embed_bricks x = table[token], each value as the file's reader defines it
 *
 * T is the number of the format (args.h). In a product a block has 16 rows and its warps share
 * their bricks; their sums meet in shared memory. Sums of x, which offsets are multiplied by, are a
 * product with ones.
 */
#include "cuda/lib/bricks.cuh"
#include "cuda/lib/embed.cuh"
#include "cuda/lib/mma.cuh"
#include "eager.h"

enum { WARPS = EAGER_BRICKS / 32 };

struct load_once {
    __device__ __forceinline__ uint4 operator()(const uint4 *p) const
    {
        return __ldg(p);
    }
};

/* acc += the strip's part of w x for tokens 8 n .. 8 n + 7; x0, x1: their two parts of operand B */
template <int T>
__device__ __forceinline__ void add_strip(const struct brick<T> &b, const struct brick_scale<T> &s,
                                          int t, uint2 x0, uint2 x1, float *acc)
{
    typedef brick_shape<T> shape;
    const unsigned one = 0x3f803f80u;
    const uint4 ones = make_uint4(one, one, one, one);
    float sum[shape::HALVES][4] = {}, all[shape::HALVES][4] = {};
    mma_bf16(sum[0], brick_operand<T>(b, t, 0), x0.x, x0.y);
    mma_bf16(sum[shape::HALVES - 1], brick_operand<T>(b, t, 1), x1.x, x1.y);
    if (shape::OFFSET) {
        mma_bf16(all[0], ones, x0.x, x0.y);
        mma_bf16(all[shape::HALVES - 1], ones, x1.x, x1.y);
    }
#pragma unroll
    for (int p = 0; p < shape::HALVES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[i] = fmaf(s.scale[p][i / 2], sum[p][i], acc[i]);
            if (shape::OFFSET)
                acc[i] = fmaf(-s.offset[p][i / 2], all[p][i], acc[i]);
        }
}

template <int T, int N>
__device__ __forceinline__ void multiply_brick(const struct eager_bricks_args &a,
                                               const struct brick<T> &b, int first, float (*acc)[4])
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < BRICK_STRIPS; t++) {
        int col = first + t * 32; /* beyond the row codes and scales are zero */
        struct brick_scale<T> s = brick_scales_of<T>(b, t);
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint2 x0 = make_uint2(0, 0), x1 = x0;
            if (n * 8 + g < a.m && col < a.k) {
                const bf16 *x = (const bf16 *)a.x16 + (size_t)(n * 8 + g) * a.k + col + 4 * q;
                x0 = *(const uint2 *)x;
                x1 = *(const uint2 *)(x + 16);
            }
            add_strip<T>(b, s, t, x0, x1, acc[n]);
        }
    }
}

template <int T, int N> __device__ __forceinline__ void run(const struct eager_bricks_args &a)
{
    __shared__ float part[WARPS][N * 8][BRICK_ROWS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = bricks_across(a.k);
    const char *w = (const char *)a.w + (size_t)blockIdx.x * across * brick_bytes(T);
    float acc[N][4] = {};
    struct brick<T> b;
    release_next();
    if (warp < across)
        load_brick<T>(&b, w + (size_t)warp * brick_bytes(T), lane, load_once());
    after_previous();
    for (int i = warp; i < across; i += WARPS) {
        struct brick<T> now = b;
        if (i + WARPS < across)
            load_brick<T>(&b, w + (size_t)(i + WARPS) * brick_bytes(T), lane, load_once());
        multiply_brick<T, N>(a, now, i * BRICK_COLS, acc);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp][n * 8 + 2 * (lane % 4) + i % 2][lane / 4 + i / 2 * 8] = acc[n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < N * 8 * BRICK_ROWS; i += EAGER_BRICKS) {
        int t = i / BRICK_ROWS, row = blockIdx.x * BRICK_ROWS + i % BRICK_ROWS;
        size_t at = (size_t)t * a.ld + row;
        if (t >= a.m || row >= a.n)
            continue;
        float v = a.c ? a.c[at] : 0.0f;
#pragma unroll
        for (int p = 0; p < WARPS; p++)
            v += part[p][t][i % BRICK_ROWS];
        a.d[at] = v;
    }
}

/* ---- to bf16 -------------------------------------------------------------------------------- */

/* One value as dequant_row() rounds it, of a number as brick_pair() leaves it. */
template <int T>
__device__ __forceinline__ float plain_value(float number, const struct brick_scale<T> &s, int half,
                                             int h)
{
    float code = number - brick_shape<T>::MORE, scaled = __fmul_rn(s.scale[half][h], code);
    return brick_shape<T>::LEAST ? __fsub_rn(scaled, s.least[h]) : scaled;
}

template <int T> __device__ __forceinline__ void expand(const struct eager_expand_args &a)
{
    typedef brick_shape<T> shape;
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, across = bricks_across(a.k);
    int64_t warp = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    int64_t all = (int64_t)((a.n + BRICK_ROWS - 1) / BRICK_ROWS) * across;
    release_next();
    after_previous(); /* what was expanded before this may still be multiplied */
    for (int64_t i = warp; i < all; i += warps) {
        struct brick<T> b;
        load_brick<T>(&b, (const char *)a.w + i * brick_bytes(T), lane, load_once());
#pragma unroll
        for (int t = 0; t < BRICK_STRIPS; t++) {
            struct brick_scale<T> s = brick_scales_of<T>(b, t);
            int col = (int)(i % across) * BRICK_COLS + t * 32 + 4 * q;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int row = (int)(i / across) * BRICK_ROWS + g + 8 * h, half = k % shape::HALVES;
                    unsigned x = brick_pair<T>(b, t, h, 2 * k),
                             y = brick_pair<T>(b, t, h, 2 * k + 1);
                    if (row < a.n && col < a.k)
                        *(uint2 *)((bf16 *)a.to + (size_t)row * a.k + col + 16 * k) =
                            make_uint2(pack_bf16(plain_value<T>(low_bf16(x), s, half, h),
                                                 plain_value<T>(high_bf16(x), s, half, h)),
                                       pack_bf16(plain_value<T>(low_bf16(y), s, half, h),
                                                 plain_value<T>(high_bf16(y), s, half, h)));
                }
        }
    }
}

/* ---- entries -------------------------------------------------------------------------------- */

/* BLOCKS: whose registers must fit a multiprocessor; so chosen that all stay in registers. */

#define FORMAT(T, BLOCKS)                                                        \
    KERNEL __launch_bounds__(EAGER_BRICKS, BLOCKS)                               \
        eager_bricks_##T##_1(const __grid_constant__ struct eager_bricks_args a) \
    {                                                                            \
        run<T, 1>(a);                                                            \
    }                                                                            \
    KERNEL __launch_bounds__(EAGER_BRICKS, 1)                                    \
        eager_bricks_##T##_2(const __grid_constant__ struct eager_bricks_args a) \
    {                                                                            \
        run<T, 2>(a);                                                            \
    }                                                                            \
    KERNEL __launch_bounds__(256)                                                \
        eager_expand_##T(const __grid_constant__ struct eager_expand_args a)     \
    {                                                                            \
        expand<T>(a);                                                            \
    }
FORMAT(3, 2)
FORMAT(4, 2)
FORMAT(5, 2)
FORMAT(6, 2)
FORMAT(7, 2)
FORMAT(8, 2)
FORMAT(9, 1)
FORMAT(10, 2)
FORMAT(16, 2)
static_assert(DTYPE_Q8_0 == 3 && DTYPE_Q5_K == 10 && DTYPE_F8 == 16, "formats by number");
static_assert(BRICK_KINDS == 9, "and all of them");

KERNEL eager_embed_bricks(const __grid_constant__ struct eager_embed_args e)
{
    const struct cuda_embed_args &a = e.step;
    int t = blockIdx.x, token = embed_token(a, t);
    if (token < 0)
        return;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x)
        a.x[(size_t)t * a.hidden + i] = brick_value(e.type, a.table, a.hidden, token, i);
}
