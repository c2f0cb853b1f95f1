/* SPDX-License-Identifier: Apache-2.0 */
/* solo_wide.c - kernels for wide steps: activations in bf16, by tensor map. Memory is exactly as
 * large as a step of the bucket has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/tensor_map.h"
#include "engine/quant.h"
#include "tests/device/solo_args.h"

static bool no(char *why, const char *what)
{
    snprintf(why, WHY_SIZE, "%s", what);
    return false;
}

#define TRY(call)                                      \
    do {                                               \
        cudaError_t code_ = (call);                    \
        if (code_ != cudaSuccess)                      \
            return no(why, cudaGetErrorString(code_)); \
    } while (0)

/* The question's input rows as bf16, on the host and on the device. */
static bool round_input(const struct question *q, struct own *own, char *why)
{
    const struct device_copy *in = &q->at[AT_IN];
    const float *v = in->master;
    void *to;
    size_t n = in->bytes / 4;
    uint16_t *half = own->rounded = xmalloc(n * sizeof *half);
    for (size_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(v[i]);
    own->in_bytes = n * 2;
    TRY(cudaMalloc(&to, own->in_bytes));
    own->wide.in16 = to;
    TRY(cudaMemcpy(to, half, own->in_bytes, cudaMemcpyHostToDevice));
    return true;
}

bool solo_wide_open(const struct cuda_kernel_info *i, const struct question *q, struct own *own,
                    char *why)
{
    struct err e;
    const struct model_shape *s = &q->model->shape;
    bool in = q->region == REGION_ATTN_IN || q->region == REGION_MLP_IN;
    int32_t rows = in ? i->m_max : q->bucket, cols = s->hidden;
    if (!in && !round_input(q, own, why))
        return false;
    if (!in)
        cols = (int32_t)(own->in_bytes / 2 / (size_t)q->bucket);
    own->out_bytes = in ? q->at[AT_OUT_0].bytes / 2 : 0;
    if (in)
        TRY(cudaMalloc(&own->wide.out16, own->out_bytes));
    if (in)
        TRY(cudaMemset(own->wide.out16, 0xff, own->out_bytes));
    void *data = in ? own->work.work : (void *)(uintptr_t)own->wide.in16;
    if (i->work_cols)
        data = own->work.work, rows = i->m_max, cols = i->work_cols;
    return !tensor_map(tensor_map_encoder(), data, rows, cols, i->box_rows, own->wide.map, &e) ||
           no(why, e.msg);
}

bool solo_wide_take(const struct question *q, const struct own *own, char *why)
{
    size_t n = own->out_bytes / 2, live = n / (size_t)q->bucket * (size_t)q->m;
    uint16_t *half = xmalloc(own->out_bytes + 1);
    float *v = xmalloc(live * sizeof *v + 1);
    bool poison = true;
    cudaError_t code = cudaSuccess;
    if (n)
        code = cudaMemcpy(half, own->wide.out16, own->out_bytes, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n && !code; i++)
        if (i < live)
            v[i] = bf16_to_f32(half[i]);
        else
            poison &= half[i] == 0xffff;
    if (n && !code)
        code = cudaMemcpy(q->at[AT_OUT_0].data, v, live * sizeof *v, cudaMemcpyHostToDevice);
    free(half);
    free(v);
    TRY(code);
    return poison || no(why, "wrote rows that the step does not have");
}

bool solo_half_open(const struct question *q, struct own *own, char *why)
{
    TRY(cudaMalloc(&own->half, q->at[AT_OUT_0].bytes / 2));
    TRY(cudaMemset(own->half, 0xff, q->at[AT_OUT_0].bytes / 2));
    return true;
}

bool solo_half_agrees(const struct question *q, const struct own *own, char *why)
{
    size_t n = q->at[AT_OUT_0].bytes / 4, live = n / (size_t)q->bucket * (size_t)q->m;
    uint16_t *half = xmalloc(n * sizeof *half);
    float *v = xmalloc(n * sizeof *v);
    bool agrees = true;
    cudaError_t code = cudaMemcpy(half, own->half, n * 2, cudaMemcpyDeviceToHost);
    if (!code)
        code = cudaMemcpy(v, q->at[AT_OUT_0].data, n * 4, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < n && !code; i++)
        agrees &= half[i] == (i < live ? f32_to_bf16(v[i]) : 0xffff);
    free(half);
    free(v);
    TRY(code);
    return agrees || no(why, "left other numbers in bf16 than as floats");
}

void solo_wide_close(struct own *own)
{
    cudaFree(own->half);
    cudaFree((void *)(uintptr_t)own->wide.in16);
    cudaFree(own->wide.out16);
    free(own->rounded);
}
