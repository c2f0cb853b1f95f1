/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_backend.h - struct backend of CUDA: everything that the files of engine/cuda/ share.
 *
 *   device.c   opening, what the device is, eager kernels out of the embedded images
 *   memory.c   the plan of device memory, and one allocation for each part of it
 *   weights.c  the model's tensors to the device; bricks.c those in formats that are kept
 *   blas.c     matrix products of the eager regions; lt.c other algorithms for them (products.h)
 *   eager.c    a region as primitive kernels and products; bricks_run.c products of bricks
 *   loaded.c   a region as a loaded cubin; pack.c its repacked weights; wide.c the same in wide
 *              steps
 *   tensor_map.c  by which those read activations
 *   prefill.c  attention of prompts
 *   walk.c     a whole step on a stream; graph.c the same captured, one graph for a bucket
 *   transfer.c a step's block in, its tokens out
 *   step.c     what the engine calls
 *   ranks.c    one of several ranks; collective_nccl.c, _peer.c, _host.c how they sum
 *   reduce.c   kernels that sum: in steps, on trial, timed; peer_area.c where they meet
 *   sample.c   parameters to the device's sampler, tokens back
 *   hook.c, hook_capture.c, inputs.c, bench_job.c  hooks, captured inputs, benches
 *   model_check.c the whole model with a candidate
 *   probe*.c   first runs of a kernel, in a process of its own
 *
 * Threads: the engine thread runs steps, hooks and benches; the specializer thread loads and
 * unloads; the builder thread (graph.c) captures graphs. What two of them touch says so.
 */
#ifndef WHET_ENGINE_CUDA_CUDA_BACKEND_H
#define WHET_ENGINE_CUDA_CUDA_BACKEND_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/reduce.h"
#include "engine/cuda/step.h"
#include "kernels/eager.h"

struct blas; /* blas.c */

struct backend {
    const struct model *model;
    struct backend_options options;
    struct plan *plan;
    struct machine machine;
    struct dispatch *dispatch;
    const struct formats *formats; /* of its slots; NULL: the layers are alike */
    struct kernel eager[REGION_NODES];
    struct cudaDeviceProp device;
    int32_t positions; /* rows of the rope tables */

    cudaStream_t stream; /* steps */
    cudaStream_t loader; /* specializer thread: kernels on their way in, preparing benches */
    struct inflight inflight[2];
    int parity; /* which of them the next step takes */
    int told;   /* transfer.c */
    int32_t *parity_device, (*parity_host)[4];
    int64_t landed_ns; /* when the last step ended */
    cudaLibrary_t library[EAGER_FILES];
    int libraries;
    cudaKernel_t primitive[PRIM_COUNT];
    int32_t prefill_clusters; /* of eager_wgmma_128_2 that run at once; 0: there is none */
    void *tensor_map;         /* the driver's encoder (tensor_map.h); NULL: it has none */

    struct arena weights, kv, buffers, packs;
    struct arena *lent, *lent_pinned; /* a probe's: its memory comes from here; else NULL */
    int64_t table_least;              /* a probe: least entries of the spare page table */
    struct device_model on;
    int64_t kv_layer; /* bytes of k (or v) of a layer */

    struct step_block narrow, wide;
    float *x[2], *q, *a, *h;     /* narrow (and x also wide): float */
    void *q16, *a16, *h16, *n16; /* bf16; n16: normed rows */
    void *raw;                   /* projections before rope or silu: float or bf16 */
    float *logits;
    /* Of a rank of several, else NULL: its columns of the logits, those of all ranks; what out
     * regions add there instead of a residual, and where they leave what reduce sums. */
    float *own_logits;      /* [max_rows, head rows] */
    float *gathered;        /* [world][max_rows, head rows] */
    float *zeros, *partial; /* [max_tokens, hidden] */
    int32_t *best;          /* [max_rows] what each row of the last step drew; read by the next */
    int32_t *seen;          /* [max_tokens] the step's tokens, as embed found them */
    uint64_t *best_part;
    unsigned *counter; /* zero between kernels */
    char *work;
    void *expanded; /* bf16 rows of a matrix that is kept in another format */
    int64_t work_bytes;

    struct eager_sample *sample;
    struct eager_adjust *adjust;
    int32_t adjusts; /* capacity */
    float *weight;

    struct blas *blas;
    struct cell cell[NARROW_BUCKETS][CONTEXT_BUCKETS], wide_cell[WIDE_CELLS];
    struct cell decode_cell[DECODE_WIDTHS][CONTEXT_BUCKETS]; /* wide, a token of each sequence */
    struct builder builder;
    _Atomic uint64_t steps; /* begun; the engine thread counts, the builder reads */

    uint64_t loads;            /* specializer thread */
    pthread_mutex_t load_lock; /* packs_list, retired: specializer and engine thread */
    struct pack *packs_list;
    struct loaded *retired;

    _Atomic(struct hook *) hook;
    _Atomic bool hook_held; /* the engine thread may hold a hook */
    int64_t matches;
    int32_t hook_layer;
    struct spare spare;
    struct reduce_trials trials;
};

#endif
