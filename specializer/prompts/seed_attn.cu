/* attn, plainly: a block owns a query head of a token; its warps take positions in turn, a lane a few
 * elements of each, and their partial sums meet in shared memory. Scores are summed in double: where
 * one channel is far larger than the others, their rounding is most of the error. */
#define THREADS 512
#define WARPS (THREADS / 32)
#define GRID (HEADS * M_MAX)
#define EACH (HEAD_DIM / 32)

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    __shared__ float top[WARPS], sum[WARPS], part[WARPS][HEAD_DIM];
    const int t = blockIdx.x / HEADS, head = blockIdx.x % HEADS, lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32, kv = head / (HEADS / KV_HEADS);
    const double LOG2E = 1.4426950408889634;
    if (t >= a.counts->m)
        return;
    const int context = a.position[t] + 1, *pages = a.page_table + a.pages_at[t];
    after_previous();
    const float *q = a.q + ((long long)t * HEADS + head) * HEAD_DIM + lane * EACH;
    double mine[EACH];
    float o[EACH], most = -INFINITY, all = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine[i] = (double)q[i] * a.scale * LOG2E;
        o[i] = 0.0f;
    }
    for (int p = warp; p < context; p += WARPS) {
        long long at = ((long long)pages[p / KV_PAGE] * KV_HEADS + kv) * KV_PAGE + p % KV_PAGE;
        const bf16 *k = (const bf16 *)a.k_pages + at * HEAD_DIM + lane * EACH;
        const bf16 *v = (const bf16 *)a.v_pages + at * HEAD_DIM + lane * EACH;
        double dot = 0.0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            dot += mine[i] * (double)from_bf16(k[i]);
        for (int far = 16; far > 0; far >>= 1)
            dot += __shfl_xor_sync(WARP_ALL, dot, far);
        float s = (float)dot;
        float now = fmaxf(most, s), keep = exp2f(most - now), e = exp2f(s - now);
        most = now;
        all = all * keep + e;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            o[i] = o[i] * keep + e * from_bf16(v[i]);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        part[warp][lane * EACH + i] = o[i];
    if (lane == 0) {
        top[warp] = most;
        sum[warp] = all;
    }
    __syncthreads();
    const int d = threadIdx.x;
    if (d >= HEAD_DIM)
        return;
    float best = -INFINITY, total = 0.0f, out = 0.0f;
    for (int w = 0; w < WARPS; w++)
        best = fmaxf(best, top[w]);
    for (int w = 0; w < WARPS; w++) {
        float e = exp2f(top[w] - best); /* a warp without a position has -infinity: 0 */
        total += sum[w] * e;
        out += part[w][d] * e;
    }
    a.a[((long long)t * HEADS + head) * HEAD_DIM + d] = out / total;
}
