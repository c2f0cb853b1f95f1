/* SPDX-License-Identifier: Apache-2.0 */
/* tap.h - taps on live steps and benches: a kernel run beside the one that serves.
 *
 * Engine thread, unless a function says otherwise. A kernel under test gets memory of its own
 * (struct spare) instead of the step's outputs, so nothing that is served depends on it.
 */
#ifndef WHET_ENGINE_CUDA_TAP_H
#define WHET_ENGINE_CUDA_TAP_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/memory.h"

struct choice; /* graph.h */
struct walk;   /* walk.h */

enum { SPARE_KV_BYTES = 64 << 20 };

/* What a tapped or benched kernel gets instead of a step's outputs and inputs. W: tokens of the
 * widest step, but no fewer than NARROW. */
struct spare {
    float *y;            /* [NARROW, max(vocab, ffn, q)] or [W, hidden]: any float output */
    void *raw;           /* bf16 [W, max(qkv, 2 ffn)]: a wide product that is looked at */
    int32_t *best;       /* [NARROW] */
    int32_t *own_at;     /* [W]: 0, 1, 2, ...: token i at position i of own_k, own_v */
    void *own_k, *own_v; /* pages of W tokens */
    unsigned *result, *result_host; /* of eager_compare, one for each output */
    cudaEvent_t event[4];           /* served from, to; tapped from, to */
    bool pending;                   /* a comparison is under way on the stream */
    int32_t gathered;               /* pages of a capture that wait in k and v */
    int32_t layer;                  /* to look at in this step */
    /* a bench's inputs */
    struct step_block block; /* of W tokens */
    float *x, *in;           /* [W, hidden], [NARROW, max(q, ffn)] */
    void *k, *v;             /* SPARE_KV_BYTES each */
};

int tap_open(struct backend *b, struct err *e);
void tap_close(struct backend *b);
/* Engine thread. Whether a tap looks at this step: then it is launched uncaptured with w->look set,
 * and tap_done follows when the stream is idle again (`failed`: the step was not run to its end).
 */
bool tap_wants(struct backend *b, const struct choice *c);
int tap_before(struct walk *w, enum region r, int32_t layer, struct err *e);
int tap_after(struct walk *w, enum region r, int32_t layer, struct err *e);
void tap_done(struct backend *b, bool failed);
/* A walk whose outputs are spare ones; spare_redirect() poisons region r's. */
void spare_aim(struct walk *w, enum region r);
int spare_redirect(struct walk *w, enum region r, struct err *e);

/* inputs.c: a captured step in a spare block and pages; engine thread. Of a wide step a
 * capture has NARROW rows, which are repeated until there are as many as the step had. */
int32_t inputs_width(const struct backend *b, const struct capture *c); /* padded */
/* bf16 inputs of a wide attn_out or mlp_out, where eager wants them; on the walk's stream. */
int inputs_widen(struct walk *w, const struct capture *c, struct err *e);
int inputs_send(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e);
/* Points a walk over the spare block at them; `turn` picks a copy of the pages. */
void inputs_aim(struct walk *w, const struct capture *c, int32_t turn);
/* Runs `k` once on them; outputs as malloc'ed rows of floats (attn_in: q, k, v; others one). q and
 * k come in the device's order of RoPE pairs. */
int inputs_run(struct backend *b, const struct kernel *k, const struct capture *c, float *out[3],
               struct err *e);

#endif
