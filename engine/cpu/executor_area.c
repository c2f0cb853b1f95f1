/* SPDX-License-Identifier: Apache-2.0 */
/* executor_area.c - the memory that a server and an executor share.
 *
 * The mapping is sparse: it has room for the widest step, and pages come when they are touched. */
#include "engine/cpu/executor_private.h"

enum { PAGE_ALIGN = 65536 }; /* the largest page size of any Linux we run on */

static int64_t take(int64_t *at, int64_t bytes)
{
    int64_t start = *at;
    *at += (bytes + 63) / 64 * 64;
    return start;
}

static int64_t whole_pages(int64_t at)
{
    return (at + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
}

/* Columns of a region's plain output. */
static int64_t out_cols(const struct model_shape *s, enum region r)
{
    switch (r) {
    case REGION_ATTN_IN:
    case REGION_ATTN:
        return (int64_t)s->heads * s->head_dim;
    case REGION_MLP_IN:
        return s->ffn;
    case REGION_HEAD:
        return s->vocab;
    default:
        return s->hidden;
    }
}

static int64_t in_cols(const struct model_shape *s, enum region r)
{
    if (r == REGION_ATTN || r == REGION_ATTN_OUT)
        return (int64_t)s->heads * s->head_dim;
    return r == REGION_MLP_OUT ? s->ffn : 0;
}

struct area area_of(const struct model_shape *s, enum region r, int32_t max_tokens,
                    int32_t positions)
{
    struct area a;
    const int64_t f = sizeof(float), m = max_tokens, half = s->head_dim / 2;
    int64_t at = whole_pages(sizeof(struct executor_control));
    int64_t kv_rows = r == REGION_ATTN_IN ? (m + KV_PAGE - 1) / KV_PAGE * KV_PAGE : 0;
    int64_t kv_bytes = kv_rows * s->kv_heads * s->head_dim * kv_element_bytes(s);
    a.out = take(&at, m * out_cols(s, r) * f);
    a.k = take(&at, kv_bytes);
    a.v = take(&at, kv_bytes);
    a.inputs = at = whole_pages(at);
    a.x = take(&at, r == REGION_ATTN ? 0 : m * s->hidden * f);
    a.in = take(&at, m * in_cols(s, r) * f);
    a.cosine = take(&at, r == REGION_ATTN_IN ? m * half * f : 0);
    a.sine = take(&at, r == REGION_ATTN_IN ? m * half * f : 0);
    a.span = take(&at, r == REGION_ATTN ? m * (int64_t)sizeof(struct span) : 0);
    /* A span has one token at least, and as many pages as a sequence may have at most. */
    a.table_numbers = r == REGION_ATTN ? m * ((int64_t)positions / KV_PAGE + 1) : 0;
    a.table = take(&at, a.table_numbers * (int64_t)sizeof(int32_t));
    a.bytes = whole_pages(at + 1);
    return a;
}
