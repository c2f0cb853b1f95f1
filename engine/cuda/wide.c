/* SPDX-License-Identifier: Apache-2.0 */
/* wide.c - loaded kernels that read bf16 by tensor map: all of wide steps, whose activations are
 * bf16, in the backend's own buffers or where a hook points the walk; and some of narrower ones. A
 * map is passed by value; encoding one takes well under a microsecond, so each launch gets a fresh
 * one.
 */
#include "engine/cuda/wide.h"

#include <cuda_runtime_api.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/tensor_map.h"
#include "engine/cuda/walk.h"

/* Columns, in pairs of bytes, of the rows that a kernel puts into its working memory and reads from
 * there by tensor map; 0: it reads those of the region before. */
static int32_t work_cols(const struct backend *b, const struct loaded *l, enum region r)
{
    if (l->info.work_cols)
        return l->info.work_cols;
    return r == REGION_ATTN_IN || r == REGION_MLP_IN ? b->model->shape.hidden : 0;
}

int wide_check(const struct backend *b, const struct loaded *l, enum region r, struct err *e)
{
    int32_t rows = l->info.box_rows;
    if (rows == 0)
        return 0;
    if (rows < 8 || rows > 256 || rows % 8)
        return err_set(e, "asks for boxes of %d rows", rows);
    if (r == REGION_ATTN || r == REGION_HEAD || r == REGION_EMBED)
        return err_set(e, "is for wide steps, in which %s has no candidates", region_name(r));
    int32_t cols = work_cols(b, l, r);
    if (l->info.m_max <= NARROW && cols > 0)
        return err_set(e, "reads rows of its own by tensor map, and takes %d tokens",
                       l->info.m_max);
    if (cols < 0 || l->info.work_cols % 64 || l->info.work_bytes < 2LL * l->info.m_max * cols)
        return err_set(e, "has %lld bytes to work in, too few for its input of %d columns",
                       (long long)l->info.work_bytes, cols);
    if (b->device.major < 9 || !b->tensor_map)
        return err_set(e, "reads by tensor map, which this device or driver does not have");
    return 0;
}

void *wide_left16(const struct walk *w, enum region r)
{
    if (w->out16)
        return w->out16;
    return r == REGION_ATTN_IN  ? w->b->q16
           : r == REGION_ATTN   ? w->b->a16
           : r == REGION_MLP_IN ? w->b->h16
                                : NULL;
}

bool wide_floats(const struct walk *w)
{
    return w->q && w->q == w->b->q;
}

int wide_begin(struct walk *w, const struct loaded *l, enum region r, void *work,
               struct cuda_wide *a, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    int32_t box = l->info.box_rows, own = work_cols(b, l, r);
    *a = (struct cuda_wide){.out16 = wide_left16(w, r),
                            .float_rows = w->lead          ? walk_padded(w->lead)
                                          : wide_floats(w) ? w->m
                                                           : NARROW};
    if (own && tensor_map(b->tensor_map, work, l->info.m_max, own, box, a->map, e))
        return -1;
    if (r == REGION_ATTN_IN || r == REGION_MLP_IN)
        return 0;
    bool attn = r == REGION_ATTN_OUT;
    int32_t cols = attn ? s->heads * s->head_dim : s->ffn;
    void *in16 = attn ? b->a16 : b->h16;
    a->in16 = in16;
    if (need16(w, attn ? REGION_ATTN : REGION_MLP_IN, attn ? w->a : w->h, in16, cols, e))
        return -1;
    return own ? 0 : tensor_map(b->tensor_map, in16, w->m, cols, box, a->map, e);
}

int wide_end(struct walk *w, enum region r, struct err *e)
{
    const struct model_shape *s = &w->b->model->shape;
    float *to = r == REGION_ATTN_IN ? w->q : r == REGION_MLP_IN ? w->h : NULL;
    int32_t n = r == REGION_ATTN_IN ? s->heads * s->head_dim : s->ffn;
    w->have16[r] = r == REGION_ATTN_IN || r == REGION_MLP_IN;
    if (!to || (r == REGION_ATTN_IN && wide_floats(w)))
        return 0;
    struct eager_widen_args a = {&w->block->counts->m, wide_left16(w, r), to, n};
    return launch(w, PRIM_WIDEN, (dim3){(unsigned)(n + 1023) / 1024, (unsigned)w->m, 1}, 256, 0, &a,
                  e);
}
