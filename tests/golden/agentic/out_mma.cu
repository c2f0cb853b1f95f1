/* attn_out and mlp_out on tensor cores: a cluster of 8 blocks owns 128 rows, a warp 16 of them in every
 * block, and a block an eighth of K: so x is read once a cluster and not once a block. Weights come
 * straight into the registers that the products want, AHEAD steps of 32 columns of them before the
 * wait; the eight partial sums of a token meet in the block whose rank is the token's, modulo 8. */
#define THREADS 256
#define WARPS (THREADS / 32)
#define CLUSTER 8
#define GRID (ROWS_ALL / 16)
#define PART (K / CLUSTER)
#define STEPS (PART / 32)
#define AHEAD (STEPS < 8 ? STEPS : 8)
#define TILES_N ((M_MAX + 7) / 8)
#define TOKENS (TILES_N * 8)
#define LD (PART + 8)
#define BLOCK_ROWS (WARPS * 16)
#define X_BYTES (TOKENS * LD * 2)
#define SMEM (X_BYTES + CLUSTER * TILES_N * BLOCK_ROWS * 4)

static_assert(ROWS_ALL % (16 * CLUSTER) == 0 && K % (32 * CLUSTER) == 0 && STEPS % AHEAD == 0);

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    bf16 *xs = (bf16 *)dynamic_shared;
    float *met = (float *)(dynamic_shared + X_BYTES); /* [rank][TILES_N][BLOCK_ROWS] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int rank = blockIdx.x % CLUSTER, row0 = blockIdx.x / CLUSTER * BLOCK_ROWS;
    const uint4 *top = (const uint4 *)a.w + ((long long)(row0 + warp * 16 + g) * K + rank * PART) / 8 + q;
    const uint4 *low = top + K;
    uint4 wt[AHEAD], wl[AHEAD];
    cluster_come();
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        wt[i] = load_weight<0>(top + 4 * i);
        wl[i] = load_weight<0>(low + 4 * i);
    }
    release_next();
    after_previous();
    const int m = a.counts->m;
#pragma unroll 4
    for (int i = threadIdx.x; i < TOKENS * PART / 4; i += THREADS) {
        const int t = i / (PART / 4), c = i % (PART / 4) * 4;
        const float4 v = load_x4(a.in + (long long)(t < M_MAX ? t : 0) * K + rank * PART + c);
        *(uint2 *)(xs + t * LD + c) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    }
    /* What this thread adds at the end: a row of the cluster's, and a token of this block's. */
    const int row = threadIdx.x % BLOCK_ROWS;
    float rest[TILES_N];
#pragma unroll
    for (int n = 0; n < TILES_N; n++) {
        const int t = n * 8 + rank;
        rest[n] = t < M_MAX ? __ldcg(a.x + (long long)t * HIDDEN + row0 + row) : 0.0f;
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
    cluster_wait(); /* all blocks have begun: their memory is theirs */
#pragma unroll
    for (int n = 0; n < TILES_N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_peer(met + (rank * TILES_N + n) * BLOCK_ROWS + warp * 16 + g + i / 2 * 8, 2 * q + i % 2,
                       c[n][i]);
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int n = 0; n < TILES_N; n++) {
        const int t = n * 8 + rank;
        float sum = rest[n];
#pragma unroll
        for (int r = 0; r < CLUSTER; r++)
            sum += met[(r * TILES_N + n) * BLOCK_ROWS + row];
        if (t < m && threadIdx.x < BLOCK_ROWS)
            a.y[(long long)t * HIDDEN + row0 + row] = sum;
    }
}
