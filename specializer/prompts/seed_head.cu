/* head, plainly: a warp takes rows of W in turn, each for every row of the step; the best token of a
 * row is found block by block, and the last block to end finds the best of all. */
#define THREADS 256
#define WARPS (THREADS / 32)
#define GRID (SMS * 8)
#define WORK_BYTES ((long long)M_MAX * GRID * 8)
#define COUNTERS 1

__device__ __forceinline__ void kernel(const struct region_args &a)
{
    __shared__ unsigned long long best[WARPS][M_MAX];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = a.counts->rows;
    for (int t = lane; t < M_MAX; t += 32)
        best[warp][t] = 0;
    __syncwarp();
    after_previous();
    for (int row = blockIdx.x * WARPS + warp; row < VOCAB; row += GRID * WARPS) {
        const uint4 *w = (const uint4 *)a.w + (long long)row * (HIDDEN / 8);
        for (int t = 0; t < rows; t++) {
            const float *x = a.x + (long long)a.row[t] * HIDDEN;
            float sum = 0.0f, squares = 0.0f;
            for (int i = lane; i < HIDDEN / 8; i += 32) {
                float f[8];
                expand8(w[i], f);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    float v = x[8 * i + k];
                    squares += v * v;
                    sum += f[k] * (v * a.norm[8 * i + k]);
                }
            }
            sum = warp_sum(sum) * rsqrtf(warp_sum(squares) / HIDDEN + a.eps);
            if (lane == 0) {
                a.logits[(long long)t * VOCAB + row] = sum;
                unsigned long long rank = rank_of(sum, row);
                best[warp][t] = rank > best[warp][t] ? rank : best[warp][t];
            }
        }
    }
    best_of_all<WARPS, M_MAX, M_MAX>(best, rows, (unsigned long long *)a.work.work,
                                     a.work.counter, a.best);
}
