/* SPDX-License-Identifier: Apache-2.0 */
/* bind.c - the one place where model fields meet argument fields. */
#include "engine/cpu/bind.h"

#include <math.h>
#include <stdlib.h>

static void bind_attn_in(const struct model *model, const struct layer *l, struct attn_in_args *a)
{
    const struct model_shape *s = &model->shape;
    a->heads = s->heads;
    a->kv_heads = s->kv_heads;
    a->head_dim = s->head_dim;
    a->rope_interleaved = s->rope_interleaved;
    a->eps = s->eps;
    a->norm = l->attn_norm;
    a->wq = l->wq;
    a->wk = l->wk;
    a->wv = l->wv;
    a->bq = l->bq;
    a->bk = l->bk;
    a->bv = l->bv;
    a->q_norm = l->q_norm;
    a->k_norm = l->k_norm;
}

static void bind_attn(const struct model_shape *s, struct attn_args *a)
{
    a->heads = s->heads;
    a->kv_heads = s->kv_heads;
    a->head_dim = s->head_dim;
    a->scale = (float)(1 / sqrt((double)s->head_dim));
}

void bind_layer(const struct model *model, enum region r, int32_t layer, union region_args *a)
{
    const struct layer *l = &model->layer[layer];
    struct weight *w[3];
    switch (r) {
    case REGION_EMBED:
        a->embed.table = model->embed;
        break;
    case REGION_ATTN_IN:
        bind_attn_in(model, l, &a->attn_in);
        break;
    case REGION_ATTN:
        bind_attn(&model->shape, &a->attn);
        break;
    case REGION_ATTN_OUT:
        a->out.w = l->wo;
        break;
    case REGION_MLP_IN:
        a->mlp_in.eps = model->shape.eps;
        a->mlp_in.norm = l->mlp_norm;
        a->mlp_in.gate = l->gate;
        a->mlp_in.up = l->up;
        break;
    case REGION_MLP_OUT:
        a->out.w = l->down;
        break;
    case REGION_HEAD:
        a->head.eps = model->shape.eps;
        a->head.norm = model->final_norm;
        a->head.w = model->head;
        break;
    case REGION_MLP:
        a->mlp.eps = model->shape.eps;
        a->mlp.norm = l->mlp_norm;
        a->mlp.gate = l->gate;
        a->mlp.up = l->up;
        a->mlp.down = l->down;
        break;
    case REGION_REDUCE:
        a->reduce.n = model->shape.hidden;
        break;
    }
    for (int i = 0, n = bind_weights(a, r, w); i < n; i++)
        w[i]->packed = NULL;
}

static void aim_attn_in(const struct step_memory *s, const struct plan_node *n,
                        struct attn_in_args *a)
{
    a->x = s->x[region_info(n->region)->x];
    a->rope_cos = s->rope_cos;
    a->rope_sin = s->rope_sin;
    a->position = s->position;
    a->kv_at = s->kv_at;
    a->q = s->q;
    a->k_pages = s->k_pages + n->layer * s->layer_bytes;
    a->v_pages = s->v_pages + n->layer * s->layer_bytes;
}

static void aim_attn(const struct step_memory *s, const struct plan_node *n, struct attn_args *a)
{
    a->spans = s->spans;
    a->q = s->q;
    a->k_pages = s->k_pages + n->layer * s->layer_bytes;
    a->v_pages = s->v_pages + n->layer * s->layer_bytes;
    a->span = s->span;
    a->page_table = s->page_table;
    a->a = s->a;
}

void bind_node(const struct model *model, const struct step_memory *s, const struct plan_node *n,
               union region_args *a)
{
    float *x = s->x[region_info(n->region)->x], *y = s->x[region_info(n->region)->y];
    a->embed.m = region_m(n->region, s->m, s->rows); /* first in every struct */
    bind_layer(model, n->region, n->layer, a);
    switch (n->region) {
    case REGION_EMBED:
        a->embed.tokens = s->tokens;
        a->embed.x = y;
        break;
    case REGION_ATTN_IN:
        aim_attn_in(s, n, &a->attn_in);
        break;
    case REGION_ATTN:
        aim_attn(s, n, &a->attn);
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        a->out.in = n->region == REGION_ATTN_OUT ? s->a : s->h;
        a->out.x = s->zeros ? s->zeros : x;
        a->out.y = s->partial ? s->partial : y;
        break;
    case REGION_MLP_IN:
        a->mlp_in.x = x;
        a->mlp_in.h = s->h;
        break;
    case REGION_HEAD:
        a->head.row = s->row;
        a->head.x = x;
        a->head.logits = s->logits;
        break;
    case REGION_MLP:
        a->mlp.x = x;
        a->mlp.h = s->h;
        a->mlp.y = y;
        break;
    case REGION_REDUCE:
        a->reduce.x = s->partial;
        a->reduce.residual = s->x[region_info(n->of)->x];
        a->reduce.out = s->x[region_info(n->of)->y];
        a->reduce.area = s->area;
        break;
    }
}

void bind_part(enum region fused, int i, const union region_args *a, union region_args *part)
{
    const struct mlp_args *s = &a->mlp; /* the one fused region that there is */
    struct weight *w[3];
    if (i == 0)
        part->mlp_in = (struct mlp_in_args){.m = s->m,
                                            .eps = s->eps,
                                            .x = s->x,
                                            .norm = s->norm,
                                            .gate = s->gate,
                                            .up = s->up,
                                            .h = s->h};
    else
        part->out = (struct out_args){.m = s->m, .in = s->h, .x = s->x, .w = s->down, .y = s->y};
    for (int k = 0, n = bind_weights(part, region_info(fused)->part[i], w); k < n; k++)
        w[k]->packed = NULL;
}

int bind_weights(union region_args *a, enum region r, struct weight *out[3])
{
    switch (r) {
    case REGION_ATTN_IN:
        out[0] = &a->attn_in.wq;
        out[1] = &a->attn_in.wk;
        out[2] = &a->attn_in.wv;
        return 3;
    case REGION_MLP_IN:
        out[0] = &a->mlp_in.gate;
        out[1] = &a->mlp_in.up;
        return 2;
    case REGION_MLP:
        out[0] = &a->mlp.gate;
        out[1] = &a->mlp.up;
        out[2] = &a->mlp.down;
        return 3;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        out[0] = &a->out.w;
        return 1;
    case REGION_HEAD:
        out[0] = &a->head.w;
        return 1;
    default:
        return 0;
    }
}

int32_t bind_m(const union region_args *a, enum region r)
{
    (void)r; /* every struct begins with m */
    return a->embed.m;
}

void rope_tables(const struct model_shape *s, int32_t positions, float *cosine, float *sine)
{
    int32_t half = s->head_dim / 2;
    double *f = xmalloc((size_t)half * sizeof *f), length = model_rope_length(s);

    model_rope_frequencies(s, f);
    for (int32_t p = 0; p < positions; p++)
        for (int32_t i = 0; i < half; i++) {
            cosine[(int64_t)p * half + i] = (float)(length * cos(p * f[i]));
            sine[(int64_t)p * half + i] = (float)(length * sin(p * f[i]));
        }
    free(f);
}
