/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - the step as a table, and what each region must cost.
 *
 * A decoder-only transformer is the same five regions once a layer, between the embedding and the
 * head. What a region must move and compute follows from the model's shape alone: every weight
 * once, its activations in and out (float), and the keys and values it appends or reads. These are
 * lower bounds - a kernel that moves more is slower than it must be, one that is timed faster than
 * they allow was measured wrongly.
 */
#include "engine/plan.h"

#include <stdlib.h>
#include <string.h>

#include "config/table.h"
#include "engine/quant.h"
#include "kernels/bricks.h"

/* While attention runs, attn_out's first loads are on their way already and are most of what it
 * reads, so what may be fetched then is the matrix after that. */
static const struct region_info info[] = {
    [REGION_EMBED] = {"embed", .once = true, .x = 0, .y = 0, .ahead = 1},
    [REGION_ATTN_IN] = {"attn_in", .matrix = true, .x = 0, .y = 1, .ahead = 1},
    [REGION_ATTN] = {"attn", .x = 0, .y = 1, .ahead = 2, .feeds = REGION_ATTN_OUT},
    [REGION_ATTN_OUT] = {"attn_out", .matrix = true, .x = 0, .y = 1, .ahead = 1},
    [REGION_MLP_IN] = {"mlp_in", .matrix = true, .x = 1, .y = 0, .ahead = 1,
                       .feeds = REGION_MLP_OUT},
    [REGION_MLP_OUT] = {"mlp_out", .matrix = true, .x = 1, .y = 0, .ahead = 1},
    [REGION_HEAD] = {"head", .once = true, .rows = true, .matrix = true, .x = 0, .y = 0},
    [REGION_MLP] = {"mlp", .matrix = true, .x = 1, .y = 0, .ahead = 1, .parts = 2, .m_most = 16,
                    .part = {REGION_MLP_IN, REGION_MLP_OUT}},
    [REGION_REDUCE] = {"reduce", .twice = true},
    [REGION_GATHER] = {"gather", .once = true, .rows = true},
};
EVERY_ROW(info, REGION_PLANNED);

static const enum region layer_regions[] = {REGION_ATTN_IN, REGION_ATTN, REGION_ATTN_OUT,
                                            REGION_MLP_IN, REGION_MLP_OUT};
enum { PER_LAYER = sizeof layer_regions / sizeof *layer_regions };

static void add_node(struct plan *p, enum region r, int32_t layer, enum region of)
{
    p->node[p->nodes++] = (struct plan_node){r, layer, of};
}

struct plan *plan_build_ranks(const struct model_shape *shape, int32_t world)
{
    const enum region gather = (enum region)REGION_GATHER;
    struct plan *p = xmalloc(sizeof *p);
    p->nodes = 0;
    p->node = xcalloc((size_t)shape->layers * (PER_LAYER + 2) + 3, sizeof *p->node);
    add_node(p, REGION_EMBED, 0, REGION_EMBED);
    for (int l = 0; l < shape->layers; l++)
        for (int i = 0; i < PER_LAYER; i++) {
            enum region r = layer_regions[i];
            add_node(p, r, l, r);
            if (world > 1 && (r == REGION_ATTN_OUT || r == REGION_MLP_OUT))
                add_node(p, REGION_REDUCE, l, r);
        }
    add_node(p, REGION_HEAD, 0, REGION_HEAD);
    if (world > 1)
        add_node(p, gather, 0, REGION_HEAD);
    return p;
}

struct plan *plan_build(const struct model_shape *shape)
{
    return plan_build_ranks(shape, 1);
}

void plan_free(struct plan *p)
{
    if (p)
        free(p->node);
    free(p);
}

/* The fused region in `whole` that stands for node i and what follows, or the node's own region. */
static enum region spanned(const struct plan *p, int32_t i, uint32_t whole)
{
    for (int r = REGION_COUNT; r < REGION_LOCAL; r++) {
        bool here = (whole >> r & 1) && i + info[r].parts <= p->nodes;
        for (int k = 0; here && k < info[r].parts; k++)
            here = p->node[i + k].region == info[r].part[k] &&
                   p->node[i + k].layer == p->node[i].layer;
        if (here)
            return (enum region)r;
    }
    return p->node[i].region;
}

int plan_walk(const struct plan *p, int32_t rows, uint32_t whole, plan_visit *visit, void *ctx,
              struct err *e)
{
    int rc = 0;
    for (int32_t i = 0; i < p->nodes && rc == 0;) {
        struct plan_node n = {spanned(p, i, whole), p->node[i].layer, p->node[i].of};
        i += info[n.region].parts ? info[n.region].parts : 1;
        if (rows > 0 || !info[n.region].rows)
            rc = visit(ctx, &n, e);
    }
    return rc;
}

/* Begins where the node is in a plan as plan_build() makes it, so it is found at once there, and
 * soon in any other. */
int32_t plan_at(const struct plan *p, enum region r, int32_t layer)
{
    int32_t from = 1 + (info[r].once ? 0 : layer * PER_LAYER), nodes = p ? p->nodes : 0;
    for (int32_t i = 0; i < nodes; i++) {
        int32_t at = (from + i) % nodes;
        if (p->node[at].region == r && (info[r].once || p->node[at].layer == layer))
            return at;
    }
    return -1;
}

const struct plan_node *plan_ahead(const struct plan *p, enum region r, int32_t layer)
{
    int32_t at = plan_at(p, r, layer), left = info[r].ahead;
    if (at < 0 || left == 0)
        return NULL;
    while (++at < p->nodes)
        if (info[p->node[at].region].matrix && --left == 0)
            return &p->node[at];
    return NULL;
}

const struct region_info *region_info(enum region r)
{
    return &info[r];
}

const char *region_name(enum region r)
{
    return info[r].name;
}

int region_parse(const char *name)
{
    for (int r = 0; r < REGION_NODES; r++)
        if (strcmp(info[r].name, name) == 0)
            return r;
    return -1;
}

int32_t region_runs(enum region r, int32_t layers)
{
    return info[r].once ? 1 : info[r].twice ? 2 * layers : layers;
}

int32_t plan_node_turn(const struct plan_node *n)
{
    return n->region == REGION_REDUCE && n->of == REGION_MLP_OUT;
}

int32_t region_m(enum region r, int32_t m, int32_t rows)
{
    return info[r].rows ? rows : m;
}

bool region_fused(enum region r, int32_t m)
{
    return info[r].parts > 0 && m <= info[r].m_most;
}

static int64_t weight_bytes(const struct weight *w)
{
    return dtype_bytes((enum dtype)w->type, (int64_t)w->rows * w->cols);
}

/* Multiply-adds of one token through `w`, as FLOPs. */
static int64_t linear_flops(const struct weight *w)
{
    return 2 * (int64_t)w->rows * w->cols;
}

static void add_linear(struct region_cost *c, const struct weight *w, int64_t m)
{
    c->weight_bytes += weight_bytes(w);
    c->weights += (int64_t)w->rows * w->cols;
    c->flops += linear_flops(w) * m;
}

/* Keys and values are read once a sequence (a chunk's tokens share them). Scores and the weighted
 * sum are 4 FLOPs a query head, dimension and position; a chunk's tokens see, on average, half the
 * chunk less than its last one does. */
static void add_attention(struct region_cost *c, const struct model_shape *s, int64_t m,
                          int64_t sequences, int64_t context)
{
    c->kv_bytes = sequences * context * 2 * s->kv_heads * s->head_dim * 4;
    int64_t chunk = sequences > 0 ? m / sequences : m;
    int64_t seen = context - (chunk > 0 ? (chunk - 1) / 2 : 0);
    c->flops = 4 * m * (seen > 0 ? seen : 0) * s->heads * s->head_dim;
    c->activation_bytes = 2 * m * s->heads * s->head_dim * 4;
}

/* The one format of up to three matrices, if it is kept. */
static enum dtype kept_type(const struct model *model, const struct weight *a,
                            const struct weight *b, const struct weight *c)
{
    bool same = a->type == b->type && a->type == c->type;
    bool kept = brick_bytes(a->type) > 0 && !(a->type == DTYPE_F8 && model->fine_scales);
    return same && kept ? (enum dtype)a->type : DTYPE_BF16;
}

static enum dtype own_type(const struct model *model, enum region r, int layer)
{
    const struct layer *l = &model->layer[layer];
    switch (r) {
    case REGION_EMBED:
        return kept_type(model, &model->embed, &model->embed, &model->embed);
    case REGION_ATTN_IN:
        return kept_type(model, &l->wq, &l->wk, &l->wv);
    case REGION_ATTN_OUT:
        return kept_type(model, &l->wo, &l->wo, &l->wo);
    case REGION_MLP_IN:
        return kept_type(model, &l->gate, &l->gate, &l->up);
    case REGION_MLP_OUT:
        return kept_type(model, &l->down, &l->down, &l->down);
    case REGION_HEAD:
        return kept_type(model, &model->head, &model->head, &model->head);
    default:
        return DTYPE_BF16;
    }
}

int device_zone(int m)
{
    return (m > OWN_MOST) + (m > E4M3_OVER);
}

int device_zone_from(int zone)
{
    return zone == 0 ? 1 : zone == 1 ? OWN_MOST + 1 : E4M3_OVER + 1;
}

bool device_reads_copy(const struct model *model, enum dtype own, int m)
{
    return m > OWN_MOST && !(m > E4M3_OVER && model->e4m3_products && own == DTYPE_F8);
}

bool device_copied(const struct model *model, enum region r, int layer)
{
    return model->own_formats && model->bf16_copies && r != REGION_EMBED &&
           own_type(model, r, layer) != DTYPE_BF16;
}

enum dtype device_type(const struct model *model, enum region r, int layer, int m)
{
    enum dtype own = model->own_formats ? own_type(model, r, layer) : DTYPE_BF16;
    bool copy = device_copied(model, r, layer) && device_reads_copy(model, own, m);
    return copy ? DTYPE_BF16 : own;
}

struct region_cost plan_cost(const struct model *model, enum region r, int layer, int m,
                             int sequences, int64_t context, int logits_rows)
{
    const struct model_shape *s = &model->shape;
    const struct layer *l = &model->layer[layer];
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    int64_t rows = logits_rows;
    int width = r == REGION_HEAD ? logits_rows : m;
    int brick = brick_bytes((int)device_type(model, r, layer, width));
    struct region_cost c = {.kept_element = (double)brick / (BRICK_ROWS * BRICK_COLS)};
    switch (r) {
    case REGION_EMBED:
        c.weight_bytes = m * dtype_bytes((enum dtype)model->embed.type, s->hidden);
        c.weights = (int64_t)m * s->hidden;
        c.activation_bytes = (int64_t)m * s->hidden * 4;
        break;
    case REGION_ATTN_IN:
        add_linear(&c, &l->wq, m);
        add_linear(&c, &l->wk, m);
        add_linear(&c, &l->wv, m);
        c.activation_bytes = m * (s->hidden + q) * 4;
        c.kv_bytes = m * 2 * kv * 4;
        break;
    case REGION_ATTN:
        add_attention(&c, s, m, sequences, context);
        break;
    case REGION_ATTN_OUT:
        add_linear(&c, &l->wo, m);
        c.activation_bytes = m * (q + 2 * (int64_t)s->hidden) * 4;
        break;
    case REGION_MLP_IN:
        add_linear(&c, &l->gate, m);
        add_linear(&c, &l->up, m);
        c.activation_bytes = m * ((int64_t)s->hidden + s->ffn) * 4;
        break;
    case REGION_MLP_OUT:
        add_linear(&c, &l->down, m);
        c.activation_bytes = m * ((int64_t)s->ffn + 2 * s->hidden) * 4;
        break;
    case REGION_HEAD:
        add_linear(&c, &model->head, rows);
        c.activation_bytes = rows * ((int64_t)s->hidden + model->head.rows) * 4;
        break;
    case REGION_MLP: /* what lies between its parts need not be moved */
        add_linear(&c, &l->gate, m);
        add_linear(&c, &l->up, m);
        add_linear(&c, &l->down, m);
        c.activation_bytes = m * 2 * (int64_t)s->hidden * 4;
        break;
    case REGION_REDUCE: /* each rank's numbers and the residual are read, the result is written */
        c.activation_bytes = m * (model->shard.world + 2) * (int64_t)s->hidden * 4;
        c.flops = m * model->shard.world * (int64_t)s->hidden;
        break;
    }
    return c;
}

int64_t region_cost_bytes(const struct region_cost *c)
{
    return c->weight_bytes + c->activation_bytes + c->kv_bytes;
}

double machine_weight_bytes(const struct machine *machine, const struct region_cost *c)
{
    if (!machine->weight_element)
        return (double)c->weight_bytes;
    double element = c->kept_element > 0 ? c->kept_element : machine->weight_element;
    return (double)c->weights * element;
}

double machine_bytes(const struct machine *machine, const struct region_cost *c)
{
    int64_t kv = machine->kv_element ? c->kv_bytes / 4 * machine->kv_element : c->kv_bytes;
    return machine_weight_bytes(machine, c) + (double)(c->activation_bytes + kv);
}

double roofline_s(const struct machine *machine, const struct region_cost *c)
{
    double bytes = machine_bytes(machine, c) / machine->read_bandwidth;
    double flops = (double)c->flops / machine->peak_flops;
    return bytes > flops ? bytes : flops;
}
