/* attn_out and mlp_out, plainly: a warp owns one row of W and goes through it for every token. */
#define THREADS 256
#define WARPS (THREADS / 32)
#define GRID ((ROWS_ALL + WARPS - 1) / WARPS)

__device__ __forceinline__ float dot8(uint4 w, const float *x)
{
    float f[8], sum = 0.0f;
    expand8(w, f);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += f[i] * x[i];
    return sum;
}

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m = a.counts->m;
    after_previous();
    if (row >= ROWS_ALL)
        return;
    const uint4 *w = (const uint4 *)a.w + (long long)row * (K / 8);
    for (int t = 0; t < m; t++) {
        const float *x = a.in + (long long)t * K;
        float sum = 0.0f;
        for (int i = lane; i < K / 8; i += 32)
            sum += dot8(w[i], x + 8 * i);
        sum = warp_sum(sum);
        if (lane == 0)
            a.y[(long long)t * HIDDEN + row] = sum + a.x[(long long)t * HIDDEN + row];
    }
}
