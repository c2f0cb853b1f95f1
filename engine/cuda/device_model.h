/* SPDX-License-Identifier: Apache-2.0 */
/* device_model.h - the model's tensors on the device.
 *
 * Matrices are brought into the device's order once, when the backend opens: in the format of the
 * file where that is kept (kernels/bricks.h), else as rows of bf16; q, k and v are joined, gate and
 * up interleaved. Constant afterwards, so every thread may read them.
 */
#ifndef WHET_ENGINE_CUDA_DEVICE_MODEL_H
#define WHET_ENGINE_CUDA_DEVICE_MODEL_H

#include "engine/backend.h"

/* A matrix, in bricks of its format or as rows of bf16. */
struct device_weight {
    void *data;
    enum dtype type;
    void *copy; /* and as rows of bf16 beside its bricks (device_copied() in engine/plan.h), or NULL
                 */
};

struct device_layer {
    float *attn_norm, *mlp_norm;
    float *bias;            /* [(heads + 2 kv_heads) head_dim] or NULL */
    float *q_norm, *k_norm; /* or NULL */
    struct device_weight wqkv, wo, wgu, wdown;
};

struct device_model {
    struct device_weight embed, head; /* the same when tied */
    float *final_norm, *rope_cos, *rope_sin;
    struct device_layer *layer;
};

int64_t weights_bytes(const struct model *m);
/* Of the largest matrix that is kept in its own format alone, as bf16; 0: there is none. */
int64_t weights_expanded(const struct model *m);
int weights_upload(struct backend *b, struct err *e);
/* The same in two halves: places and vectors, which are small copies; then the matrices. */
struct upload;
struct upload *weights_begin(struct backend *b, struct err *e);
int weights_finish(struct upload *u, struct err *e);
void weights_drop(struct upload *u); /* instead of the second half */

#endif
