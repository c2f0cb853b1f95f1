/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c - the plan of a step, walked on one thread. */
#include "specializer/admission/forward.h"

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/eager.h"

struct forward {
    const struct model *model;
    struct plan *plan;
    int32_t sequences, length, seq_pages;
    int32_t m; /* most tokens of a step */
    const struct cpu_kernel *eager[REGION_LOCAL];
    const struct cpu_kernel *kernel; /* of region `own` in the layers of `formats`, or NULL */
    enum region own;
    const struct format_class *formats;
    uint32_t whole;     /* fused regions that run as one kernel */
    void *(*packed)[3]; /* [layers], of `own`, in `arena` */
    char *arena;
    bool by_rows; /* `kernel` gets one token at a time */
    struct team team;
    int64_t scratch_bytes;
    float *x, *y, *q, *a, *h, *cosine, *sine;
    float *logits;           /* [m, rows of the head] */
    char *k_pages, *v_pages; /* [layers, pages, kv_heads, KV_PAGE, head_dim] elements */
    int32_t *tokens, *position, *kv_at, *page_table, *row;
    struct span *span;
};

static void alone_barrier(const struct team *team)
{
    (void)team;
}

static float *floats(int64_t n)
{
    return xaligned((size_t)n * sizeof(float));
}

static int64_t layer_bytes(const struct forward *f)
{
    const struct model_shape *s = &f->model->shape;
    int64_t positions = (int64_t)f->sequences * f->seq_pages * KV_PAGE;
    return positions * s->kv_heads * s->head_dim * kv_element_bytes(s);
}

static void grow_scratch(struct forward *f, int64_t bytes)
{
    f->scratch_bytes = bytes > f->scratch_bytes ? bytes : f->scratch_bytes;
    free(f->team.scratch);
    f->team.scratch = xaligned((size_t)f->scratch_bytes + 64);
}

struct forward *forward_open(const struct model *model, int32_t sequences, int32_t length)
{
    const struct model_shape *s = &model->shape;
    struct forward *f = xcalloc(1, sizeof *f);
    int64_t m = f->m = sequences * length, width = (int64_t)s->heads * s->head_dim;
    f->model = model;
    f->plan = plan_build(s);
    f->sequences = sequences;
    f->length = length;
    f->seq_pages = (length + KV_PAGE - 1) / KV_PAGE;
    f->own = (enum region)REGION_NODES; /* none */
    f->x = floats(m * s->hidden);
    f->y = floats(m * s->hidden);
    f->q = floats(m * width);
    f->a = floats(m * width);
    f->h = floats(m * s->ffn);
    f->logits = floats(m * model->head.rows);
    f->cosine = floats((int64_t)length * s->head_dim / 2);
    f->sine = floats((int64_t)length * s->head_dim / 2);
    rope_tables(s, length, f->cosine, f->sine);
    f->k_pages = xaligned((size_t)(layer_bytes(f) * s->layers));
    f->v_pages = xaligned((size_t)(layer_bytes(f) * s->layers));
    f->tokens = xcalloc((size_t)m, sizeof *f->tokens);
    f->position = xcalloc((size_t)m, sizeof *f->position);
    f->kv_at = xcalloc((size_t)m, sizeof *f->kv_at);
    f->row = xcalloc((size_t)m, sizeof *f->row);
    f->page_table = xcalloc((size_t)sequences * (size_t)f->seq_pages, sizeof *f->page_table);
    f->span = xcalloc((size_t)sequences, sizeof *f->span);
    f->team = (struct team){0, 1, alone_barrier, NULL, NULL};
    for (int r = 0; r < REGION_LOCAL; r++) {
        f->eager[r] = eager_cpu_of((enum region)r, s->kv_bf16);
        for (int32_t i = 1; i <= f->m; i++)
            grow_scratch(f, f->eager[r]->scratch_bytes(i, 1));
    }
    return f;
}

void forward_close(struct forward *f)
{
    if (!f)
        return;
    void *all[] = {f->x,      f->y,    f->q,          f->a,       f->h,           f->logits,
                   f->cosine, f->sine, f->k_pages,    f->v_pages, f->tokens,      f->position,
                   f->kv_at,  f->row,  f->page_table, f->span,    f->team.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    plan_free(f->plan);
    free(f->packed);
    free(f->arena);
    free(f);
}

void forward_room(struct forward *f, const struct cpu_kernel *k, const struct format_class *formats,
                  const struct kernel_sizes *sizes)
{
    enum region r = (enum region)k->region;
    f->own = r;
    f->formats = formats;
    f->packed = xcalloc((size_t)f->model->shape.layers, sizeof *f->packed);
    char *at = f->arena = xaligned((size_t)sizes->packed_total + 64);
    for (int32_t n = 0; n < class_layers(formats, r, f->model->shape.layers); n++)
        for (int i = 0; i < 3; i++) {
            int32_t l = class_layer(formats, n);
            f->packed[l][i] = sizes->packed[l][i] > 0 ? at : NULL;
            at += sizes_lines(sizes->packed[l][i]);
        }
    grow_scratch(f, sizes->scratch);
}

void forward_by_rows(struct forward *f)
{
    f->by_rows = true;
}

void forward_use(struct forward *f, const struct cpu_kernel *k)
{
    enum region r = (enum region)k->region;
    for (int32_t n = 0; n < class_layers(f->formats, r, f->model->shape.layers); n++) {
        int32_t l = class_layer(f->formats, n);
        union region_args a;
        struct weight *w[3];
        bind_layer(f->model, r, l, &a);
        for (int i = 0, weights = bind_weights(&a, r, w); i < weights; i++)
            if (f->packed[l][i])
                k->pack(w[i], f->packed[l][i], 0, w[i]->rows);
    }
    f->kernel = k;
    if (region_info(r)->parts)
        f->whole |= 1u << r;
}

struct walk {
    struct forward *f;
    struct step_memory memory;
    bool stretch; /* one layer of those that follow each other with weights of the same formats */
};

/* Whether the node is one of those that run the kernel of forward_use(). */
static bool is_own(const struct forward *f, const struct plan_node *n)
{
    return f->kernel && n->region == f->own && class_has(f->formats, n->layer);
}

static void run_node(struct forward *f, const struct step_memory *s, const struct plan_node *n)
{
    union region_args a;
    struct weight *w[3];
    bind_node(f->model, s, n, &a);
    for (int i = 0, k = bind_weights(&a, n->region, w); is_own(f, n) && i < k; i++)
        w[i]->packed = f->packed[n->layer][i];
    (is_own(f, n) ? f->kernel : f->eager[n->region])->run(&a, &f->team);
}

/* What a step of token `i` alone would find, and where it would leave its results. */
static struct step_memory row_of(const struct forward *f, const struct step_memory *s, int32_t i,
                                 struct span *own)
{
    static const int32_t first;
    const struct model_shape *shape = &f->model->shape;
    int64_t hidden = (int64_t)i * shape->hidden,
            width = (int64_t)i * shape->heads * shape->head_dim;
    const struct span *of = s->span;
    while (i >= of->first + of->count)
        of++;
    *own = (struct span){0, 1, s->position[i] + 1, of->pages_at};
    struct step_memory row = *s;
    row.m = row.rows = row.spans = 1;
    row.tokens += i;
    row.position += i;
    row.kv_at += i;
    row.row = &first;
    row.span = own;
    row.x[0] += hidden;
    row.x[1] += hidden;
    row.q += width;
    row.a += width;
    row.h += (int64_t)i * shape->ffn;
    row.logits += (int64_t)i * f->model->head.rows;
    return row;
}

static bool like_the_layer_before(const struct model *model, const struct plan_node *n)
{
    union region_args a, b;
    struct weight *v[3], *w[3];
    if (n->layer == 0)
        return false;
    bind_layer(model, n->region, n->layer, &a);
    bind_layer(model, n->region, n->layer - 1, &b);
    bool like = true;
    int weights = bind_weights(&a, n->region, v);
    bind_weights(&b, n->region, w);
    for (int i = 0; i < weights; i++)
        like &= v[i]->type == w[i]->type;
    return like;
}

static int run(void *ctx, const struct plan_node *n, struct err *e)
{
    struct walk *walk = ctx;
    struct forward *f = walk->f;
    struct span own;
    (void)e;
    if (walk->stretch && like_the_layer_before(f->model, n))
        return 0;
    if (!is_own(f, n) || !f->by_rows) {
        run_node(f, &walk->memory, n);
        return 0;
    }
    for (int32_t i = 0; i < walk->memory.m; i++) {
        struct step_memory row = row_of(f, &walk->memory, i, &own);
        run_node(f, &row, n);
    }
    return 0;
}

/* For logits of all m tokens. */
static struct step_memory memory_of(const struct forward *f, int32_t m, int32_t spans)
{
    return (struct step_memory){.m = m,
                                .rows = m,
                                .spans = spans,
                                .tokens = f->tokens,
                                .position = f->position,
                                .kv_at = f->kv_at,
                                .row = f->row,
                                .page_table = f->page_table,
                                .span = f->span,
                                .rope_cos = f->cosine,
                                .rope_sin = f->sine,
                                .x = {f->x, f->y},
                                .q = f->q,
                                .a = f->a,
                                .h = f->h,
                                .logits = f->logits,
                                .k_pages = f->k_pages,
                                .v_pages = f->v_pages,
                                .layer_bytes = layer_bytes(f)};
}

/* Sequence s owns pages [s * seq_pages, (s + 1) * seq_pages). */
static int32_t lay_out(struct forward *f, const int32_t *token, int32_t first, int32_t count,
                       int32_t position, int32_t width)
{
    int32_t m = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t s = first + i;
        f->span[i] = (struct span){m, width, position + width, i * f->seq_pages};
        for (int32_t p = 0; p < f->seq_pages; p++)
            f->page_table[i * f->seq_pages + p] = s * f->seq_pages + p;
        for (int32_t p = position; p < position + width; p++, m++) {
            f->tokens[m] = token[s * f->length + p];
            f->position[m] = p;
            f->kv_at[m] = s * f->seq_pages * KV_PAGE + p;
            f->row[m] = m;
        }
    }
    return m;
}

void forward_stretch(struct forward *f, const int32_t *token, int32_t count, int32_t position,
                     int32_t width)
{
    int32_t m = lay_out(f, token, 0, count, position, width);
    struct walk walk = {f, memory_of(f, m, count), true};
    plan_walk(f->plan, m, f->whole, run, &walk, NULL);
}

void forward_step(struct forward *f, const int32_t *token, int32_t first, int32_t count,
                  int32_t position, int32_t width, float *logits)
{
    int32_t m = lay_out(f, token, first, count, position, width);
    struct walk walk = {f, memory_of(f, m, count), false};
    plan_walk(f->plan, m, f->whole, run, &walk, NULL);
    int64_t vocab = f->model->head.rows;
    for (int32_t i = 0; i < m; i++)
        memcpy(logits + ((int64_t)(first + i / width) * f->length + position + i % width) * vocab,
               f->logits + i * vocab, (size_t)vocab * sizeof *logits);
}
