/* SPDX-License-Identifier: Apache-2.0 */
/* hook.h - the capture hook and its memory: a kernel run beside the one that serves, in a live step
 * or in a bench.
 *
 * Engine thread, unless a function says otherwise. A kernel under test gets memory of its own
 * (struct spare) instead of the step's outputs, so nothing that is served depends on it.
 */
#ifndef WHET_ENGINE_CUDA_HOOK_H
#define WHET_ENGINE_CUDA_HOOK_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/memory.h"

struct kernel_choice; /* graph.h */
struct walk;          /* walk.h */

enum { SPARE_KV_BYTES = 64 << 20 };

/* What a compared or benched kernel gets instead of a step's outputs and inputs. W: tokens of the
 * widest step, but no fewer than NARROW. */
struct spare {
    float *y;            /* [NARROW, max(vocab, ffn, q)], [W, hidden] or [D, q]: any float output,
                          * D: DECODE_MOST or W, if that is less */
    void *raw;           /* bf16 [W, max(qkv, 2 ffn)]: a wide product that is compared */
    int32_t *best;       /* [NARROW] */
    int32_t *own_at;     /* [W]: 0, 1, 2, ...: token i at position i of own_k, own_v */
    void *own_k, *own_v; /* pages of W tokens */
    unsigned *result, *result_host; /* of eager_compare, one for each output */
    cudaEvent_t event[4];           /* served from, to; compared from, to */
    bool pending;                   /* a comparison is under way on the stream */
    int32_t gathered;               /* pages of a capture that wait in k and v */
    int32_t layer;                  /* to observe in this step */
    /* a bench's inputs */
    struct step_block block; /* of W tokens */
    float *x, *in;           /* [W, hidden], [NARROW, max(q, ffn)] or [D, q] */
    void *k, *v;             /* SPARE_KV_BYTES each */
};

int hook_open(struct backend *b, struct err *e);
void hook_close(struct backend *b);
/* Engine thread. Whether the hook observes this step: then it is launched uncaptured with w->live
 * set, and hook_done follows when the stream is idle again (`failed`: the step was not run to its
 * end).
 */
bool hook_wants(struct backend *b, const struct kernel_choice *c);
int hook_before(struct walk *w, enum region r, int32_t layer, struct err *e);
int hook_after(struct walk *w, enum region r, int32_t layer, struct err *e);
/* Runs k beside the region that w just ran, on spare outputs, and compares them when the step has
 * ended; spare.event 0 and 1 are around that run. */
int hook_compare(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                 struct err *e);
void hook_done(struct backend *b, bool failed);
/* hook_capture.c: the inputs of region r into *c, of which capture_free() frees also what failed;
 * then hook_fetch(), once the hook is removed, brings the KV pages that attention reads. */
int hook_capture(struct walk *w, struct capture *c, enum region r, int32_t layer, struct err *e);
int hook_fetch(struct backend *b, struct capture *c, struct err *e);
/* A walk whose outputs are spare ones; spare_redirect() poisons region r's. */
void spare_aim(struct walk *w, enum region r);
int spare_redirect(struct walk *w, enum region r, struct err *e);

/* inputs.c: a captured step in a spare block and pages; engine thread. Of a wide step a
 * capture has NARROW rows, which are repeated until there are as many as the step had; of one of
 * decodes, for attention, all. */
int32_t inputs_width(const struct backend *b, const struct capture *c); /* padded */
/* bf16 inputs of a wide attn_out or mlp_out, where eager wants them; on the walk's stream. */
int inputs_widen(struct walk *w, const struct capture *c, struct err *e);
int inputs_send(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e);
/* For a bench of attention of hundreds of sequences, of whose pages a capture has too few to keep
 * them out of the cache: from now on the block's page table names those of the live cache, which
 * are read and not written, in turn. */
int inputs_spread(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e);
/* Points a walk over the spare block at them; `copy` picks a copy of the pages. */
void inputs_aim(struct walk *w, const struct capture *c, int32_t copy);
/* Runs `k` once on them; outputs as malloc'ed rows of floats (attn_in: q, k, v; others one). q and
 * k come in the device's order of RoPE pairs. */
int inputs_run(struct backend *b, const struct kernel *k, const struct capture *c, float *out[3],
               struct err *e);

#endif
