/* SPDX-License-Identifier: Apache-2.0 */
/* mma_text.h - texts for tensor cores: attn_out and mlp_out of 4 to 8 tokens, where a block has 16
 * rows, each warp every eighth chunk of 32 columns, and the sums meet in shared memory; and those
 * that a language model wrote (tests/golden/agentic). Compiled by tests/kernels/test_cuda_agent.c,
 * run by tests/device/test_agent_device.c. */
#ifndef WHET_TESTS_MMA_TEXT_H
#define WHET_TESTS_MMA_TEXT_H

#include "tests/golden_text.h"

/* Which regions and buckets it is for. */
static const struct golden_row {
    const char *name;
    enum region region;
    int m;
} golden_rows[] = {
    {"out_mma.cu", REGION_ATTN_OUT, 8},
    {"out_mma.cu", REGION_MLP_OUT, 32},
    {"mlp_in_mma.cu", REGION_MLP_IN, 8},
    {"mlp_in_mma.cu", REGION_MLP_IN, 32},
};
enum { GOLDEN_ROWS = sizeof golden_rows / sizeof *golden_rows };

static const char mma_text[] =
    "#define THREADS 256\n"
    "#define WARPS (THREADS / 32)\n"
    "#define GRID (ROWS_ALL / 16)\n"
    "__device__ __forceinline__ void kernel(const struct region_args &a)\n"
    "{\n"
    "    __shared__ float sums[WARPS][16][9];\n"
    "    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;\n"
    "    const int row0 = blockIdx.x * 16, m = a.counts->m, token = g < M_MAX ? g : 0;\n"
    "    const bf16 *top = (const bf16 *)a.w + (long long)(row0 + g) * K + 8 * q;\n"
    "    const bf16 *low = top + 8LL * K;\n"
    "    const float *x = a.in + (long long)token * K + 8 * q;\n"
    "    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};\n"
    "    after_previous();\n"
    "#pragma unroll 4\n"
    "    for (int k = warp * 32; k < K; k += 32 * WARPS) {\n"
    "        uint4 t = load_weight<0>((const uint4 *)(top + k));\n"
    "        uint4 l = load_weight<0>((const uint4 *)(low + k));\n"
    "        float4 v0 = load_x4(x + k), v1 = load_x4(x + k + 4);\n"
    "        mma_bf16(c, make_uint4(t.x, l.x, t.y, l.y), pack_bf16(v0.x, v0.y),\n"
    "                 pack_bf16(v0.z, v0.w));\n"
    "        mma_bf16(c, make_uint4(t.z, l.z, t.w, l.w), pack_bf16(v1.x, v1.y),\n"
    "                 pack_bf16(v1.z, v1.w));\n"
    "    }\n"
    "    sums[warp][g][2 * q] = c[0];\n"
    "    sums[warp][g][2 * q + 1] = c[1];\n"
    "    sums[warp][g + 8][2 * q] = c[2];\n"
    "    sums[warp][g + 8][2 * q + 1] = c[3];\n"
    "    __syncthreads();\n"
    "    const int r = threadIdx.x / 8, n = threadIdx.x % 8;\n"
    "    if (r < 16 && n < m) {\n"
    "        float sum = 0.0f;\n"
    "        for (int i = 0; i < WARPS; i++)\n"
    "            sum += sums[i][r][n];\n"
    "        const long long at = (long long)n * HIDDEN + row0 + r;\n"
    "        a.y[at] = sum + a.x[at];\n"
    "    }\n"
    "}\n";

#endif
