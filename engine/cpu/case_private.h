/* SPDX-License-Identifier: Apache-2.0 */
/* case_private.h - what a case is made of: shared by case.c, which builds it, and case_result.c,
 * which reads what a kernel left in it. */
#ifndef WHET_ENGINE_CPU_CASE_PRIVATE_H
#define WHET_ENGINE_CPU_CASE_PRIVATE_H

#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/guarded.h"

/* Inputs, a buffer each. */
enum buffer {
    BUF_X,
    BUF_IN,
    BUF_IDS, /* tokens (embed) or rows of x (head) */
    BUF_POSITION,
    BUF_KV_AT,
    BUF_SPAN,
    BUF_PAGE_TABLE,
    BUF_K,
    BUF_V,
    BUF_COS,
    BUF_SIN,
    BUF_NORM,
    BUF_Q_NORM,
    BUF_K_NORM,
    BUF_BIAS, /* three */
    BUF_WEIGHT = BUF_BIAS + 3,
    BUF_INPUTS = BUF_WEIGHT + 3
};

struct kernel_case {
    const struct model *model;
    struct case_shape shape;
    union region_args args;
    bool guard;
    int32_t m, pages; /* pages: of the pool, some of nobody */
    struct guarded in[BUF_INPUTS];
    struct guarded out[3];         /* y; attn_in: q, k pages, v pages */
    struct guarded work;           /* mlp: h */
    uint64_t checksum[BUF_INPUTS]; /* when not guarded: what they held when they were sealed */
};

/* Elements of a token's k (or v), and of all pages of it. */
static inline int64_t case_kv_row(const struct kernel_case *c)
{
    return (int64_t)c->model->shape.kv_heads * c->model->shape.head_dim;
}

static inline int64_t case_kv_elements(const struct kernel_case *c)
{
    return (int64_t)c->pages * KV_PAGE * case_kv_row(c);
}

static inline int64_t case_kv_bytes(const struct kernel_case *c)
{
    return case_kv_elements(c) * kv_element_bytes(&c->model->shape);
}

#endif
