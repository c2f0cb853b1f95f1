/* SPDX-License-Identifier: Apache-2.0 */
/* probe_contents.c - what activations and pages of a case hold, and how they get where a kernel
 * reads them.
 *
 * Contents are drawn on the device, or captured in a live step, into staged memory. From there the
 * producer, a kernel in front of the one under test, copies them to where it reads, so a kernel
 * that does not wait for its predecessor reads garbage. What no kernel may read is NaN.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"

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
    else if (case_fill(p, to->data, rows * cols, cols, fill_of(p, content), 1, false, seed, e))
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
    } else if (case_fill(p, to->data, bytes / 2, 1, PROBE_FILL_GARBAGE, 1, true, seed ^ 1, e) ||
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
    size_t most = 16 + 4 * (size_t)rows_seen(p->o.region) * (size_t)s->kv_heads;
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
    if (p->y16.data)
        copy_segment(&g, NULL, p->y16.data, p->y16.bytes);
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

/* ---- where the kernel finds them ------------------------------------------------------------ */

void case_walk(struct device_probe *p, struct walk *w, struct kernel_choice *choice)
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
