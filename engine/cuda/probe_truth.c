/* SPDX-License-Identifier: Apache-2.0 */
/* probe_truth.c - what a case should have given: eager and the oracle on the same inputs.
 *
 * Both run when the kernel under test has done all its runs, so no answer exists before. Outputs
 * are kept on the device and come back when its slice is over, as rows of tokens: keys and values
 * are gathered from the pages at the step's own positions.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"

enum device_verdict probe_wait(struct device_probe *p, double limit_s, const char *what,
                               struct err *e)
{
    int64_t from = clock_ns(), now = from;
    cudaError_t code = cudaEventRecord(p->session->done, p->b->stream);
    while (code == cudaSuccess && (code = cudaEventQuery(p->session->done)) == cudaErrorNotReady) {
        struct timespec us50 = {0, 50000};
        if (now - from > 3000000) /* a slice is short: most of it is waited for awake */
            nanosleep(&us50, NULL);
        now = clock_ns();
        if (now - from > (int64_t)(limit_s * 1e9)) {
            p->dead = true;
            err_set(e, "%s: hang: no end after %.1f s", what, limit_s);
            return DEVICE_FAULT;
        }
        code = cudaSuccess;
    }
    if (code == cudaSuccess)
        return DEVICE_OK;
    p->dead = true;
    err_set(e, "%s: device error: %s", what, cudaGetErrorString(code));
    return DEVICE_FAULT;
}

/* ---- on the shelf --------------------------------------------------------------------------- */

static int keep(struct device_probe *p, const void *from, int64_t bytes, char **to, struct err *e)
{
    if (p->shelf.used + bytes > p->shelf.bytes)
        return err_set(e, "a case's outputs have no room");
    *to = arena_take(&p->shelf, bytes);
    CU(cudaMemcpyAsync(*to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, p->b->stream));
    return 0;
}

int outcome_keep(struct device_probe *p, struct kept *kept, int content, bool eager, struct err *e)
{
    struct held_rows *rows = &kept->rows[content][eager];
    int64_t pages = p->s.pages * page_bytes(p);
    if (keep(p, p->y.data, 4 * p->s.m * p->y_cols, &rows->y, e))
        return -1;
    if (p->o.region == REGION_HEAD && !eager)
        return keep(p, p->best.data, p->s.m * 4L, &kept->best[content], e);
    if (p->o.region != REGION_ATTN_IN)
        return 0;
    return keep(p, p->k.data, pages, &rows->k, e) || keep(p, p->v.data, pages, &rows->v, e);
}

/* ---- outputs -------------------------------------------------------------------------------- */

static void outcome_shape(const struct device_probe *p, struct device_outcome *out)
{
    const struct model_shape *s = &p->b->model->shape;
    memset(out, 0, sizeof *out);
    out->outputs = p->o.region == REGION_ATTN_IN ? 3 : 1;
    out->contents = p->c.capture ? 1 : 2;
    for (int i = 0; i < out->outputs; i++) {
        out->output[i].rows = p->s.m;
        out->output[i].cols = i == 0 ? (int32_t)p->y_cols : s->kv_heads * s->head_dim;
    }
}

static int fetch_rows(const struct device_probe *p, const char *from, float **to, struct err *e)
{
    size_t bytes = (size_t)p->s.m * (size_t)p->y_cols * 4;
    *to = xmalloc(bytes + 1);
    CU(cudaMemcpy(*to, from, bytes, cudaMemcpyDeviceToHost));
    return 0;
}

/* True where a page position is the step's own. */
static bool *own_positions(const struct device_probe *p)
{
    bool *own = xcalloc((size_t)p->s.pages * KV_PAGE, sizeof *own);
    for (int32_t t = 0; t < p->s.m; t++)
        own[p->s.kv_at[t]] = true;
    return own;
}

/* 1 if a position that is not the step's lost its poison. */
static int strayed(const struct device_probe *p, const uint16_t *page)
{
    const struct model_shape *s = &p->b->model->shape;
    bool *own = own_positions(p);
    int64_t n = (int64_t)p->s.pages * s->kv_heads * KV_PAGE;
    int found = 0;
    for (int64_t row = 0; row < n && !found; row++) {
        if (own[row / KV_PAGE / s->kv_heads * KV_PAGE + row % KV_PAGE])
            continue;
        for (int32_t d = 0; d < s->head_dim; d++)
            found |= page[row * s->head_dim + d] != 0xffff;
    }
    free(own);
    return found;
}

/* Rows of k or v; -1: the copy failed, 1: something was written elsewhere. */
static int fetch_pages(const struct device_probe *p, const char *from, float **to, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    int32_t hd = s->head_dim, heads = s->kv_heads;
    size_t bytes = (size_t)(p->s.pages * page_bytes(p));
    uint16_t *page = xmalloc(bytes);
    float *row = *to = xmalloc((size_t)p->s.m * (size_t)heads * (size_t)hd * sizeof *row);
    cudaError_t code = cudaMemcpy(page, from, bytes, cudaMemcpyDeviceToHost);
    for (int32_t t = 0; t < p->s.m && !code; t++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t d = 0; d < hd; d++) {
                int64_t at = (int64_t)(p->s.kv_at[t] / KV_PAGE) * heads + h;
                *row++ = bf16_to_f32(page[(at * KV_PAGE + p->s.kv_at[t] % KV_PAGE) * hd + d]);
            }
    int stray = code ? 0 : strayed(p, page);
    free(page);
    CU(code);
    return stray;
}

static int check_best(const struct device_probe *p, const char *kept, const float *logits,
                      struct err *e)
{
    int32_t best[NARROW];
    CU(cudaMemcpy(best, kept, (size_t)p->s.m * 4, cudaMemcpyDeviceToHost));
    for (int32_t t = 0; t < p->s.m; t++) {
        const float *row = logits + (int64_t)t * p->y_cols;
        int32_t want = -1;
        for (int32_t i = 0; i < p->y_cols; i++)
            if (row[i] > (want < 0 ? -HUGE_VALF : row[want]))
                want = i;
        if (best[t] != want) {
            err_set(e, "row %d: says %d is the best of its logits, which is %d", t, best[t], want);
            return 1;
        }
    }
    return 0;
}

/* Fetches the outputs of one side (eager or the kernel) for one content; 1: what the kernel
 * wrote is wrong by itself, and e says why. */
static int fetch_side(const struct device_probe *p, const struct kept *kept, int content,
                      bool eager, struct device_outcome *out, struct err *e)
{
    const struct held_rows *rows = &kept->rows[content][eager];
    const char *pages[2] = {rows->k, rows->v};
    float **to[3];
    for (int i = 0; i < out->outputs; i++)
        to[i] = eager ? &out->output[i].eager[content] : &out->output[i].own[content];
    if (fetch_rows(p, rows->y, to[0], e))
        return -1;
    if (p->o.region == REGION_HEAD && !eager)
        return check_best(p, kept->best[content], *to[0], e);
    for (int i = 1; i < out->outputs; i++) {
        int r = fetch_pages(p, pages[i - 1], to[i], e);
        if (r > 0)
            err_set(e, "wrote %c of a position that is not the step's", i == 1 ? 'k' : 'v');
        if (r != 0)
            return r;
    }
    return 0;
}

static int fetch_truth(const struct device_probe *p, const struct kept *kept, int content,
                       struct device_outcome *out, struct err *e);

enum device_verdict outcome_fetch(struct device_probe *p, const struct kept *kept,
                                  struct device_outcome *out, struct err *e)
{
    outcome_shape(p, out);
    for (int c = 0; c < out->contents; c++)
        for (int eager = 0; eager < 2; eager++) {
            int r = fetch_side(p, kept, c, eager, out, e);
            if (r < 0)
                p->dead = true;
            if (r != 0)
                return r < 0 || eager ? DEVICE_ERROR : DEVICE_FAULT;
        }
    for (int c = 0; c < out->contents; c++)
        if (fetch_truth(p, kept, c, out, e))
            return p->dead = true, DEVICE_ERROR;
    return DEVICE_OK;
}

/* ---- the oracle ----------------------------------------------------------------------------- */

static double *f64(const struct held *h)
{
    return (double *)(void *)h->data;
}

static int rows64(struct device_probe *p, const struct held *from, const float *gain,
                  const int32_t *row, int32_t n, struct err *e)
{
    struct oracle_rows_args a = {(float *)(void *)from->data, gain, row, f64(&p->in64), n,
                                 p->b->model->shape.eps};
    return tool_launch(p, TOOL_ROWS, (dim3){(unsigned)p->s.m, 1, 1}, 256, &a, false, e);
}

static int product64(struct device_probe *p, double *to, struct err *e)
{
    struct matrix m = case_matrix(p);
    struct oracle_product_args a = {f64(&p->in64), m.data,         to, p->s.m, m.rows,
                                    m.cols,        (int32_t)m.type};
    dim3 grid = {(unsigned)(m.rows + 7) / 8, (unsigned)(p->s.m + 7) / 8, 1};
    return tool_launch(p, TOOL_PRODUCT, grid, 256, &a, false, e);
}

static int finish64(struct device_probe *p, const struct held *x, struct err *e)
{
    struct oracle_finish_args a = {f64(&p->raw64), x ? (float *)(void *)x->data : NULL,
                                   f64(&p->out64), p->s.m * p->y_cols};
    return tool_launch(p, TOOL_FINISH, (dim3){256, 1, 1}, 256, &a, false, e);
}

static int truth_attn_in(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    const struct device_layer *l = &p->b->on.layer[p->layer];
    struct oracle_heads_args a = {f64(&p->out64),
                                  l->bias,
                                  l->q_norm,
                                  l->k_norm,
                                  p->b->on.rope_cos,
                                  p->b->on.rope_sin,
                                  p->b->spare.block.position,
                                  s->heads,
                                  s->kv_heads,
                                  s->head_dim,
                                  s->eps};
    dim3 grid = {(unsigned)(s->heads + 2 * s->kv_heads), (unsigned)p->s.m, 1};
    return rows64(p, &p->x, l->attn_norm, NULL, s->hidden, e) || product64(p, f64(&p->out64), e) ||
           tool_launch(p, TOOL_HEADS, grid, 32, &a, false, e);
}

static int truth_attn(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    const struct step_block *k = &p->b->spare.block;
    struct oracle_attn_args a = {(float *)(void *)p->in.data,
                                 p->k.data,
                                 p->v.data,
                                 k->position,
                                 k->pages_at,
                                 k->page_table,
                                 f64(&p->out64),
                                 f64(&p->raw64),
                                 s->heads,
                                 s->kv_heads,
                                 s->head_dim,
                                 (float)(1 / sqrt((double)s->head_dim))};
    return tool_launch(p, TOOL_ATTN, (dim3){(unsigned)s->heads, (unsigned)p->s.m, 1}, 256, &a,
                       false, e);
}

static int run_truth(struct device_probe *p, struct err *e)
{
    const struct device_layer *l = &p->b->on.layer[p->layer];
    const struct model_shape *s = &p->b->model->shape;
    switch (p->o.region) {
    case REGION_ATTN_IN:
        return truth_attn_in(p, e);
    case REGION_ATTN:
        return truth_attn(p, e);
    case REGION_MLP_IN:
        return rows64(p, &p->x, l->mlp_norm, NULL, s->hidden, e) ||
               product64(p, f64(&p->raw64), e) || finish64(p, NULL, e);
    case REGION_HEAD:
        return rows64(p, &p->x, p->b->on.final_norm, p->b->spare.block.row, s->hidden, e) ||
               product64(p, f64(&p->out64), e);
    default:
        return rows64(p, &p->in, NULL, NULL, case_matrix(p).cols, e) ||
               product64(p, f64(&p->raw64), e) || finish64(p, &p->x, e);
    }
}

static size_t truth_cols(const struct device_probe *p)
{
    const struct model_shape *s = &p->b->model->shape;
    bool qkv = p->o.region == REGION_ATTN_IN;
    return (size_t)p->y_cols + (qkv ? 2 * (size_t)s->kv_heads * (size_t)s->head_dim : 0);
}

static int fetch_scores(const struct device_probe *p, const struct kept *kept, int content,
                        struct device_outcome *out, struct err *e)
{
    size_t m = (size_t)p->s.m, heads = (size_t)p->b->model->shape.heads;
    double *each = xmalloc(m * heads * sizeof *each);
    double *most = out->output[0].scores[content] = xcalloc(m, sizeof *most);
    cudaError_t code =
        cudaMemcpy(each, kept->scores[content], m * heads * sizeof *each, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < m * heads && !code; i++)
        most[i / heads] = fmax(most[i / heads], each[i]);
    free(each);
    CU(code);
    return 0;
}

/* Rows of all outputs lie side by side: q, k, v in attn_in, one elsewhere. */
static int fetch_truth(const struct device_probe *p, const struct kept *kept, int content,
                       struct device_outcome *out, struct err *e)
{
    size_t m = (size_t)p->s.m, all = truth_cols(p), at = 0;
    double *rows = xmalloc(m * all * sizeof *rows);
    cudaError_t code =
        cudaMemcpy(rows, kept->truth[content], m * all * sizeof *rows, cudaMemcpyDeviceToHost);
    for (int i = 0; i < out->outputs && !code; i++) {
        size_t cols = (size_t)out->output[i].cols;
        double *to = out->output[i].truth[content] = xmalloc(m * cols * sizeof *to);
        for (size_t t = 0; t < m; t++)
            memcpy(to + t * cols, rows + t * all + at, cols * sizeof *to);
        at += cols;
    }
    free(rows);
    CU(code);
    return p->o.region == REGION_ATTN ? fetch_scores(p, kept, content, out, e) : 0;
}

/* Inputs as the producer left them, straight from the staged memory. */
static int restore_inputs(struct device_probe *p, struct err *e)
{
    cudaStream_t s = p->b->stream;
    if (p->x.data)
        CU(cudaMemcpyAsync(p->x.data, p->stage_x.data, (size_t)p->x_bytes, cudaMemcpyDeviceToDevice,
                           s));
    if (p->in.data)
        CU(cudaMemcpyAsync(p->in.data, p->stage_in.data, (size_t)p->in_bytes,
                           cudaMemcpyDeviceToDevice, s));
    if (p->o.region == REGION_ATTN_IN)
        CU(cudaMemsetAsync(p->k.data, 0xff, (size_t)(p->s.all_pages * page_bytes(p)), s));
    if (p->o.region == REGION_ATTN_IN)
        CU(cudaMemsetAsync(p->v.data, 0xff, (size_t)(p->s.all_pages * page_bytes(p)), s));
    CU(cudaMemsetAsync(p->y.data, 0xff, (size_t)p->y.bytes, s));
    return 0;
}

int outcome_reference(struct device_probe *p, struct kept *kept, int content, struct err *e)
{
    struct walk w;
    struct kernel_choice choice;
    if (case_stage(p, content, e) || restore_inputs(p, e))
        return -1;
    case_walk(p, &w, &choice);
    if (eager_region(&w, p->o.region, p->layer, e) || outcome_keep(p, kept, content, true, e) ||
        run_truth(p, e))
        return -1;
    if (p->o.region == REGION_ATTN &&
        keep(p, p->raw64.data, 8L * p->s.m * p->b->model->shape.heads, &kept->scores[content], e))
        return -1;
    return keep(p, p->out64.data, (int64_t)p->s.m * (int64_t)truth_cols(p) * 8,
                &kept->truth[content], e);
}
