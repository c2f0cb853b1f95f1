/* attn_in, plainly: a block owns a head of q, k or v, or a quarter of one where heads are not normed;
 * a warp goes through its rows, and the block turns and stores what they gave. */
#define PARTS (HAS_QK_NORM ? 1 : 4)
#define ROWS (HEAD_DIM / PARTS)
#define THREADS 256
#define WARPS (THREADS / 32)
#define GRID ((HEADS + 2 * KV_HEADS) * PARTS)

/* Row `row` of W times rmsnorm(x) * norm, in every lane. */
__device__ __forceinline__ float project(const struct region_args &a, int row, const float *x)
{
    const uint4 *w = (const uint4 *)a.w + (long long)row * (HIDDEN / 8);
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x % 32; i < HIDDEN / 8; i += 32) {
        float f[8];
        expand8(w[i], f);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float v = x[8 * i + k];
            squares += v * v;
            sum += f[k] * (v * a.norm[8 * i + k]);
        }
    }
    return warp_sum(sum) * rsqrtf(warp_sum(squares) / HIDDEN + a.eps);
}

/* Element d of head `head`, whose pair's other element is `other`, to where it belongs. */
__device__ __forceinline__ void store(const struct region_args &a, int head, int d, int t, float v,
                                      float other)
{
    if (head < HEADS + KV_HEADS) {
        long long at = (long long)a.position[t] * (HEAD_DIM / 2) + d / 2;
        float c = a.rope_cos[at], s = a.rope_sin[at];
        v = d % 2 ? v * c + other * s : v * c - other * s;
    }
    if (head < HEADS) {
        a.q[((long long)t * HEADS + head) * HEAD_DIM + d] = v;
        return;
    }
    bf16 *pages = (bf16 *)(head < HEADS + KV_HEADS ? a.k_pages : a.v_pages);
    long long page = a.kv_at[t] / KV_PAGE, offset = a.kv_at[t] % KV_PAGE;
    pages[((page * KV_HEADS + (head - HEADS) % KV_HEADS) * KV_PAGE + offset) * HEAD_DIM + d] =
        to_bf16(v);
}

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    __shared__ float raw[ROWS], spare[33];
    const int head = blockIdx.x / PARTS, d0 = blockIdx.x % PARTS * ROWS, m = a.counts->m;
    const int d = threadIdx.x, normed = HAS_QK_NORM && head < HEADS + KV_HEADS;
    const float *gain = head < HEADS ? a.q_norm : a.k_norm;
    after_previous();
    for (int t = 0; t < m; t++) {
        for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
            int row = head * HEAD_DIM + d0 + r;
            float v = project(a, row, a.x + (long long)t * HIDDEN);
            if (threadIdx.x % 32 == 0)
                raw[r] = HAS_BIAS ? v + a.bias[row] : v;
        }
        __syncthreads();
        float v = d < ROWS ? raw[d] : 0.0f, other = d < ROWS ? raw[d ^ 1] : 0.0f;
        if (normed) {
            float scale = rsqrtf(block_sum(v * v, spare) / HEAD_DIM + a.eps);
            v *= scale * (d < ROWS ? gain[d] : 0.0f);
            other *= scale * (d < ROWS ? gain[d ^ 1] : 0.0f);
        }
        if (d < ROWS)
            store(a, head, d0 + d, t, v, other);
        __syncthreads();
    }
}
