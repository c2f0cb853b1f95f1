/* probe_truth.c - what a case should have given: eager and the oracle on the same inputs.
 *
 * Both run when the kernel under test has done all its rounds, so no answer exists before. Outputs
 * come back as rows of tokens: keys and values are gathered from the pages at the step's own
 * positions.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/probe_private.h"
#include "engine/quant.h"

enum device_verdict probe_wait(struct device_probe *p, double limit_s, const char *what,
                               struct err *e)
{
    int64_t until = clock_ns() + (int64_t)(limit_s * 1e9);
    cudaError_t code = cudaEventRecord(p->done, p->b->stream);
    while (code == cudaSuccess && (code = cudaEventQuery(p->done)) == cudaErrorNotReady) {
        struct timespec us50 = {0, 50000};
        nanosleep(&us50, NULL);
        if (clock_ns() > until) {
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

/* ---- outputs -------------------------------------------------------------------------------- */

void outcome_shape(const struct device_probe *p, struct device_outcome *out)
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

static int fetch_rows(const struct device_probe *p, const struct held *from, float **to,
                      struct err *e)
{
    size_t bytes = (size_t)p->s.m * (size_t)p->y_cols * 4;
    *to = xmalloc(bytes + 1);
    CU(cudaMemcpy(*to, from->data, bytes, cudaMemcpyDeviceToHost));
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
static int fetch_pages(const struct device_probe *p, const struct held *from, float **to,
                       struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    int32_t hd = s->head_dim, heads = s->kv_heads;
    size_t bytes = (size_t)(p->s.pages * page_bytes(p));
    uint16_t *page = xmalloc(bytes);
    float *row = *to = xmalloc((size_t)p->s.m * (size_t)heads * (size_t)hd * sizeof *row);
    cudaError_t code = cudaMemcpy(page, from->data, bytes, cudaMemcpyDeviceToHost);
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

static int check_best(const struct device_probe *p, const float *logits, struct err *e)
{
    int32_t best[NARROW];
    CU(cudaMemcpy(best, p->best.data, (size_t)p->s.m * 4, cudaMemcpyDeviceToHost));
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

int outcome_fetch(struct device_probe *p, int content, bool eager, struct device_outcome *out,
                  struct err *e)
{
    float **to[3];
    for (int i = 0; i < out->outputs; i++)
        to[i] = eager ? &out->output[i].eager[content] : &out->output[i].own[content];
    if (fetch_rows(p, &p->y, to[0], e))
        return -1;
    if (p->o.region == REGION_HEAD && !eager)
        return check_best(p, *to[0], e);
    const struct held *pages[2] = {&p->k, &p->v};
    for (int i = 1; i < out->outputs; i++) {
        int r = fetch_pages(p, pages[i - 1], to[i], e);
        if (r > 0)
            err_set(e, "wrote %c of a position that is not the step's", i == 1 ? 'k' : 'v');
        if (r != 0)
            return r;
    }
    return 0;
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
    struct oracle_product_args a = {f64(&p->in64), m.data, to, p->s.m, m.rows, m.cols};
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
                                  p->b->lab.block.position,
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
    const struct step_block *k = &p->b->lab.block;
    struct oracle_attn_args a = {(float *)(void *)p->in.data,
                                 p->k.data,
                                 p->v.data,
                                 k->position,
                                 k->pages_at,
                                 k->page_table,
                                 f64(&p->out64),
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
        return rows64(p, &p->x, p->b->on.final_norm, p->b->lab.block.row, s->hidden, e) ||
               product64(p, f64(&p->out64), e);
    default:
        return rows64(p, &p->in, NULL, NULL, case_matrix(p).cols, e) ||
               product64(p, f64(&p->raw64), e) || finish64(p, &p->x, e);
    }
}

/* Rows of all outputs lie side by side: q, k, v in attn_in, one elsewhere. */
static int fetch_truth(struct device_probe *p, int content, struct device_outcome *out,
                       struct err *e)
{
    size_t m = (size_t)p->s.m, all = 0, at = 0;
    for (int i = 0; i < out->outputs; i++)
        all += (size_t)out->output[i].cols;
    double *rows = xmalloc(m * all * sizeof *rows);
    cudaError_t code =
        cudaMemcpy(rows, p->out64.data, m * all * sizeof *rows, cudaMemcpyDeviceToHost);
    for (int i = 0; i < out->outputs && !code; i++) {
        size_t cols = (size_t)out->output[i].cols;
        double *to = out->output[i].truth[content] = xmalloc(m * cols * sizeof *to);
        for (size_t t = 0; t < m; t++)
            memcpy(to + t * cols, rows + t * all + at, cols * sizeof *to);
        at += cols;
    }
    free(rows);
    CU(code);
    return 0;
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
        CU(cudaMemsetAsync(p->k.data, 0xff, (size_t)(p->s.pages * page_bytes(p)), s));
    if (p->o.region == REGION_ATTN_IN)
        CU(cudaMemsetAsync(p->v.data, 0xff, (size_t)(p->s.pages * page_bytes(p)), s));
    CU(cudaMemsetAsync(p->y.data, 0xff, (size_t)p->y.bytes, s));
    return 0;
}

int outcome_reference(struct device_probe *p, int content, struct device_outcome *out,
                      struct err *e)
{
    struct walk w;
    struct choice choice;
    if (case_stage(p, content, e) || restore_inputs(p, e))
        return -1;
    case_walk(p, &w, &choice);
    if (eager_region(&w, p->o.region, p->layer, e) || run_truth(p, e) ||
        probe_wait(p, 20, "eager and the oracle", e) != DEVICE_OK ||
        outcome_fetch(p, content, true, out, e))
        return -1;
    return fetch_truth(p, content, out, e);
}
