/* mlp_in on tensor cores: a warp owns 16 rows of W, which are 8 gates and 8 ups, over all of K. Weights
 * come straight into the registers that the products want, AHEAD steps of 32 columns of them before the
 * wait; x is normed first and rounded to bf16 once, as eager does, into shared memory, a token a warp. */
#define THREADS 256
#define WARPS (THREADS / 32)
#define GRID ((2 * FFN + 16 * WARPS - 1) / (16 * WARPS))
#define STEPS (K / 32)
#define AHEAD 8
#define TILES_N ((M_MAX + 7) / 8)
#define TOKENS (TILES_N * 8)
#define LD (K + 8)
#define SMEM (TOKENS * LD * 2)
#define EACH (K / 128)

static_assert(2 * FFN % (16 * WARPS) == 0 && STEPS % AHEAD == 0 && K % 128 == 0);

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    bf16 *xs = (bf16 *)dynamic_shared;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int row0 = (blockIdx.x * WARPS + warp) * 16;
    const uint4 *top = (const uint4 *)a.w + (long long)(row0 + g) * K / 8 + q;
    const uint4 *low = top + K;
    uint4 wt[AHEAD], wl[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        wt[i] = load_weight<0>(top + 4 * i);
        wl[i] = load_weight<0>(low + 4 * i);
    }
    release_next();
    after_previous();
    const int m = a.counts->m;
#pragma unroll 1
    for (int t = warp; t < TOKENS; t += WARPS) {
        const float *x = a.x + (long long)(t < M_MAX ? t : 0) * HIDDEN + 4 * lane;
        float4 v[EACH];
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = load_x4(x + 128 * i);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
        const float scale = rsqrtf(warp_sum(squares) / HIDDEN + a.eps);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float4 n = *(const float4 *)(a.norm + 4 * lane + 128 * i);
            *(uint2 *)(xs + t * LD + 4 * lane + 128 * i) =
                make_uint2(pack_bf16(v[i].x * scale * n.x, v[i].y * scale * n.y),
                           pack_bf16(v[i].z * scale * n.z, v[i].w * scale * n.w));
        }
    }
    __syncthreads();
    float c[TILES_N][4];
#pragma unroll
    for (int n = 0; n < TILES_N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.0f;
    const bf16 *x = xs + g * LD + 8 * q;
#pragma unroll 1
    for (int s = 0; s < STEPS; s += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint4 t = wt[i], l = wl[i];
            if (s + AHEAD < STEPS) {
                wt[i] = load_weight<0>(top + 4 * (s + AHEAD + i));
                wl[i] = load_weight<0>(low + 4 * (s + AHEAD + i));
            }
#pragma unroll
            for (int n = 0; n < TILES_N; n++) {
                const uint4 v = load_staged(x + n * 8 * LD + (s + i) * 32);
                mma_bf16(c[n], make_uint4(t.x, l.x, t.y, l.y), v.x, v.y);
                mma_bf16(c[n], make_uint4(t.z, l.z, t.w, l.w), v.z, v.w);
            }
        }
    }
    /* Even g has a gate, the lane of g + 1 its up. */
#pragma unroll
    for (int n = 0; n < TILES_N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float up = __shfl_down_sync(WARP_ALL, c[n][i], 4);
            const int t = n * 8 + 2 * q + i % 2;
            if (g % 2 == 0 && t < m)
                a.h[(long long)t * FFN + (row0 + g + i / 2 * 8) / 2] = silu(c[n][i]) * up;
        }
}
