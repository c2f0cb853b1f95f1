/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.c - every region once more, as the formula says it, in double precision.
 *
 * This file is the definition of "right". It knows nothing of blocks, lanes, threads or pages
 * beyond what the argument structs say: a weight is dequant_row() of its row, a key is looked up
 * through the page table, a sum is a loop. Inputs are floats, everything between them and the
 * outputs is double, so the oracle's own error (about 1e-16 a term) is far below any kernel's.
 *
 * It is slow on purpose - a fraction of a ns a multiply-add, one dequantization of the weights -
 * and it must stay simple enough to be believed by reading it. Its loops are compiled for wider
 * registers, too, with the same bits (engine/wider.h).
 */
#include "engine/cpu/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/kv.h"
#include "engine/quant.h"
#include "engine/wider.h"

static double *rows_new(struct oracle_out *out, int i, int32_t rows, int32_t cols)
{
    double *v = xcalloc((size_t)rows * (size_t)cols + 1, sizeof *v);
    out->output[i].rows = rows;
    out->output[i].cols = cols;
    out->output[i].value = v;
    return v;
}

static void weight_row(const struct weight *w, int32_t row, float *dst)
{
    enum dtype t = (enum dtype)w->type;
    const char *data = w->data;
    dequant_row(t, data + row * dtype_bytes(t, w->cols), dst, w->cols);
}

/* Eight sums instead of one, or each addition would wait for the one before it: that loop is most
 * of what a probe does. */
static inline double dot(const double *x, const float *w, int32_t n)
{
    double part[8] = {0};
    int32_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int i = 0; i < 8; i++)
            part[i] += x[j + i] * (double)w[j + i];
    for (; j < n; j++)
        part[0] += x[j] * (double)w[j];
    return ((part[0] + part[1]) + (part[2] + part[3])) +
           ((part[4] + part[5]) + (part[6] + part[7]));
}

/* y[m, n] = sum_k x[m, k] w[n, k]; x is [m, w->cols], y [m, w->rows] */
FOR_WIDER_CORES static void linear(const struct weight *w, const double *x, int32_t m, double *y)
{
    int32_t k = w->cols;
    float *row = xmalloc((size_t)k * sizeof *row);
    for (int32_t n = 0; n < w->rows; n++) {
        weight_row(w, n, row);
        for (int32_t i = 0; i < m; i++)
            y[(int64_t)i * w->rows + n] = dot(x + (int64_t)i * k, row, k);
    }
    free(row);
}

static void rmsnorm(const float *x, const float *gain, int32_t n, float eps, double *out)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double r = 1 / sqrt(sum / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        out[i] = (double)x[i] * r * (double)gain[i];
}

/* The same in place for values that are doubles already (q and k heads). */
static void rmsnorm_head(double *x, const float *gain, int32_t n, float eps)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double r = 1 / sqrt(sum / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        x[i] *= r * (double)gain[i];
}

static double *norm_rows(const float *x, const float *gain, int32_t m, int32_t n, float eps)
{
    double *out = xmalloc((size_t)m * (size_t)n * sizeof *out + 1);
    for (int32_t i = 0; i < m; i++)
        rmsnorm(x + (int64_t)i * n, gain, n, eps, out + (int64_t)i * n);
    return out;
}

static void run_embed(const struct embed_args *a, struct oracle_out *out)
{
    int32_t hidden = a->table.cols;
    double *y = rows_new(out, 0, a->m, hidden);
    float *row = xmalloc((size_t)hidden * sizeof *row);
    for (int32_t i = 0; i < a->m; i++) {
        weight_row(&a->table, a->tokens[i], row);
        for (int32_t j = 0; j < hidden; j++)
            y[(int64_t)i * hidden + j] = (double)row[j];
    }
    free(row);
}

static void rope(const struct attn_in_args *a, double *head, int32_t position)
{
    int32_t half = a->head_dim / 2;
    const float *cs = a->rope_cos + (int64_t)position * half;
    const float *sn = a->rope_sin + (int64_t)position * half;
    for (int32_t i = 0; i < half; i++) {
        double *p = a->rope_interleaved ? head + 2 * i : head + i;
        double *q = a->rope_interleaved ? p + 1 : p + half;
        double x = *p, y = *q, c = (double)cs[i], s = (double)sn[i];
        *p = x * c - y * s;
        *q = y * c + x * s;
    }
}

/* One of the three projections; `gain` and `rotate` apply to q and k only. */
static void project(const struct attn_in_args *a, const double *n, const struct weight *w,
                    const float *bias, const float *gain, int rotate, struct oracle_out *out, int o)
{
    double *y = rows_new(out, o, a->m, w->rows);
    linear(w, n, a->m, y);
    for (int32_t i = 0; i < a->m; i++) {
        double *row = y + (int64_t)i * w->rows;
        for (int32_t j = 0; bias && j < w->rows; j++)
            row[j] += (double)bias[j];
        for (int32_t h = 0; rotate && h < w->rows / a->head_dim; h++) {
            if (gain)
                rmsnorm_head(row + h * a->head_dim, gain, a->head_dim, a->eps);
            rope(a, row + h * a->head_dim, a->position[i]);
        }
    }
}

static void run_attn_in(const struct attn_in_args *a, struct oracle_out *out)
{
    double *n = norm_rows(a->x, a->norm, a->m, a->wq.cols, a->eps);
    project(a, n, &a->wq, a->bq, a->q_norm, 1, out, 0);
    project(a, n, &a->wk, a->bk, a->k_norm, 1, out, 1);
    project(a, n, &a->wv, a->bv, NULL, 0, out, 2);
    free(n);
}

/* Offset of cache position `j` of a sequence in its layer's pages, for one kv head. */
static int64_t kv_offset(const struct attn_args *a, const struct span *s, int32_t j, int32_t kvh)
{
    int64_t page = a->page_table[s->pages_at + j / KV_PAGE];
    return ((page * a->kv_heads + kvh) * KV_PAGE + j % KV_PAGE) * a->head_dim;
}

/* head_dim floats from element `at` of pages on: where they are, or widened into `room`. */
static const float *row_at(const struct attn_args *a, bool bf16, const void *pages, int64_t at,
                           float *room)
{
    if (!bf16)
        return (const float *)pages + at;
    kv_read(true, pages, at, a->head_dim, room);
    return room;
}

/* `p` has room for n weights, `room` for a row. */
FOR_WIDER_CORES static void attend(const struct attn_args *a, bool bf16, const struct span *s,
                                   const float *q, int32_t kvh, int32_t n, double *p, float *room,
                                   double *out)
{
    double top = -HUGE_VAL, sum = 0;
    for (int32_t j = 0; j < n; j++) {
        const float *key = row_at(a, bf16, a->k_pages, kv_offset(a, s, j, kvh), room);
        double dot = 0;
        for (int32_t d = 0; d < a->head_dim; d++)
            dot += (double)q[d] * (double)key[d];
        p[j] = dot * (double)a->scale;
        top = fmax(top, p[j]);
    }
    for (int32_t j = 0; j < n; j++)
        sum += p[j] = exp(p[j] - top);
    for (int32_t j = 0; j < n; j++) {
        const float *value = row_at(a, bf16, a->v_pages, kv_offset(a, s, j, kvh), room);
        const double share = p[j] / sum; /* divided once: `out` might be `p` to a compiler */
        for (int32_t d = 0; d < a->head_dim; d++)
            out[d] += share * (double)value[d];
    }
}

static void run_attn(const struct attn_args *a, bool bf16, struct oracle_out *out)
{
    int32_t width = a->heads * a->head_dim;
    float *room = xmalloc((size_t)a->head_dim * sizeof *room);
    double *y = rows_new(out, 0, a->m, width);
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        double *p = xmalloc(((size_t)s->context + 1) * sizeof *p);
        for (int32_t t = 0; t < s->count; t++) {
            int64_t row = (int64_t)(s->first + t) * width;
            int32_t n = s->context - s->count + t + 1; /* causal: itself and what came before */
            for (int32_t h = 0; h < a->heads; h++)
                attend(a, bf16, s, a->q + row + h * a->head_dim, h / (a->heads / a->kv_heads), n, p,
                       room, y + row + h * a->head_dim);
        }
        free(p);
    }
    free(room);
}

static void run_out(const struct out_args *a, struct oracle_out *out)
{
    int64_t n = (int64_t)a->m * a->w.cols;
    double *in = xmalloc((size_t)n * sizeof *in + 1);
    double *y = rows_new(out, 0, a->m, a->w.rows);
    for (int64_t i = 0; i < n; i++)
        in[i] = (double)a->in[i];
    linear(&a->w, in, a->m, y);
    for (int64_t i = 0; i < (int64_t)a->m * a->w.rows; i++)
        y[i] += (double)a->x[i];
    free(in);
}

/* h [m, gate->rows] of n [m, gate->cols] */
static void gated(const struct weight *gate, const struct weight *up, const double *n, int32_t m,
                  double *h)
{
    int64_t count = (int64_t)m * gate->rows;
    double *u = xmalloc((size_t)count * sizeof *u + 1);
    linear(gate, n, m, h);
    linear(up, n, m, u);
    for (int64_t i = 0; i < count; i++)
        h[i] = h[i] / (1 + exp(-h[i])) * u[i];
    free(u);
}

static void run_mlp_in(const struct mlp_in_args *a, struct oracle_out *out)
{
    double *n = norm_rows(a->x, a->norm, a->m, a->gate.cols, a->eps);
    gated(&a->gate, &a->up, n, a->m, rows_new(out, 0, a->m, a->gate.rows));
    free(n);
}

static void run_mlp(const struct mlp_args *a, struct oracle_out *out)
{
    double *n = norm_rows(a->x, a->norm, a->m, a->gate.cols, a->eps);
    double *h = xmalloc((size_t)a->m * (size_t)a->gate.rows * sizeof *h + 1);
    double *y = rows_new(out, 0, a->m, a->down.rows);
    gated(&a->gate, &a->up, n, a->m, h);
    linear(&a->down, h, a->m, y);
    for (int64_t i = 0; i < (int64_t)a->m * a->down.rows; i++)
        y[i] += (double)a->x[i];
    free(h);
    free(n);
}

static void run_head(const struct head_args *a, struct oracle_out *out)
{
    int32_t hidden = a->w.cols;
    double *n = xmalloc((size_t)a->m * (size_t)hidden * sizeof *n + 1);
    for (int32_t i = 0; i < a->m; i++)
        rmsnorm(a->x + (int64_t)a->row[i] * hidden, a->norm, hidden, a->eps,
                n + (int64_t)i * hidden);
    linear(&a->w, n, a->m, rows_new(out, 0, a->m, a->w.rows));
    free(n);
}

void oracle_run(enum region r, const void *args, struct oracle_out *out)
{
    oracle_run_kv(r, false, args, out);
}

void oracle_run_kv(enum region r, bool bf16, const void *args, struct oracle_out *out)
{
    memset(out, 0, sizeof *out);
    out->outputs = r == REGION_ATTN_IN ? 3 : 1;
    switch (r) {
    case REGION_EMBED:
        run_embed(args, out);
        break;
    case REGION_ATTN_IN:
        run_attn_in(args, out);
        break;
    case REGION_ATTN:
        run_attn(args, bf16, out);
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        run_out(args, out);
        break;
    case REGION_MLP_IN:
        run_mlp_in(args, out);
        break;
    case REGION_HEAD:
        run_head(args, out);
        break;
    case REGION_MLP:
        run_mlp(args, out);
        break;
    case REGION_REDUCE: /* no rank's arguments say what others have; sums are compared bit by bit */
        out->outputs = 0;
        break;
    }
}

void oracle_free(struct oracle_out *out)
{
    for (int i = 0; i < 3; i++)
        free(out->output[i].value);
    memset(out, 0, sizeof *out);
}
