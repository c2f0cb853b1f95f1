/* SPDX-License-Identifier: Apache-2.0 */
/* probe_case.c - the inputs of one case on the device.
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
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"
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

/* Rows m .. all-1 are rows 0 .. m-1 again, with places in the cache of their own. */
static void place_copies(const struct device_probe *p)
{
    const struct step_block *k = &p->b->spare.block;
    const struct sequences *s = &p->s;
    int32_t *position = block_mirror(k, k->position), *kv_at = block_mirror(k, k->kv_at);
    for (int32_t i = s->m; i < p->room && s->all > s->m; i++) {
        position[i] = s->position[i % s->m];
        kv_at[i] = i < s->all ? s->pages * KV_PAGE + i - s->m : s->table[s->table_n] * KV_PAGE;
    }
}

static int send_sequences(struct device_probe *p, struct err *e)
{
    const struct step_block *k = &p->b->spare.block;
    const struct sequences *s = &p->s;
    size_t bytes = NARROW * sizeof(int32_t);
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
    int32_t all = p->o.m > NARROW && p->c.capture ? p->o.m : p->c.shape.m;
    int32_t m = p->c.shape.m < NARROW ? p->c.shape.m : NARROW;
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
    for (int32_t i = s->m; i < NARROW && !p->c.capture; i++)
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
    return matrix_of(p->b, p->o.region, p->layer);
}

static int fill(const struct device_probe *p, void *to, int64_t n, int32_t cols, int kind,
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
    return fill(p, at, n, 1, PROBE_FILL_GAIN, 1, false, p->c.seed ^ 0x9a4a, e) ||
           fill(p, at + n, all, 1, PROBE_FILL_NORMAL, 0.25f, false, p->c.seed ^ 0xb1a5, e);
}

/* Any codes under scales that give weights of the same size as others have. */
static int draw_bricks(struct device_probe *p, const struct matrix *m, bool exact, struct err *e)
{
    struct probe_bricks_args a = {p->drawn.data,
                                  m->bytes / brick_bytes((int)m->type),
                                  p->c.seed ^ 0x3a11,
                                  exact ? 1 : gain_scale(m->cols),
                                  (int32_t)m->type,
                                  exact,
                                  m->rows,
                                  m->cols};
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
    struct device_weight drawn = {p->drawn.data, matrix_of(b, p->o.region, 0).type};
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
    return fill(p, p->drawn.data, (int64_t)m.rows * m.cols, m.cols,
                exact ? PROBE_FILL_INTEGERS : PROBE_FILL_NORMAL, exact ? 1 : gain_scale(m.cols),
                true, p->c.seed ^ 0x3a11, e);
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

int case_copies(struct device_probe *p, struct err *e)
{
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
        if (launch(&w, PRIM_COMPARE, grid, 256, 0, &a, e))
            return -1;
        a.a_at = k->kv_at + at;
        a.b_at = k->kv_at;
        a.cols = a.kv_heads * a.head_dim;
        for (int v = 0; p->o.region == REGION_ATTN_IN && v < 2; v++) {
            a.a_pages = a.b_pages = v ? p->v.data : p->k.data;
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

/* ---- contents ------------------------------------------------------------------------------- */

static int fill_of(const struct device_probe *p, int content)
{
    bool keep = p->c.fill == FILL_BITS || p->c.fill == FILL_NORMAL;
    return content == 0 || keep ? (int)p->c.fill : PROBE_FILL_NORMAL;
}

static int stage_rows(struct device_probe *p, const struct held *to, int64_t rows, int32_t cols,
                      int content, uint64_t seed, const float *captured, struct err *e)
{
    CU(cudaMemsetAsync(to->data, 0xff, (size_t)to->bytes, p->b->stream));
    if (p->c.capture)
        CU(cudaMemcpyAsync(to->data, captured, (size_t)(rows * cols) * 4, cudaMemcpyHostToDevice,
                           p->b->stream));
    else if (fill(p, to->data, rows * cols, cols, fill_of(p, content), 1, false, seed, e))
        return -1;
    for (int64_t have = rows, n; have < p->s.all; have += n) { /* the copies */
        n = have < p->s.all - have ? have : p->s.all - have;
        CU(cudaMemcpyAsync(to->data + have * cols * 4, to->data, (size_t)(n * cols) * 4,
                           cudaMemcpyDeviceToDevice, p->b->stream));
    }
    return 0;
}

static int stage_captured_pages(struct device_probe *p, const struct held *to, const float *pages,
                                struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    int64_t n = (int64_t)p->s.pages * KV_PAGE * s->kv_heads * s->head_dim;
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    for (int64_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(pages[i]);
    cudaError_t code =
        cudaMemcpyAsync(to->data, half, (size_t)n * 2, cudaMemcpyHostToDevice, p->b->stream);
    free(half);
    CU(code);
    return 0;
}

static int stage_pages(struct device_probe *p, const struct held *to, const struct held *live,
                       int content, uint64_t seed, const float *captured, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    int64_t bytes = p->s.pages * page_bytes(p);
    struct probe_pages_args a = {to->data,   p->b->spare.block.span, p->b->spare.block.page_table,
                                 seed,       fill_of(p, content),    s->kv_heads,
                                 s->head_dim};
    if (p->c.capture) {
        if (!p->pages_staged && stage_captured_pages(p, to, captured, e))
            return -1;
    } else if (fill(p, to->data, bytes / 2, 1, PROBE_FILL_GARBAGE, 1, true, seed ^ 1, e) ||
               tool_launch(p, TOOL_PAGES, (dim3){256, (unsigned)p->s.spans, 1}, 256, &a, false,
                           e)) {
        return -1;
    }
    CU(cudaMemcpyAsync(live->data, to->data, (size_t)bytes, cudaMemcpyDeviceToDevice,
                       p->b->stream));
    return 0;
}

int case_stage(struct device_probe *p, int content, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    const struct capture *c = p->c.capture;
    uint64_t seed = p->c.seed * 2 + (uint64_t)content;
    int64_t rows = p->s.m + (p->o.region == REGION_HEAD && !c ? SPARE_ROWS : 0);
    if (p->x.data &&
        stage_rows(p, &p->stage_x, rows, s->hidden, content, seed ^ 0x11, c ? c->x : NULL, e))
        return -1;
    int32_t cols = (int32_t)(p->in_bytes / 4 / p->room);
    if (p->in.data &&
        stage_rows(p, &p->stage_in, p->s.m, cols, content, seed ^ 0x22, c ? c->in : NULL, e))
        return -1;
    if (p->o.region != REGION_ATTN)
        return 0;
    int rc = stage_pages(p, &p->stage_k, &p->k, content, seed ^ 0x33, c ? c->k_pages : NULL, e) ||
             stage_pages(p, &p->stage_v, &p->v, content, seed ^ 0x44, c ? c->v_pages : NULL, e);
    p->pages_staged = c && rc == 0;
    return rc;
}

/* ---- what the producer does ----------------------------------------------------------------- */

struct segments {
    struct probe_segment *at;
    int32_t n;
};

static void copy_segment(struct segments *s, const void *from, void *to, int64_t bytes)
{
    s->at[s->n++] = (struct probe_segment){from, to, bytes};
}

/* The rows of this step's own keys or values; with `stage` NULL they are poisoned. */
static void newest_rows(const struct device_probe *p, struct segments *g, const struct held *live,
                        const struct held *stage)
{
    const struct model_shape *s = &p->b->model->shape;
    int64_t bytes = s->head_dim * 2L;
    for (int32_t t = 0; t < p->s.m; t++)
        for (int32_t h = 0; h < s->kv_heads; h++) {
            int64_t page = p->s.kv_at[t] / KV_PAGE, row = p->s.kv_at[t] % KV_PAGE;
            int64_t at = ((page * s->kv_heads + h) * KV_PAGE + row) * bytes;
            copy_segment(g, stage ? stage->data + at : NULL, live->data + at, bytes);
        }
}

int case_segments(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    size_t most = 16 + 4 * (size_t)NARROW * (size_t)s->kv_heads;
    struct segments g = {xcalloc(most, sizeof *g.at), 0};
    bool attn = p->o.region == REGION_ATTN;
    if (attn) {
        newest_rows(p, &g, &p->k, NULL);
        newest_rows(p, &g, &p->v, NULL);
    }
    p->resets_n = g.n;
    if (p->x.data)
        copy_segment(&g, p->stage_x.data, p->x.data, p->x_bytes);
    if (p->in.data)
        copy_segment(&g, p->stage_in.data, p->in.data, p->in_bytes);
    if (attn) {
        newest_rows(p, &g, &p->k, &p->stage_k);
        newest_rows(p, &g, &p->v, &p->stage_v);
    }
    copy_segment(&g, NULL, p->y.data, p->y.bytes);
    if (p->best.data)
        copy_segment(&g, NULL, p->best.data, p->best.bytes);
    if (p->o.region == REGION_ATTN_IN) {
        copy_segment(&g, NULL, p->k.data, p->s.all_pages * page_bytes(p));
        copy_segment(&g, NULL, p->v.data, p->s.all_pages * page_bytes(p));
    }
    p->segments_n = g.n - p->resets_n;
    cudaError_t code = cudaMemcpyAsync(p->segments.data, g.at, (size_t)g.n * sizeof *g.at,
                                       cudaMemcpyHostToDevice, p->b->stream);
    free(g.at);
    CU(code);
    return 0;
}

void case_walk(struct device_probe *p, struct walk *w, struct choice *choice)
{
    struct backend *b = p->b;
    memset(choice, 0, sizeof *choice);
    choice->m = choice->rows = walk_padded(p->s.all);
    choice->context = context_bucket[context_bucket_of(p->s.context)];
    walk_init(w, b, b->stream, &b->spare.block, choice);
    w->wide =
        p->s.all > NARROW; /* what lies between kernels is bf16; outputs come as floats, too */
    w->x = (float *)(void *)p->x.data;
    float *in = (float *)(void *)p->in.data, *y = (float *)(void *)p->y.data;
    w->k_pages = p->k.data;
    w->v_pages = p->v.data;
    switch (p->o.region) {
    case REGION_ATTN_IN:
        w->q = y;
        break;
    case REGION_ATTN:
        w->q = in;
        w->a = y;
        break;
    case REGION_ATTN_OUT:
        w->a = in;
        w->y = y;
        break;
    case REGION_MLP_IN:
        w->h = y;
        break;
    case REGION_MLP_OUT:
        w->h = in;
        w->y = y;
        break;
    default:
        w->logits = y;
        w->best = (int32_t *)(void *)p->best.data;
        break;
    }
}
