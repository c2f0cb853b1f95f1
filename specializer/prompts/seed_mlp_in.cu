/* mlp_in, plainly: a warp owns one column of h, which is rows 2i (gate) and 2i + 1 (up) of W; it
 * sums the squares of x on the way, and the norm's factor comes last. */
#define THREADS 256
#define WARPS (THREADS / 32)
#define GRID ((FFN + WARPS - 1) / WARPS)

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    const int column = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m = a.counts->m;
    after_previous();
    if (column >= FFN)
        return;
    const uint4 *g = (const uint4 *)a.w + (long long)(2 * column) * (HIDDEN / 8);
    const uint4 *u = g + HIDDEN / 8;
    for (int t = 0; t < m; t++) {
        const float *x = a.x + (long long)t * HIDDEN;
        float gate = 0.0f, up = 0.0f, squares = 0.0f;
        for (int i = lane; i < HIDDEN / 8; i += 32) {
            float wg[8], wu[8];
            expand8(g[i], wg);
            expand8(u[i], wu);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float v = x[8 * i + k], n = v * a.norm[8 * i + k];
                squares += v * v;
                gate += wg[k] * n;
                up += wu[k] * n;
            }
        }
        float scale = rsqrtf(warp_sum(squares) / HIDDEN + a.eps);
        gate = warp_sum(gate) * scale;
        up = warp_sum(up) * scale;
        if (lane == 0)
            a.h[(long long)t * FFN + column] = silu(gate) * up;
    }
}
