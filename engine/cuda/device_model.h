/* SPDX-License-Identifier: Apache-2.0 */
/* device_model.h - the model's tensors on the device.
 *
 * Matrices are converted to bf16 once, when the backend opens; q, k and v are joined, gate and up
 * interleaved. Constant afterwards, so every thread may read them.
 */
#ifndef WHET_ENGINE_CUDA_DEVICE_MODEL_H
#define WHET_ENGINE_CUDA_DEVICE_MODEL_H

#include "engine/backend.h"

struct device_layer {
    float *attn_norm, *mlp_norm;
    float *bias;            /* [(heads + 2 kv_heads) head_dim] or NULL */
    float *q_norm, *k_norm; /* or NULL */
    void *wqkv, *wo, *wgu, *wdown;
};

struct device_model {
    void *embed, *head; /* bf16; the same when tied */
    float *final_norm, *rope_cos, *rope_sin;
    struct device_layer *layer;
};

int64_t weights_bytes(const struct model *m);
int weights_upload(struct backend *b, struct err *e);
/* The same in two halves: places and vectors, which are small copies; then the matrices. */
struct upload;
struct upload *weights_begin(struct backend *b, struct err *e);
int weights_finish(struct upload *u, struct err *e);
void weights_drop(struct upload *u); /* instead of the second half */

#endif
