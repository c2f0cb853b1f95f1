/* SPDX-License-Identifier: Apache-2.0 */
/* inputs.c - inputs for a bench before there was any traffic.
 *
 * What matters for time is shape, not values: the slot's full m, its full context, every sequence
 * as long as the context bucket says, normal numbers. Up to a memory bound: beyond it, positions
 * share pages.
 */
#include "specializer/admission/inputs.h"

#include <stdlib.h>

#include "config/err.h"
#include "engine/capture.h"
#include "engine/cpu/case_random.h"
#include "engine/cpu/kv.h"

enum { PAGES_MAX = 8192 };
static const int64_t pages_bytes_max = 64 << 20; /* of keys as floats */

static float *normals(struct random *r, int64_t n)
{
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = random_normal(r);
    return v;
}

/* The same as keys or values. */
static void *normal_elements(struct random *r, const struct model_shape *s, int64_t n)
{
    float *v = normals(r, n);
    if (!s->kv_bf16)
        return v;
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    kv_write(true, v, n, half, 0);
    free(v);
    return half;
}

static int64_t page_floats(const struct model_shape *s)
{
    return (int64_t)s->kv_heads * KV_PAGE * s->head_dim;
}

/* Pages that there is memory for, and one more than those that the step writes: also one long
 * sequence may have more positions than that. */
static int32_t pages_most(const struct capture *c, const struct model_shape *s)
{
    int64_t most = pages_bytes_max / (page_floats(s) * (int64_t)sizeof(float));
    int32_t written = c->spans + c->m / KV_PAGE + 1;
    most = most < PAGES_MAX ? most : PAGES_MAX;
    return most > written ? (int32_t)most : written + 1;
}

/* Steps of up to decodes_most tokens are decode steps, a token a sequence; wider ones a chunk of
 * one prompt. */
static void seed_attention(struct capture *c, const struct model_shape *s, int32_t context,
                           int32_t decodes_most, struct random *r)
{
    context = context < s->max_context ? context : s->max_context;
    c->spans = c->m <= decodes_most ? c->m : 1;
    c->context = context > c->m / c->spans ? context : c->m / c->spans;
    int32_t each = (c->context + KV_PAGE - 1) / KV_PAGE, most = pages_most(c, s);
    c->pages = each * c->spans;
    c->span = xcalloc((size_t)c->spans, sizeof *c->span);
    c->page_table = xmalloc((size_t)c->pages * sizeof *c->page_table);
    for (int32_t i = 0; i < c->spans; i++)
        c->span[i] = (struct span){i * (c->m / c->spans), c->m / c->spans, c->context, i * each};
    for (int32_t p = 0; p < c->pages; p++)
        c->page_table[p] = p;
    if (c->pages > most)
        free(capture_fold(c, most));
    c->k_pages = normal_elements(r, s, c->pages * page_floats(s));
    c->v_pages = normal_elements(r, s, c->pages * page_floats(s));
}

/* Token i goes to position i of pages of its own. */
static void seed_positions(struct capture *c)
{
    c->spans = 1;
    c->context = c->m;
    c->pages = (c->m + KV_PAGE - 1) / KV_PAGE;
    c->position = xmalloc((size_t)c->m * sizeof *c->position);
    c->kv_at = xmalloc((size_t)c->m * sizeof *c->kv_at);
    for (int32_t i = 0; i < c->m; i++)
        c->position[i] = c->kv_at[i] = i;
}

struct capture *capture_seeded(const struct model *model, const struct slot *slot,
                               int32_t decodes_most, uint64_t seed)
{
    const struct model_shape *s = &model->shape;
    struct capture *c = xcalloc(1, sizeof *c);
    struct random r = {seed};
    int64_t width = (int64_t)s->heads * s->head_dim;
    c->region = slot->region;
    c->layer = slot_layer(slot);
    c->m = slot->m < s->max_context ? slot->m : s->max_context;
    if (c->region != REGION_ATTN && c->region != REGION_EMBED)
        c->x = normals(&r, (int64_t)c->m * s->hidden);
    if (c->region == REGION_ATTN || c->region == REGION_ATTN_OUT)
        c->in = normals(&r, c->m * width);
    if (c->region == REGION_REDUCE)
        c->in = normals(&r, (int64_t)c->m * s->hidden);
    if (c->region == REGION_MLP_OUT)
        c->in = normals(&r, (int64_t)c->m * s->ffn);
    if (c->region == REGION_ATTN_IN)
        seed_positions(c);
    if (c->region == REGION_ATTN)
        seed_attention(c, s, slot->context, decodes_most, &r);
    return c;
}
