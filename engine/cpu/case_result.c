/* SPDX-License-Identifier: Apache-2.0 */
/* case_result.c - what a kernel left in a case: its outputs as rows, and what it damaged.
 *
 * A value that was never written is still the poison that case_poison() put there (NaN bits), so an
 * output that reads as poison, and poison that is gone where nothing was to be written, are both
 * found without a second buffer. KV pages are looked at position by position: the step's own are
 * outputs, all others must be as they were.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/table.h"
#include "engine/cpu/case_private.h"
#include "engine/cpu/kv.h"

static const char *const buffer_name[] = {
    "x",       "in",      "ids",      "position", "kv_at",    "span",     "page_table",
    "k_pages", "v_pages", "rope_cos", "rope_sin", "norm",     "q_norm",   "k_norm",
    "bq",      "bk",      "bv",       "weight 0", "weight 1", "weight 2",
};
EVERY_ROW(buffer_name, BUF_INPUTS);

/* Rows of k or v in token order, out of the pages that attn_in wrote. */
static void gather_kv(const struct kernel_case *c, const void *pages, float *rows)
{
    const struct model_shape *s = &c->model->shape;
    const int32_t *kv_at = c->in[BUF_KV_AT].data;
    for (int32_t i = 0; i < c->m; i++) {
        int64_t page = kv_at[i] / KV_PAGE, offset = kv_at[i] % KV_PAGE;
        for (int32_t h = 0; h < s->kv_heads; h++)
            kv_read(s->kv_bf16, pages, ((page * s->kv_heads + h) * KV_PAGE + offset) * s->head_dim,
                    s->head_dim, rows + i * case_kv_row(c) + (int64_t)h * s->head_dim);
    }
}

bool case_output(const struct kernel_case *c, int i, int32_t *rows, int32_t *cols, float **value)
{
    if (i < 0 || i >= 3 || !c->out[i].map)
        return false;
    *rows = c->m;
    if (i > 0) {
        *cols = (int32_t)case_kv_row(c);
        *value = xmalloc((size_t)c->m * (size_t)case_kv_row(c) * sizeof **value);
        gather_kv(c, c->out[i].data, *value);
        return true;
    }
    *cols = (int32_t)(c->out[0].bytes / sizeof(float) / (size_t)c->m);
    *value = xmalloc(c->out[0].bytes + 1);
    memcpy(*value, c->out[0].data, c->out[0].bytes);
    return true;
}

/* Without a branch for each word, so that it is a few vector operations: pages are most of what a
 * case of attn_in has. */
static bool poisoned(const uint8_t *byte, int32_t n)
{
    uint8_t all = 0xff;
    for (int32_t i = 0; i < n; i++)
        all &= byte[i];
    return all == 0xff;
}

/* True if a cache position that is not one of the step's own lost its poison. */
static bool kv_strayed(const struct kernel_case *c, const struct guarded *out)
{
    const struct model_shape *s = &c->model->shape;
    const int32_t *kv_at = c->in[BUF_KV_AT].data;
    const uint8_t *row = out->data;
    int32_t bytes = s->head_dim * kv_element_bytes(s);
    bool *own = xcalloc((size_t)c->pages * KV_PAGE, sizeof *own), strayed = false;
    for (int32_t i = 0; i < c->m; i++)
        own[kv_at[i]] = true;
    for (int64_t i = 0; i < (int64_t)c->pages * s->kv_heads * KV_PAGE && !strayed; i++) {
        int64_t page = i / KV_PAGE / s->kv_heads;
        strayed = !own[page * KV_PAGE + i % KV_PAGE] && !poisoned(row, bytes);
        row += bytes;
    }
    free(own);
    return strayed;
}

const char *case_damage(const struct kernel_case *c)
{
    for (int i = 0; i < 3; i++)
        if (!guarded_intact(&c->out[i]))
            return i == 0 ? "wrote outside its output" : "wrote outside the KV pages";
    if (!guarded_intact(&c->work))
        return "wrote outside its working memory";
    for (int i = 1; i < 3; i++)
        if (c->out[i].map && kv_strayed(c, &c->out[i]))
            return i == 1 ? "wrote k of a position that is not the step's"
                          : "wrote v of a position that is not the step's";
    for (int i = 0; i < BUF_INPUTS; i++) {
        if (!c->in[i].map || c->guard || guarded_checksum(&c->in[i]) == c->checksum[i])
            continue;
        static _Thread_local char text[48] = "changed its input ";
        strcpy(text + 18, buffer_name[i]);
        return text;
    }
    return NULL;
}

uint64_t case_digest(const struct kernel_case *c)
{
    const uint64_t prime = 0x100000001b3;
    uint64_t h = 0xcbf29ce484222325;
    const int32_t what[] = {(int32_t)c->shape.region, c->shape.layer, c->m, c->shape.sequences,
                            c->pages};
    for (size_t i = 0; i < sizeof what / sizeof *what; i++)
        h = (h ^ (uint32_t)what[i]) * prime;
    for (int i = 0; i < BUF_INPUTS; i++)
        if (c->in[i].map) {
            h = (h ^ (uint32_t)i) * prime;
            h = (h ^ c->in[i].bytes) * prime;
            h = (h ^ guarded_checksum(&c->in[i])) * prime;
            h ^= h >> 32;
        }
    return h;
}

const char *case_where(const struct kernel_case *c, const void *p)
{
    static _Thread_local char text[48];
    for (int i = 0; i < BUF_INPUTS + 3; i++) {
        const struct guarded *g = i < BUF_INPUTS ? &c->in[i] : &c->out[i - BUF_INPUTS];
        const char *at = p;
        if (!g->map || at < g->map || at >= g->map + g->map_bytes)
            continue;
        bool body = at >= g->body && at < g->body + g->body_bytes;
        const char *wall = body ? "" : at < g->body ? "wall before " : "wall after ";
        if (i < BUF_INPUTS)
            snprintf(text, sizeof text, "%sinput %s", wall, buffer_name[i]);
        else
            snprintf(text, sizeof text, "%soutput %d", wall, i - BUF_INPUTS);
        return text;
    }
    return NULL;
}
