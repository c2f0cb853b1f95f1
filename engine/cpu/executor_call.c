/* SPDX-License-Identifier: Apache-2.0 */
/* executor_call.c - one call of a kernel in its executor: copy in, hand over, copy out.
 *
 * Inputs are copied into the shared memory, `command` is raised, and the engine thread waits on
 * `done`. The process's team does the work on the same cores, so the engine thread gets out of its
 * way: it spins only where there are more cores than ranks, yields, and then sleeps. So do the
 * pool's workers; when they went on spinning, a call cost 25 us instead of 6 on two cores. Where
 * there is a core for every rank of the server and of all executors, engine and executor spin until
 * their turn comes.
 *
 * What could a hostile text do with that memory? Raise `done` too early, or never: the first gives
 * wrong numbers, the second is a hang. Write to outputs after they were taken: nobody reads them
 * any more. Forge its own state: then it is rolled back.
 */
#include <string.h>

#include "config/process.h"
#include "engine/cpu/executor_private.h"

enum { COPIES_MAX = 8 };
static const int64_t parallel_bytes = 128 << 10; /* of copies that are worth waking the pool */

/* ---- copies --------------------------------------------------------------------------------- */

/* `rows` of `bytes` each, one behind the other; those copied from may be picked by an index. */
struct copy {
    char *to;
    const char *from;
    int64_t rows, bytes;
    const int32_t *from_index; /* NULL: in order */
};

/* What one call copies one way. Keys and values besides: token i is at position i of the process's
 * own pages, and goes to kv_at[i]. */
struct copies {
    int n;
    int64_t bytes;
    struct copy copy[COPIES_MAX];
    const struct attn_in_args *kv; /* or NULL */
    const char *own[2];
    int32_t element; /* bytes of one of k and v */
};

static void add(struct copies *c, void *to, const void *from, int64_t rows, int64_t floats,
                const int32_t *from_index)
{
    int64_t bytes = floats * (int64_t)sizeof(float);
    c->copy[c->n++] = (struct copy){to, from, rows, bytes, from_index};
    c->bytes += rows * bytes;
}

static void copy_kv(const struct copies *c, int32_t from, int32_t to)
{
    const struct attn_in_args *a = c->kv;
    char *pages[2] = {a->k_pages, a->v_pages};
    for (int32_t i = from; i < to; i++)
        for (int64_t h = 0; h < a->kv_heads; h++) {
            int64_t here = ((i / KV_PAGE * a->kv_heads + h) * KV_PAGE + i % KV_PAGE) * a->head_dim;
            int64_t page = a->kv_at[i] / KV_PAGE, offset = a->kv_at[i] % KV_PAGE;
            int64_t there = ((page * a->kv_heads + h) * KV_PAGE + offset) * a->head_dim;
            for (int v = 0; v < 2; v++)
                memcpy(pages[v] + there * c->element, c->own[v] + here * c->element,
                       (size_t)(a->head_dim * c->element));
        }
}

static void copy_share(const void *args, const struct team *team)
{
    const struct copies *c = args;
    for (int i = 0; i < c->n; i++) {
        const struct copy *p = &c->copy[i];
        int64_t from = p->rows * team->rank / team->size,
                to = p->rows * (team->rank + 1) / team->size;
        if (!p->from_index && to > from)
            memcpy(p->to + from * p->bytes, p->from + from * p->bytes,
                   (size_t)((to - from) * p->bytes));
        for (int64_t r = from; p->from_index && r < to; r++)
            memcpy(p->to + r * p->bytes, p->from + p->from_index[r] * p->bytes, (size_t)p->bytes);
    }
    if (c->kv)
        copy_kv(c, (int32_t)((int64_t)c->kv->m * team->rank / team->size),
                (int32_t)((int64_t)c->kv->m * (team->rank + 1) / team->size));
}

static void copy_all(const struct copies *c, struct pool *pool)
{
    struct team alone = {.rank = 0, .size = 1};
    if (c->bytes > parallel_bytes)
        pool_run(pool, copy_share, c, 0);
    else
        copy_share(c, &alone);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static char *in_area(const struct executor *x, int64_t at)
{
    return (char *)x->control + at;
}

/* Where the process has the pages that args point to; false if it does not have them. */
static bool find_pages(const struct executor *x, const struct attn_args *a)
{
    for (int i = 0; i < EXECUTOR_PAGES; i++) {
        const char *base = x->pages[i].base, *k = a->k_pages, *v = a->v_pages;
        if (!base || k < base || v < base || k >= base + x->pages[i].bytes ||
            v >= base + x->pages[i].bytes)
            continue;
        x->control->call.pages = i;
        x->control->call.k_at = k - base;
        x->control->call.v_at = v - base;
        return true;
    }
    return false;
}

static int64_t table_used(const struct attn_args *a)
{
    int64_t used = 0;
    for (int32_t i = 0; i < a->spans; i++) {
        int64_t end = a->span[i].pages_at + (a->span[i].context + KV_PAGE - 1) / KV_PAGE;
        used = end > used ? end : used;
    }
    return used;
}

static const char *give_attn(const struct executor *x, const struct attn_args *a, struct copies *in)
{
    int64_t used = table_used(a), cols = (int64_t)a->heads * a->head_dim;
    if (!find_pages(x, a) || used > x->area.table_numbers)
        return "its keys and values are where it cannot see them";
    x->control->call.spans = a->spans;
    memcpy(in_area(x, x->area.span), a->span, (size_t)a->spans * sizeof *a->span);
    memcpy(in_area(x, x->area.table), a->page_table, (size_t)used * sizeof *a->page_table);
    add(in, in_area(x, x->area.in), a->q, a->m, cols, NULL);
    return NULL;
}

/* Inputs of a call. NULL, or why it cannot be made. */
static const char *give(const struct executor *x, const union region_args *args, struct copies *in)
{
    const struct model_shape *s = &x->shape;
    const struct area *at = &x->area;
    int64_t half = s->head_dim / 2, m = args->embed.m;
    switch (x->region) {
    case REGION_ATTN_IN:
        add(in, in_area(x, at->x), args->attn_in.x, m, s->hidden, NULL);
        add(in, in_area(x, at->cosine), args->attn_in.rope_cos, m, half, args->attn_in.position);
        add(in, in_area(x, at->sine), args->attn_in.rope_sin, m, half, args->attn_in.position);
        return NULL;
    case REGION_ATTN:
        return give_attn(x, &args->attn, in);
    case REGION_MLP_IN:
        add(in, in_area(x, at->x), args->mlp_in.x, m, s->hidden, NULL);
        return NULL;
    case REGION_HEAD:
        add(in, in_area(x, at->x), args->head.x, m, s->hidden, args->head.row);
        return NULL;
    default:
        add(in, in_area(x, at->in), args->out.in, m, args->out.w.cols, NULL);
        add(in, in_area(x, at->x), args->out.x, m, s->hidden, NULL);
        return NULL;
    }
}

static void take(const struct executor *x, const union region_args *args, struct copies *out)
{
    const struct model_shape *s = &x->shape;
    const char *own = in_area(x, x->area.out);
    int64_t m = args->embed.m;
    switch (x->region) {
    case REGION_ATTN_IN:
        add(out, args->attn_in.q, own, m, (int64_t)s->heads * s->head_dim, NULL);
        out->kv = &args->attn_in;
        out->own[0] = in_area(x, x->area.k);
        out->own[1] = in_area(x, x->area.v);
        out->element = kv_element_bytes(s);
        out->bytes += 2 * m * s->kv_heads * s->head_dim * out->element;
        break;
    case REGION_ATTN:
        add(out, args->attn.a, own, m, (int64_t)s->heads * s->head_dim, NULL);
        break;
    case REGION_MLP_IN:
        add(out, args->mlp_in.h, own, m, s->ffn, NULL);
        break;
    case REGION_HEAD:
        add(out, args->head.logits, own, m, s->vocab, NULL);
        break;
    default:
        add(out, args->out.y, own, m, s->hidden, NULL);
        break;
    }
}

static void meet(const void *args, const struct team *team)
{
    (void)args;
    (void)team;
}

int executor_run(struct executor *x, struct pool *pool, int32_t layer,
                 const union region_args *args)
{
    struct executor_control *c = x->control;
    struct copies in = {.n = 0}, out = {.n = 0};
    if (atomic_load(&x->broken))
        return -1;
    const char *why = give(x, args, &in);
    if (why) {
        executor_broke(x, why);
        return -1;
    }
    copy_all(&in, pool);
    c->call.m = args->embed.m;
    c->call.layer = layer;
    c->call.guests = process_guests();
    c->call.alone = executor_alone(x);
    gate_long_spins(&x->wait, c->call.alone);
    uint32_t seen = gate_value(&c->done);
    pool_rest(pool);
    gate_raise(&c->command, true);
    if (executor_await(x, seen, 1 + x->work_s * args->embed.m * x->team, 1) != 0)
        return -1;
    take(x, args, &out);
    copy_all(&out, pool);
    pool_run(pool, meet, NULL, 0); /* who rested comes back on this call's time, not the next's */
    return 0;
}
