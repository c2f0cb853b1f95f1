/* SPDX-License-Identifier: Apache-2.0 */
/* probe_case.c - the sequences and parameters of one case on the device; its contents are put there
 * by probe_contents.c.
 *
 * Sequences are drawn on the host: spans whose contexts are equal or ragged, positions, and a page
 * table whose numbers may be permuted, in a pool that has pages of nobody. Numbers are drawn on the
 * device (kernels/cuda/probe.cu) from the case's seed. What must not be used - other pages, the
 * rest of a last page - holds finite garbage; what no kernel may read at all - rows beyond the
 * step's - is NaN.
 *
 * Long contexts times many sequences are more memory than a probe may have, so all sequences but
 * the first share PLACES positions.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/case_random.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"
#include "kernels/bricks.h"

enum { PLACES = 32768 };

/* ---- sequences ------------------------------------------------------------------------------ */

static void draw_spans(struct device_probe *p, struct random *r)
{
    struct sequences *s = &p->s;
    const struct case_shape *shape = &p->c.shape;
    int32_t n = shape->sequences < 1 ? 1 : shape->sequences < s->m ? shape->sequences : s->m;
    int32_t first = 0, pages = 0, share = n > 1 ? PLACES / (n - 1) : PLACES;
    s->spans = n;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = s->m / n + (i < s->m % n), context = shape->context;
        if (i > 0 && context > share)
            context = share;
        context = context > count ? context : count;
        if (shape->ragged && i > 0)
            context = count + random_below(r, context - count + 1);
        s->span[i] = (struct span){first, count, context, pages};
        s->context = context > s->context ? context : s->context;
        first += count;
        pages += (context + KV_PAGE - 1) / KV_PAGE;
    }
    s->table_n = pages;
    s->pages = pages + SPARE_PAGES;
}

static void draw_pages(struct device_probe *p, struct random *r)
{
    struct sequences *s = &p->s;
    int32_t *number = xmalloc((size_t)s->pages * sizeof *number);
    for (int32_t i = 0; i < s->pages; i++)
        number[i] = i;
    for (int32_t i = s->pages - 1; p->c.shape.permuted_pages && i > 0; i--) {
        int32_t j = random_below(r, i + 1), t = number[i];
        number[i] = number[j];
        number[j] = t;
    }
    s->table = number;
}

static void place_tokens(struct sequences *s)
{
    for (int32_t i = 0; i < s->spans; i++)
        for (int32_t t = 0; t < s->span[i].count; t++) {
            int32_t at = s->span[i].first + t, pos = s->span[i].context - s->span[i].count + t;
            s->position[at] = pos;
            s->pages_at[at] = s->span[i].pages_at;
            s->kv_at[at] = s->table[s->span[i].pages_at + pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE;
        }
}

static void take_captured(struct device_probe *p, const struct capture *c)
{
    struct sequences *s = &p->s;
    s->context = c->context;
    s->pages = c->pages > 0 ? c->pages : 1;
    s->spans = c->span ? c->spans : 0;
    for (int32_t i = 0; i < s->spans; i++) {
        int32_t end = c->span[i].pages_at + (c->span[i].context + KV_PAGE - 1) / KV_PAGE;
        s->span[i] = c->span[i];
        s->table_n = end > s->table_n ? end : s->table_n;
    }
    s->table = xcalloc((size_t)s->table_n + 1, sizeof *s->table);
    if (s->table_n)
        memcpy(s->table, c->page_table, (size_t)s->table_n * sizeof *s->table);
    place_tokens(s);
    for (int32_t i = 0; i < s->m && c->position; i++) {
        s->position[i] = c->position[i];
        s->kv_at[i] = c->kv_at[i];
    }
}

/* Whether the step is one prompt, whose copies are at positions of their own: a kernel may do
 * otherwise where a whole tile's tokens follow each other. */
static bool is_prompt(const struct device_probe *p)
{
    const struct sequences *s = &p->s;
    return p->o.region == REGION_ATTN_IN && s->spans == 1 && !p->c.capture &&
           s->position[0] + s->all <= p->b->positions;
}

/* Rows m .. all-1 are rows 0 .. m-1 again, with places in the cache of their own. */
static void place_copies(const struct device_probe *p)
{
    const struct step_block *k = &p->b->spare.block;
    const struct sequences *s = &p->s;
    int32_t *position = block_mirror(k, k->position), *kv_at = block_mirror(k, k->kv_at);
    bool prompt = is_prompt(p);
    for (int32_t i = s->m; i < p->room && s->all > s->m; i++) {
        position[i] = prompt && i < s->all ? s->position[0] + i : s->position[i % s->m];
        kv_at[i] = i < s->all ? s->pages * KV_PAGE + i - s->m : s->table[s->table_n] * KV_PAGE;
    }
}

static int send_sequences(struct device_probe *p, struct err *e)
{
    const struct step_block *k = &p->b->spare.block;
    const struct sequences *s = &p->s;
    int32_t most = rows_seen(p->o.region); /* or fewer, which the block has room for */
    size_t bytes = (size_t)(most < k->rows ? most : k->rows) * sizeof(int32_t);
    if (p->page_room > 0 && s->all_pages > p->page_room)
        return err_set(e, "a case of %d pages; the probe has room for %d", s->all_pages,
                       p->page_room);
    if (s->table_n > k->pages)
        return err_set(e, "page tables of %d entries; the probe has room for %lld", s->table_n,
                       (long long)k->pages);
    struct cuda_counts *counts = block_mirror(k, k->counts);
    bool head = p->o.region == REGION_HEAD;
    *counts =
        (struct cuda_counts){head ? s->m + SPARE_ROWS : s->all, s->rows, s->spans, s->context, {0}};
    memcpy(block_mirror(k, k->position), s->position, bytes);
    memcpy(block_mirror(k, k->kv_at), s->kv_at, bytes);
    place_copies(p);
    memcpy(block_mirror(k, k->pages_at), s->pages_at, bytes);
    memcpy(block_mirror(k, k->row), s->row, bytes);
    memcpy(block_mirror(k, k->span), s->span, (size_t)s->spans * sizeof *s->span);
    memcpy(block_mirror(k, k->page_table), s->table, (size_t)s->table_n * sizeof *s->table);
    size_t used = (size_t)((char *)(k->page_table + s->table_n) - k->device);
    CU(cudaMemcpy(k->device, k->host, used, cudaMemcpyHostToDevice));
    return 0;
}

int case_sequences(struct device_probe *p, struct err *e)
{
    struct random r = {p->c.seed ^ 0x5e9};
    struct sequences *s = &p->s;
    p->pages_staged = false;
    free(s->table);
    int32_t most = rows_seen(p->o.region);
    int32_t all = p->o.m > most && p->c.capture ? p->o.m : p->c.shape.m;
    int32_t m = p->c.shape.m < most ? p->c.shape.m : most;
    *s = (struct sequences){.m = m, .rows = m, .all = all};
    if (p->c.capture) {
        take_captured(p, p->c.capture);
    } else {
        draw_spans(p, &r);
        draw_pages(p, &r);
        place_tokens(s);
    }
    s->all_pages = s->pages + (s->all - s->m + KV_PAGE - 1) / KV_PAGE;
    /* A row that the step does not have must not write: it would hit the first page of nobody. */
    for (int32_t i = s->m; i < most && !p->c.capture; i++)
        s->kv_at[i] = s->table[s->table_n] * KV_PAGE;
    for (int32_t i = 0; i < s->m; i++)
        s->row[i] = p->c.capture ? i : (i * 2 + 1) % (s->m + SPARE_ROWS);
    return send_sequences(p, e);
}

/* ---- parameters ----------------------------------------------------------------------------- */

/* The matrix that the region reads has rows and columns; attention has none. */
static bool region_has_matrix(enum region r)
{
    return r != REGION_ATTN && r != REGION_EMBED;
}

struct matrix case_matrix(const struct device_probe *p)
{
    return matrix_of(p->b, p->o.region, p->layer, p->o.m);
}

int case_fill(const struct device_probe *p, void *to, int64_t n, int32_t cols, int kind,
              float scale, bool half, uint64_t seed, struct err *e)
{
    struct probe_fill_args a = {to, n, seed, scale, cols > 0 ? cols : 1, kind, half};
    return tool_launch(p, TOOL_FILL, (dim3){1024, 1, 1}, 256, &a, false, e);
}

static float gain_scale(int32_t k)
{
    float scale = 1;
    while ((float)k * scale * scale > 1)
        scale /= 2; /* a power of two near 1 / sqrt(k): integers stay exact */
    return scale;
}

static int draw_vectors(struct device_probe *p, struct device_layer *l, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    float *at = (float *)(void *)p->gains.data;
    int32_t all = (s->heads + 2 * s->kv_heads) * s->head_dim;
    const struct device_layer *real = &p->b->on.layer[0];
    l->attn_norm = l->mlp_norm = at;
    l->q_norm = real->q_norm ? at + s->hidden : NULL;
    l->k_norm = real->k_norm ? at + s->hidden + s->head_dim : NULL;
    l->bias = real->bias ? at + s->hidden + 2L * s->head_dim : NULL;
    int64_t n = s->hidden + 2L * s->head_dim;
    return case_fill(p, at, n, 1, PROBE_FILL_GAIN, 1, false, p->c.seed ^ 0x9a4a, e) ||
           case_fill(p, at + n, all, 1, PROBE_FILL_NORMAL, 0.25f, false, p->c.seed ^ 0xb1a5, e);
}

/* Any codes under scales that give weights of the same size as others have. */
static int draw_bricks(struct device_probe *p, const struct matrix *m, bool exact, struct err *e)
{
    struct probe_bricks_args a = {p->drawn.data,      m->bytes / brick_bytes((int)m->type),
                                  p->c.seed ^ 0x3a11, exact ? 1 : gain_scale(m->cols),
                                  (int32_t)m->type,   exact};
    return tool_launch(p, TOOL_BRICKS, (dim3){1024, 1, 1}, 256, &a, false, e);
}

/* Layer `layers` gets a drawn matrix and drawn vectors; the head, which has no layer, gets them
 * in place of its own until the next case. */
static int draw_params(struct device_probe *p, struct err *e)
{
    struct backend *b = p->b;
    struct device_layer *l = &b->on.layer[p->layers];
    memset(l, 0, sizeof *l);
    if (draw_vectors(p, l, e))
        return -1;
    struct device_weight drawn = {p->drawn.data, matrix_of(b, p->o.region, 0, p->o.m).type, NULL};
    l->wqkv = l->wo = l->wgu = l->wdown = drawn;
    p->layer = p->layers;
    b->on.head = drawn;
    b->on.final_norm = l->attn_norm;
    if (!region_has_matrix(p->o.region))
        return 0;
    struct matrix m = case_matrix(p);
    bool exact = p->c.fill == FILL_BITS;
    if (m.type != DTYPE_BF16)
        return draw_bricks(p, &m, exact, e);
    return case_fill(p, p->drawn.data, (int64_t)m.rows * m.cols, m.cols,
                     exact ? PROBE_FILL_INTEGERS : PROBE_FILL_NORMAL,
                     exact ? 1 : gain_scale(m.cols), true, p->c.seed ^ 0x3a11, e);
}

static int pack(struct device_probe *p, struct err *e)
{
    cudaKernel_t entry;
    struct matrix m = case_matrix(p);
    struct cuda_pack_args a = {m.data, p->packed.data, m.rows, m.cols};
    void *parameter[] = {&a};
    CU(cudaLibraryGetKernel(&entry, p->loaded->library, "whet_pack"));
    CU(cudaMemsetAsync(p->packed.data, 0xff, (size_t)p->packed.bytes, p->b->stream));
    CU(cudaLaunchKernel((const void *)entry, (dim3){1024, 1, 1}, (dim3){256, 1, 1}, parameter, 0,
                        p->b->stream));
    return 0;
}

int case_params(struct device_probe *p, struct err *e)
{
    p->b->on.head = p->real_head.wqkv;
    p->b->on.final_norm = p->real_head.attn_norm;
    p->layer = region_info(p->o.region)->once ? 0 : p->c.shape.layer % p->layers;
    if (p->c.random_params && !p->c.capture && draw_params(p, e))
        return -1;
    return p->packed.data ? pack(p, e) : 0;
}

/* q and k of a prompt's copies are their originals', turned further. */
static void turn_originals(const struct device_probe *p, int32_t at, bool turned,
                           struct eager_compare_args *a)
{
    const struct step_block *k = &p->b->spare.block;
    a->rope_cos = turned ? p->b->on.rope_cos : NULL;
    a->rope_sin = p->b->on.rope_sin;
    a->a_position = k->position + at;
    a->b_position = k->position;
}

int case_copies(struct device_probe *p, struct err *e)
{
    bool prompt = is_prompt(p);
    struct backend *b = p->b;
    const struct sequences *s = &p->s;
    const struct step_block *k = &b->spare.block;
    struct walk w = {.b = b, .stream = b->stream};
    float *y = (float *)(void *)p->y.data;
    /* Rows beyond a part's end are never compared: a part is as many rows as its grid has. */
    struct eager_compare_args a = {.count = &k->counts->m,
                                   .kv_heads = b->model->shape.kv_heads,
                                   .head_dim = b->model->shape.head_dim,
                                   .out = (unsigned *)(void *)probe_tally(p, TALLY_COPIES)};
    for (int32_t at = s->m; at < s->all; at += s->m) {
        dim3 grid = {(unsigned)(s->all - at < s->m ? s->all - at : s->m), 1, 1};
        a.a = y + at * p->y_cols;
        a.b = y;
        a.a_pages = a.b_pages = NULL;
        a.cols = (int32_t)p->y_cols;
        turn_originals(p, at, prompt, &a);
        if (launch(&w, PRIM_COMPARE, grid, 256, 0, &a, e))
            return -1;
        a.a_at = k->kv_at + at;
        a.b_at = k->kv_at;
        a.cols = a.kv_heads * a.head_dim;
        for (int v = 0; p->o.region == REGION_ATTN_IN && v < 2; v++) {
            a.a_pages = a.b_pages = v ? p->v.data : p->k.data;
            turn_originals(p, at, prompt && !v, &a);
            if (launch(&w, PRIM_COMPARE, grid, 256, 0, &a, e))
                return -1;
        }
    }
    return 0;
}

static int sum(struct device_probe *p, const void *data, int64_t bytes, unsigned long long *to,
               struct err *e)
{
    struct probe_sum_args a = {data, bytes / 4, to};
    if (!data || bytes < 4)
        return 0;
    return tool_launch(p, TOOL_SUM, (dim3){512, 1, 1}, 256, &a, false, e);
}

int case_checksum(struct device_probe *p, int which, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    const struct device_layer *l = &p->b->on.layer[p->layer];
    unsigned long long *to = probe_tally(p, TALLIES + which);
    struct matrix m = case_matrix(p);
    const float *norm = p->o.region == REGION_HEAD     ? p->b->on.final_norm
                        : p->o.region == REGION_MLP_IN ? l->mlp_norm
                                                       : l->attn_norm;
    int32_t all = (s->heads + 2 * s->kv_heads) * s->head_dim;
    CU(cudaMemsetAsync(to, 0, sizeof *to, p->b->stream));
    return sum(p, m.data, m.bytes, to, e) || sum(p, norm, s->hidden * 4L, to, e) ||
           sum(p, l->q_norm, s->head_dim * 4L, to, e) ||
           sum(p, l->k_norm, s->head_dim * 4L, to, e) || sum(p, l->bias, all * 4L, to, e) ||
           sum(p, p->packed.data, p->packed.bytes, to, e);
}
