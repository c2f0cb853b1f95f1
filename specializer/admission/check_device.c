/* SPDX-License-Identifier: Apache-2.0 */
/* check_device.c - cases to the device, outcomes to the comparator.
 *
 * The device needs memory for what the region reads and no more: the server it shares the GPU with
 * has planned for the rest. So the model is cut down first: the layers that captures came from (at
 * most three), of them the region's own matrices, and a vocabulary only for the head. Where there
 * is no model file (random weights), the same shape is drawn again; captured inputs do not care
 * which weights they meet.
 *
 * Every element of every row is judged against the truth, which a device computes in no time. What
 * costs time is looking at it here, so cases stop when this many values have been seen.
 */
#include "specializer/admission/check_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 3,
    SMALL_VOCAB = 64,
    CASES_LEAST = 6,
    CAPTURED_PAGES = 2048,
    BATCH = 32,
    ROWS_SEEN = 64 /* of a wider step the other rows are copies of these */
};
static const double values_wanted = 8e7; /* outputs compared in one admission */
/* Eager rounds activations to bf16. Farther from the oracle than this, one of the two is broken. */
static const double eager_most = 0.1;

/* ---- the model, cut down -------------------------------------------------------------------- */

struct cut {
    struct model view;
    struct layer layer[LAYERS];
    int32_t from[LAYERS]; /* which layer of the model it is */
    int32_t layers;
};

static void forget(struct weight *w, bool needed)
{
    if (!needed)
        w->rows = 0;
}

static void cut_layer(struct layer *l, enum region r)
{
    forget(&l->wq, r == REGION_ATTN_IN);
    forget(&l->wk, r == REGION_ATTN_IN);
    forget(&l->wv, r == REGION_ATTN_IN);
    forget(&l->wo, r == REGION_ATTN_OUT);
    forget(&l->gate, r == REGION_MLP_IN);
    forget(&l->up, r == REGION_MLP_IN);
    forget(&l->down, r == REGION_MLP_OUT);
    if (r != REGION_ATTN_IN)
        l->bq = l->bk = l->bv = NULL;
}

static void add_layer(struct cut *cut, const struct model *m, int32_t layer)
{
    for (int32_t i = 0; i < cut->layers; i++)
        if (cut->from[i] == layer)
            return;
    if (cut->layers == LAYERS || layer < 0 || layer >= m->shape.layers)
        return;
    cut->from[cut->layers] = layer;
    cut->layer[cut->layers++] = m->layer[layer];
}

/* One layer in the model's shape, with a vocabulary only for the head. */
static const struct model *draw(const struct check_device_request *q)
{
    struct drawn_model *d = q->drawn;
    struct model_shape shape = q->shape;
    uint64_t seed = q->check.seed + 1;
    shape.layers = 1;
    shape.tied_head = true;
    shape.vocab = q->check.range.region == REGION_HEAD ? shape.vocab : SMALL_VOCAB;
    if (d->model && d->seed == seed && d->type == q->type &&
        d->model->own_formats == q->own_formats && memcmp(&d->shape, &shape, sizeof shape) == 0)
        return d->model;
    model_close(d->model);
    d->model = model_random(&shape, q->type ? q->type : DTYPE_BF16, seed);
    d->shape = shape;
    d->type = q->type;
    if (d->model)
        d->model->own_formats = q->own_formats;
    d->seed = seed;
    return d->model;
}

/* Layers of the file, or of a model drawn in the file's shape. */
static int cut_open(struct cut *cut, const struct check_device_request *q, struct err *err)
{
    enum region r = q->check.range.region;
    const struct model *m = q->check.model ? q->check.model : draw(q);
    memset(cut, 0, sizeof *cut);
    if (!m)
        return err_set(err, "a model of this shape cannot be drawn");
    for (int i = 0; i < q->check.captures && q->check.model; i++)
        add_layer(cut, m, q->check.captured[i]->layer);
    const struct format_class *formats = q->check.model ? q->check.range.formats : NULL;
    int32_t layers = class_layers(formats, r, m->shape.layers);
    add_layer(cut, m, class_layer(formats, 0));
    add_layer(cut, m, class_layer(formats, layers / 2));
    cut->view = *m;
    cut->view.layer = cut->layer;
    cut->view.shape.layers = cut->layers;
    for (int32_t i = 0; i < cut->layers; i++)
        cut_layer(&cut->layer[i], r);
    if (r == REGION_HEAD)
        cut->view.embed = m->head;
    else
        cut->view.embed.rows = cut->view.shape.vocab =
            m->shape.vocab < SMALL_VOCAB ? m->shape.vocab : SMALL_VOCAB;
    cut->view.head = cut->view.embed;
    cut->view.shape.tied_head = true;
    return 0;
}

static int32_t cut_index(const struct cut *cut, int32_t layer)
{
    for (int32_t i = 0; i < cut->layers; i++)
        if (cut->from[i] == layer)
            return i;
    return 0;
}

/* ---- cases ---------------------------------------------------------------------------------- */

struct check {
    const struct check_device_request *q;
    struct check_result *result;
    struct cut cut;
    struct planned plan[PLAN_MAX];
    const struct capture *captured[PLAN_MAX];
    int32_t plans, captures;
};

static int32_t columns(const struct model_shape *s, enum region r)
{
    switch (r) {
    case REGION_ATTN_IN:
        return (s->heads + 2 * s->kv_heads) * s->head_dim;
    case REGION_ATTN:
        return s->heads * s->head_dim;
    case REGION_MLP_IN:
        return s->ffn;
    case REGION_HEAD:
        return s->vocab;
    default:
        return s->hidden;
    }
}

/* The most telling cases that there is time to look at. */
static void trim(struct check *k)
{
    double seen = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < k->plans; i++) {
        const struct planned *p = &k->plan[i];
        double contents = p->capture ? 1 : 2;
        bool all = p->shape.m < ROWS_SEEN || p->shape.region == REGION_ATTN;
        int32_t rows = all ? p->shape.m : ROWS_SEEN;
        seen += contents * rows * columns(&k->cut.view.shape, p->shape.region);
        if (kept < CASES_LEAST || seen < values_wanted)
            k->plan[kept++] = *p;
    }
    k->plans = kept;
}

static int32_t highest_position(const struct check *k)
{
    int32_t most = k->q->check.range.m_to;
    for (int32_t i = 0; i < k->plans; i++) {
        const struct planned *p = &k->plan[i];
        bool positions = p->shape.region == REGION_ATTN_IN;
        bool prompt =
            positions && p->shape.sequences == 1; /* goes on beyond the rows that are seen */
        int32_t end = p->shape.context + (prompt ? k->q->check.range.m_to : 0);
        if (positions && end > most)
            most = end;
        for (int32_t t = 0; positions && p->capture && t < p->capture->m; t++)
            if (p->capture->position && p->capture->position[t] > most)
                most = p->capture->position[t];
    }
    return most + 1;
}

static bool exact_region(enum region r)
{
    return r == REGION_ATTN_OUT || r == REGION_MLP_OUT;
}

static int compare_case(struct check *k, const struct planned *p, const struct device_outcome *out,
                        struct err *err)
{
    struct comparison *j = &k->result->comparison;
    struct rule rule = k->q->check.rule;
    double before = j->ratio;
    rule.exact = p->fill == FILL_BITS && p->random_params && !p->capture &&
                 exact_region(p->shape.region) && rule.precision == PRECISION_F32;
    for (int c = 0; c < out->contents; c++)
        for (int i = 0; i < out->outputs; i++) {
            struct outcome o = {out->output[i].rows,     out->output[i].cols,
                                out->output[i].own[c],   out->output[i].eager[c],
                                out->output[i].truth[c], out->output[i].scores[c]};
            if (compare(j, &rule, &o, err) == 0)
                continue;
            if (out->outputs > 1)
                err_prefix(err, "output %c", "qkv"[i]);
            snprintf(k->result->wrong, sizeof k->result->wrong, "%s", p->label);
            return err_prefix(err, "%s", p->label);
        }
    if (j->ratio > before)
        snprintf(k->result->worst, sizeof k->result->worst, "%s", p->label);
    return 0;
}

static void outcome_free(struct device_outcome *out)
{
    for (int i = 0; i < 3; i++)
        for (int n = 0; n < 2; n++) {
            free(out->output[i].own[n]);
            free(out->output[i].eager[n]);
            free(out->output[i].truth[n]);
            free(out->output[i].scores[n]);
        }
}

static struct device_case case_of(const struct check *k, const struct planned *p, int32_t index)
{
    struct device_case c = {.shape = p->shape,
                            .fill = p->fill,
                            .random_params = p->random_params,
                            .capture = p->capture,
                            .seed = k->q->check.seed + 2 * (uint64_t)index + 1};
    c.shape.layer = p->capture ? cut_index(&k->cut, p->shape.layer) : p->shape.layer;
    return c;
}

/* Judges what came of plan[at ..]: a case that went wrong is the last. */
static int compare_batch(struct check *k, int32_t at, const struct device_outcome *out, int done,
                         struct err *err)
{
    const struct comparison *j = &k->result->comparison;
    int rc = 0;
    for (int i = 0; i < done && rc == 0; i++) {
        const struct planned *p = &k->plan[at + i];
        double before = j->eager_rms;
        rc = compare_case(k, p, &out[i], err);
        k->result->runs += out[i].runs;
        k->result->cases++;
        if (p->fill == FILL_NORMAL && !p->capture && j->eager_rms > before &&
            j->eager_rms > eager_most) {
            err_set(err, "%s: eager is %.2g from the oracle", p->label, j->eager_rms);
            return 1;
        }
    }
    return rc;
}

/* The next cases, as many as there is a slice for; *at: the first that has not run. */
static int run_batch(struct check *k, struct device_probe *device, int32_t *at, bool *spent,
                     struct err *err)
{
    struct device_case c[BATCH];
    struct device_outcome out[BATCH];
    struct err why = {""};
    int n = k->plans - *at < BATCH ? k->plans - *at : BATCH, done = 0, failed = 0;
    for (int i = 0; i < n; i++)
        c[i] = case_of(k, &k->plan[*at + i], *at + i);
    enum device_verdict v = k->q->device->run(device, c, n, out, &done, &failed, &why);
    *spent = v != DEVICE_OK;
    int rc = compare_batch(k, *at, out, done, err);
    if (rc == 0 && v != DEVICE_OK) {
        rc = v == DEVICE_FAULT ? -1 : 1;
        k->result->cases++;
        *err = why;
        err_prefix(err, "%s", k->plan[*at + failed].label);
    }
    *spent |= rc > 0;
    for (int i = 0; i < n; i++)
        outcome_free(&out[i]);
    *at += done;
    return rc;
}

static int run_cases(struct check *k, bool *spent, struct err *err)
{
    const struct check_range *range = &k->q->check.range;
    const struct device_probe_ops *ops = k->q->device;
    struct device_probe_options o = {.model = &k->cut.view,
                                     .whole = &k->q->shape,
                                     .object = k->q->check.object,
                                     .region = range->region,
                                     .m = range->m_to,
                                     .context = range->context,
                                     .positions = highest_position(k)};
    enum device_verdict verdict = DEVICE_ERROR;
    struct device_probe *device = ops->open(k->q->session, &o, &verdict, err);
    *spent = !device && verdict == DEVICE_ERROR;
    if (!device)
        return verdict == DEVICE_FAULT ? -1 : 1;
    int rc = 0;
    for (int32_t at = 0; rc == 0 && at < k->plans;)
        rc = run_batch(k, device, &at, spent, err);
    if (!*spent) { /* also after wrong numbers: the next kernel wants to find things in order */
        struct err why;
        verdict = ops->finish(device, &why);
        *spent = verdict != DEVICE_OK;
        if (*spent && rc == 0) {
            rc = verdict == DEVICE_FAULT ? -1 : 1;
            *err = why;
        }
    }
    ops->close(device, !*spent);
    return rc;
}

/* Kernels that ranks run together need no model, and all that is asked of them are bits. */
static int check_ranks(const struct check_device_request *q, struct check_result *result,
                       bool *spent, struct err *err)
{
    const struct check_request *c = &q->check;
    struct device_reduce of = {.object = c->object,
                               .world = c->ranks,
                               .hidden = q->shape.hidden,
                               .m_from = c->range.m_from,
                               .m_to = c->range.m_to,
                               .full = c->full,
                               .seed = c->seed};
    if (!q->device->reduce)
        return err_set(err, "this device has no probe for kernels of reduce"), 1;
    enum device_verdict v = q->device->reduce(q->session, &of, &result->runs, spent, err);
    result->cases = result->runs;
    result->comparison.bit_equal = v == DEVICE_OK;
    return v == DEVICE_OK ? 0 : v == DEVICE_FAULT ? -1 : 1;
}

int check_device(const struct check_device_request *q, struct check_result *result, bool *spent,
                 struct err *err)
{
    struct check *k = xcalloc(1, sizeof *k);
    const struct check_request *c = &q->check;
    k->q = q;
    k->result = result;
    *spent = false;
    memset(result, 0, sizeof *result);
    comparison_start(&result->comparison);
    if (c->range.region == REGION_REDUCE) {
        free(k);
        return check_ranks(q, result, spent, err);
    }
    for (int i = 0; i < c->captures && k->captures < PLAN_MAX; i++)
        if (c->captured[i]->pages <= CAPTURED_PAGES)
            k->captured[k->captures++] = c->captured[i];
    int rc = cut_open(&k->cut, q, err) == 0 ? 0 : 1;
    if (rc == 0) {
        struct check_range cut = c->range;
        cut.formats = NULL; /* the layers that are left are all of the slot's */
        k->plans =
            check_plan(&k->cut.view, &cut, k->captured, k->captures, c->full, c->risk, k->plan);
        trim(k);
        rc = run_cases(k, spent, err);
    }
    free(k);
    return rc;
}
