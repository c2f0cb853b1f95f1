/* SPDX-License-Identifier: Apache-2.0 */
/* solo_args.c - see solo_args.h. What kernels may bring into L2 for a later region is here their
 * own weights: something that can be read.
 */
#include "tests/device/solo_args.h"

#include <math.h>

static struct cuda_attn_in_args attn_in_args(const struct question *q, const struct own *own)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *at = q->at;
    return (struct cuda_attn_in_args){.counts = at[AT_COUNTS].data,
                                      .x = at[AT_X].data,
                                      .norm = at[AT_NORM].data,
                                      .w = at[AT_W].data,
                                      .packed = own->packed,
                                      .bias = at[AT_BIAS].data,
                                      .q_norm = at[AT_Q_NORM].data,
                                      .k_norm = at[AT_K_NORM].data,
                                      .rope_cos = at[AT_COS].data,
                                      .rope_sin = at[AT_SIN].data,
                                      .position = at[AT_POSITION].data,
                                      .kv_at = at[AT_KV_AT].data,
                                      .q = at[AT_OUT_0].data,
                                      .k_pages = at[AT_OUT_K].data,
                                      .v_pages = at[AT_OUT_V].data,
                                      .work = own->work,
                                      .hidden = s->hidden,
                                      .heads = s->heads,
                                      .kv_heads = s->kv_heads,
                                      .head_dim = s->head_dim,
                                      .eps = s->eps,
                                      .next = at[AT_W].data,
                                      .next_bytes = (int64_t)at[AT_W].bytes,
                                      .wide = own->wide};
}

static struct cuda_attn_args attn_args(const struct question *q, const struct own *own)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *at = q->at;
    return (struct cuda_attn_args){.counts = at[AT_COUNTS].data,
                                   .q = at[AT_IN].data,
                                   .k_pages = at[AT_K].data,
                                   .v_pages = at[AT_V].data,
                                   .position = at[AT_POSITION].data,
                                   .pages_at = at[AT_PAGES_AT].data,
                                   .page_table = at[AT_TABLE].data,
                                   .span = at[AT_SPAN].data,
                                   .a = at[AT_OUT_0].data,
                                   .a16 = own->half,
                                   .work = own->work,
                                   .next = at[AT_K].data,
                                   .next_bytes = (int64_t)at[AT_K].bytes,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim,
                                   .scale = (float)(1 / sqrt((double)s->head_dim))};
}

static struct cuda_out_args out_args(const struct question *q, const struct own *own)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *at = q->at;
    return (struct cuda_out_args){.counts = at[AT_COUNTS].data,
                                  .in = at[AT_IN].data,
                                  .x = at[AT_X].data,
                                  .w = at[AT_W].data,
                                  .packed = own->packed,
                                  .y = at[AT_OUT_0].data,
                                  .work = own->work,
                                  .n = s->hidden,
                                  .k = q->region == REGION_ATTN_OUT ? s->heads * s->head_dim
                                                                    : s->ffn,
                                  .next = at[AT_W].data,
                                  .next_bytes = (int64_t)at[AT_W].bytes,
                                  .wide = own->wide};
}

static struct cuda_mlp_in_args mlp_in_args(const struct question *q, const struct own *own)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *at = q->at;
    return (struct cuda_mlp_in_args){.counts = at[AT_COUNTS].data,
                                     .x = at[AT_X].data,
                                     .norm = at[AT_NORM].data,
                                     .w = at[AT_W].data,
                                     .packed = own->packed,
                                     .h = at[AT_OUT_0].data,
                                     .work = own->work,
                                     .hidden = s->hidden,
                                     .ffn = s->ffn,
                                     .eps = s->eps,
                                     .next = at[AT_W].data,
                                     .next_bytes = (int64_t)at[AT_W].bytes,
                                     .wide = own->wide};
}

static struct cuda_head_args head_args(const struct question *q, const struct own *own)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *at = q->at;
    return (struct cuda_head_args){.counts = at[AT_COUNTS].data,
                                   .row = at[AT_ROW].data,
                                   .x = at[AT_X].data,
                                   .norm = at[AT_NORM].data,
                                   .w = at[AT_W].data,
                                   .packed = own->packed,
                                   .logits = at[AT_OUT_0].data,
                                   .best = at[AT_BEST].data,
                                   .work = own->work,
                                   .hidden = s->hidden,
                                   .vocab = s->vocab,
                                   .eps = s->eps};
}

void solo_args(const struct question *q, const struct own *own, union any_args *a)
{
    switch (q->region) {
    case REGION_ATTN_IN:
        a->attn_in = attn_in_args(q, own);
        if (own->wide.out16)
            a->attn_in.q = NULL;
        break;
    case REGION_ATTN:
        a->attn = attn_args(q, own);
        break;
    case REGION_MLP_IN:
        a->mlp_in = mlp_in_args(q, own);
        if (own->half)
            a->mlp_in.wide.out16 = own->half;
        break;
    case REGION_HEAD:
        a->head = head_args(q, own);
        break;
    default:
        a->out = out_args(q, own);
        break;
    }
}
