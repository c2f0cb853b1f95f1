/* SPDX-License-Identifier: Apache-2.0 */
/* check_plan.c - edges first, then kinds of numbers, then the middle.
 *
 * Two well-chosen inputs find nearly everything (98 % of 7384 faults, arXiv 2609.22220); the rest
 * of the list is for the kernels that know which two. Every region gets the bucket's edges, every
 * fill, random parameters (no gain is 1) and real ones from several layers, and what was captured
 * from live traffic. What turns heads gets a prompt, too, whose tokens follow each other. Attention
 * gets the contexts around a page border, ragged batches, permuted pages, decode (a token a
 * sequence) and chunks (many tokens of one).
 */
#include "specializer/admission/check_plan.h"

#include <stdio.h>
#include <string.h>

#include "engine/plan.h"

enum { CAPTURES_MAX = 6 };

struct list {
    const struct model *model;
    const struct check_range *range;
    struct planned *out;
    int n, limit;
    bool spare;    /* random weights of the head are as many as all layers' together */
    int32_t layer; /* of the next case with real parameters, counted among the slot's */
};

double plan_row_work(const struct model *model, enum region r, int32_t context)
{
    struct region_cost c = plan_cost(model, r, 0, 1, 1, context > 0 ? context : 1, 1);
    return (double)c.flops / 2 + 1;
}

/* Walks through the slot's layers in large steps, so that few cases see far-apart ones. */
static int32_t next_layer(struct list *l)
{
    const struct check_range *range = l->range;
    int32_t n = class_layers(range->formats, range->region, l->model->shape.layers), at = l->layer;
    l->layer = (at + n / 3 + 1) % n;
    return class_layer(range->formats, at);
}

static void name(struct planned *p)
{
    int n = snprintf(p->label, sizeof p->label, "m=%d %s%s", p->shape.m,
                     p->capture ? "captured" : fill_name(p->fill),
                     p->random_params || p->capture ? "" : " real weights");
    if (p->shape.region == REGION_ATTN_IN && p->shape.sequences == 1 && p->shape.m > 1)
        snprintf(p->label + n, sizeof p->label - (size_t)n, ", one prompt");
    if (p->shape.region == REGION_ATTN)
        snprintf(p->label + n, sizeof p->label - (size_t)n, ", context %d x%d%s%s",
                 p->shape.context, p->shape.sequences, p->shape.ragged ? " ragged" : "",
                 p->shape.permuted_pages ? " permuted" : "");
}

static void add(struct list *l, struct case_shape shape, enum fill fill, bool random_params)
{
    if (l->n >= l->limit || shape.m < l->range->m_from || shape.m > l->range->m_to)
        return;
    struct planned p = {.shape = shape, .fill = fill, .random_params = random_params};
    p.shape.region = l->range->region;
    p.shape.layer = random_params ? class_layer(l->range->formats, 0) : next_layer(l);
    if (p.shape.sequences < 1)
        p.shape.sequences = 1;
    name(&p);
    for (int i = 0; i < l->n; i++) /* narrow buckets have few distinct edges */
        if (!l->out[i].capture && strcmp(l->out[i].label, p.label) == 0)
            return;
    l->out[l->n++] = p;
}

static void add_captures(struct list *l, const struct capture *const *captured, int captures)
{
    for (int i = 0; i < captures && i < CAPTURES_MAX && l->n < l->limit; i++) {
        const struct capture *c = captured[i];
        if (c->region != l->range->region || c->m < 1 || c->m > l->range->m_to)
            continue;
        struct planned *p = &l->out[l->n++];
        *p = (struct planned){.shape = {.region = c->region,
                                        .layer = c->layer,
                                        .m = c->m,
                                        .sequences = c->spans,
                                        .context = c->context},
                              .fill = FILL_NORMAL,
                              .capture = c};
        name(p);
    }
}

/* attn_in writes KV: the tokens lie in several sequences with permuted pages. */
static struct case_shape narrow(const struct list *l, int32_t m)
{
    struct case_shape s = {.m = m, .sequences = m > 2 ? m / 2 : m, .permuted_pages = true};
    s.context = 3 * KV_PAGE + 5;
    s.ragged = true;
    s.region = l->range->region;
    return s;
}

/* Tokens of one prompt, somewhere in it. */
static struct case_shape prompt(const struct list *l, int32_t m)
{
    struct case_shape s = narrow(l, m);
    int32_t most = l->model->shape.max_context, context = (m < 64 ? m : 64) + 7 * KV_PAGE + 3;
    s.sequences = 1;
    s.context = context < most ? context : most;
    return s;
}

static void plan_linear(struct list *l)
{
    int32_t hi = l->range->m_to, lo = l->range->m_from, middle = lo + (hi - lo) / 2;
    static const struct {
        enum fill fill;
        bool low_edge, random_params;
    } first[] = {
        {FILL_NORMAL, false, true},  {FILL_BITS, false, true},     {FILL_NORMAL, true, false},
        {FILL_OUTLIER, false, true}, {FILL_SHIFTED, false, false}, {FILL_LARGE, true, true},
        {FILL_SMALL, false, true},   {FILL_ZERO, true, true},      {FILL_DENORMAL, false, false},
    };
    bool spare = l->spare; /* once is enough: check_plan() has seen to it */
    if (l->range->region == REGION_ATTN_IN && hi > 2 && l->limit == PLAN_MAX)
        add(l, prompt(l, hi), FILL_NORMAL, !spare);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        add(l, narrow(l, first[i].low_edge ? lo : hi), first[i].fill,
            first[i].random_params && !spare);
    add(l, narrow(l, middle), FILL_NORMAL, !spare);
    add(l, narrow(l, hi - 1), FILL_OUTLIER, false);
    add(l, narrow(l, lo + 1), FILL_SHIFTED, !spare);
    add(l, narrow(l, lo), FILL_BITS, !spare);
    add(l, narrow(l, hi), FILL_NORMAL, false);
    add(l, narrow(l, hi), FILL_OUTLIER, false);
    for (int32_t m = lo; m <= hi && hi <= 64; m++)
        add(l, narrow(l, m), FILL_NORMAL, m % 2 && !spare);
}

static struct case_shape span_shape(int32_t m, int32_t sequences, int32_t context, bool ragged,
                                    bool permuted)
{
    return (struct case_shape){.m = m,
                               .sequences = sequences < m ? sequences : m,
                               .context = context,
                               .ragged = ragged,
                               .permuted_pages = permuted};
}

static void plan_attention(struct list *l)
{
    int32_t hi = l->range->m_to, lo = l->range->m_from, top = l->range->context;
    int32_t half = (hi + 1) / 2;
    static const int32_t border[] = {1, KV_PAGE - 1, KV_PAGE, KV_PAGE + 1};
    /* Attention has no parameters: "random" only keeps the layer at 0. */
    add(l, span_shape(hi, hi, top, true, true), FILL_NORMAL, true);
    for (int i = 0; i < 4; i++)
        if (border[i] <= top)
            add(l, span_shape(hi, hi, border[i], false, true), FILL_NORMAL, true);
    add(l, span_shape(hi, 1, top, false, true), FILL_NORMAL, true); /* the end of a long prompt */
    add(l, span_shape(hi, 1, hi, false, false), FILL_NORMAL, true); /* a prompt from its start */
    add(l, span_shape(hi, half, top - 1, true, true), FILL_OUTLIER, true);
    add(l, span_shape(lo, lo, top / 2 + 1, false, true), FILL_NORMAL, true);
    add(l, span_shape(lo, 1, top - 3, false, true), FILL_LARGE, true);
    add(l, span_shape(hi, hi, KV_PAGE * 3 + 7, true, true), FILL_SHIFTED, true);
    add(l, span_shape(hi, half, top, true, true), FILL_SMALL, true);
    add(l, span_shape(hi, hi, KV_PAGE * 2 - 1, true, true), FILL_LARGE, true);
    add(l, span_shape(hi, hi, KV_PAGE + 3, true, true), FILL_ZERO, true);
    add(l, span_shape(hi, hi, KV_PAGE * 4, true, true), FILL_BITS, true);
    add(l, span_shape(hi, hi, KV_PAGE + 9, true, false), FILL_DENORMAL, true);
    add(l, span_shape(lo + (hi - lo) / 2, 2, KV_PAGE * 5 + 1, true, true), FILL_NORMAL, true);
    for (int32_t m = lo; m <= hi && hi <= 64; m++)
        add(l, span_shape(m, (m + 2) / 3, KV_PAGE * 4 + m, true, true), FILL_NORMAL, true);
}

/* True if `p` is a case that a warning of these kinds is about. */
static bool at_risk(const struct planned *p, const struct check_range *range, unsigned risk)
{
    bool numeric = p->fill == FILL_OUTLIER || p->fill == FILL_LARGE || p->fill == FILL_SHIFTED ||
                   p->fill == FILL_SMALL;
    bool boundary = p->shape.m == range->m_from || p->shape.context % KV_PAGE <= 1 ||
                    p->shape.context % KV_PAGE == KV_PAGE - 1;
    bool shape = p->shape.ragged || (p->shape.m > range->m_from && p->shape.m < range->m_to);
    return p->capture || (risk & RISK_NUMERIC && numeric) || (risk & RISK_BOUNDARY && boundary) ||
           (risk & RISK_DYNAMIC_SHAPE && shape);
}

static void warned_first(struct list *l, unsigned risk)
{
    struct planned sorted[PLAN_MAX];
    int n = 0;
    for (int wanted = 1; wanted >= 0; wanted--)
        for (int i = 0; i < l->n; i++)
            if (at_risk(&l->out[i], l->range, risk) == wanted)
                sorted[n++] = l->out[i];
    memcpy(l->out, sorted, (size_t)n * sizeof *sorted);
}

int check_plan(const struct model *model, const struct check_range *range,
               const struct capture *const *captured, int captures, bool full, unsigned risk,
               struct planned out[PLAN_MAX])
{
    bool head = range->region == REGION_HEAD;
    struct list l = {.model = model, .range = range, .out = out, .limit = 1, .spare = head};
    add(&l,
        range->region == REGION_ATTN
            ? span_shape(range->m_to, range->m_to, range->context, true, true)
            : narrow(&l, range->m_to),
        FILL_NORMAL, full || !head);
    l.limit = full ? PLAN_MAX : head ? PLAN_SHORT_HEAD : PLAN_SHORT;
    add_captures(&l, captured, captures);
    if (range->region == REGION_ATTN)
        plan_attention(&l);
    else
        plan_linear(&l);
    if (risk)
        warned_first(&l, risk);
    return l.n;
}
