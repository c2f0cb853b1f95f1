/* SPDX-License-Identifier: Apache-2.0 */
/* shard.c - the cut of a model as one table: which axis of each matrix follows which range.
 *
 * Everybody who needs to know what a rank has (the loader, the memory plan, tests) asks this table;
 * nobody divides by the world anywhere else.
 */
#include "engine/shard.h"

#include <stdio.h>

#include "config/table.h"
#include "engine/model.h"
#include "engine/quant.h"

/* What a range counts. */
enum unit { U_HIDDEN, U_HEADS, U_KV, U_FFN, U_VOCAB, U_TOKENS };

static const struct {
    const char *name;
    enum unit rows, cols;
} tensors[] = {
    [SHARD_WQ] = {"attn_q", U_HEADS, U_HIDDEN},   [SHARD_WK] = {"attn_k", U_KV, U_HIDDEN},
    [SHARD_WV] = {"attn_v", U_KV, U_HIDDEN},      [SHARD_WO] = {"attn_out", U_HIDDEN, U_HEADS},
    [SHARD_GATE] = {"mlp_gate", U_FFN, U_HIDDEN}, [SHARD_UP] = {"mlp_up", U_FFN, U_HIDDEN},
    [SHARD_DOWN] = {"mlp_down", U_HIDDEN, U_FFN}, [SHARD_HEAD] = {"head", U_TOKENS, U_HIDDEN},
    [SHARD_EMBED] = {"embed", U_VOCAB, U_HIDDEN},
};
EVERY_ROW(tensors, SHARD_TENSORS);

const char *shard_tensor_name(enum shard_tensor t)
{
    return tensors[t].name;
}

/* ---- the cut -------------------------------------------------------------------------------- */

static bool divides(const struct model_shape *s, int32_t world)
{
    bool kv = s->kv_heads % world == 0 || world % s->kv_heads == 0;
    return s->heads % world == 0 && s->ffn % world == 0 && kv && world <= s->vocab;
}

/* "2, 4, 8": what shard_plan() takes, beside 1. */
static void list_worlds(const struct model_shape *s, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (int32_t w = 2; w <= SHARD_WORLD_MAX && at < n; w++)
        if (divides(s, w))
            at += (size_t)snprintf(out + at, n - at, "%s%d", at ? ", " : "", w);
    if (!at)
        snprintf(out, n, "no other number");
}

static int refuse(const struct model_shape *s, int32_t world, struct err *err)
{
    char would[160];
    list_worlds(s, would, sizeof would);
    if (s->heads % world)
        return err_set(err, "%d ranks: %d attention heads do not divide by them; %s would do",
                       world, s->heads, would);
    if (s->ffn % world)
        return err_set(err, "%d ranks: %d feed-forward columns do not divide by them; %s would do",
                       world, s->ffn, would);
    if (world > s->vocab)
        return err_set(err, "%d ranks: the vocabulary has %d tokens; %s would do", world, s->vocab,
                       would);
    return err_set(err,
                   "%d ranks: %d KV heads neither divide by them nor are shared evenly by them; %s "
                   "would do",
                   world, s->kv_heads, would);
}

static struct shard_range even(int32_t all, int32_t world, int32_t rank)
{
    return (struct shard_range){rank * (all / world), all / world};
}

struct shard_range shard_tokens(int32_t vocab, int32_t world, int32_t rank)
{
    int32_t n = (vocab + world - 1) / world;
    if (vocab >= SHARD_VOCAB_UNIT * world)
        n = (n + SHARD_VOCAB_UNIT - 1) / SHARD_VOCAB_UNIT * SHARD_VOCAB_UNIT;
    n = n > vocab ? vocab : n;
    int64_t from = (int64_t)rank * n;
    return (struct shard_range){from > vocab - n ? vocab - n : (int32_t)from, n};
}

int shard_plan(const struct model_shape *whole, int32_t world, int32_t rank, struct shard *out,
               struct err *err)
{
    if (world < 1 || world > SHARD_WORLD_MAX)
        return err_set(err, "%d ranks: from 1 to %d are possible", world, SHARD_WORLD_MAX);
    if (rank < 0 || rank >= world)
        return err_set(err, "rank %d: of %d ranks the last is %d", rank, world, world - 1);
    if (!divides(whole, world))
        return refuse(whole, world, err);
    int32_t kv = whole->kv_heads, share = world > kv ? world / kv : 1; /* ranks of one KV head */
    *out = (struct shard){.rank = rank,
                          .world = world,
                          .heads = even(whole->heads, world, rank),
                          .kv_heads = even(kv, world / share, rank / share),
                          .ffn = even(whole->ffn, world, rank),
                          .vocab = shard_tokens(whole->vocab, world, rank)};
    return 0;
}

static struct shard_range times(struct shard_range r, int32_t size)
{
    return (struct shard_range){r.from * size, r.count * size};
}

static struct shard_range range(const struct shard *s, const struct model_shape *whole, enum unit u)
{
    switch (u) {
    case U_HEADS:
        return times(s->heads, whole->head_dim);
    case U_KV:
        return times(s->kv_heads, whole->head_dim);
    case U_FFN:
        return s->ffn;
    case U_TOKENS:
        return s->vocab;
    case U_VOCAB:
        return (struct shard_range){0, whole->vocab};
    case U_HIDDEN:
        break;
    }
    return (struct shard_range){0, whole->hidden};
}

struct shard_part shard_part(const struct shard *s, const struct model_shape *whole,
                             enum shard_tensor t)
{
    return (struct shard_part){range(s, whole, tensors[t].rows), range(s, whole, tensors[t].cols)};
}

struct model_shape shard_shape(const struct shard *s, const struct model_shape *whole)
{
    struct model_shape own = *whole;
    own.heads = s->heads.count;
    own.kv_heads = s->kv_heads.count;
    own.ffn = s->ffn.count;
    own.tied_head = whole->tied_head && s->world == 1;
    return own;
}

/* ---- against a model's files ---------------------------------------------------------------- */

static const struct weight *layer_matrix(const struct layer *l, enum shard_tensor t)
{
    const struct weight *const of[] = {
        [SHARD_WQ] = &l->wq,     [SHARD_WK] = &l->wk, [SHARD_WV] = &l->wv,    [SHARD_WO] = &l->wo,
        [SHARD_GATE] = &l->gate, [SHARD_UP] = &l->up, [SHARD_DOWN] = &l->down};
    return of[t];
}

int shard_check_blocks(const struct shard *s, const struct model *m, struct err *err)
{
    for (int32_t i = 0; i < m->shape.layers; i++)
        for (enum shard_tensor t = SHARD_WQ; t < SHARD_HEAD; t++) {
            const struct weight *w = layer_matrix(&m->layer[i], t);
            struct shard_range cols = shard_part(s, &m->shape, t).cols;
            int block = dtype_block((enum dtype)w->type);
            if (cols.from % block || cols.count % block)
                return err_set(err,
                               "%d ranks: layer %d, %s: %d columns each would cut the %s blocks of "
                               "%d; fewer ranks, or another format, would do",
                               s->world, i, shard_tensor_name(t), cols.count,
                               dtype_name((enum dtype)w->type), block);
        }
    return 0;
}

static int64_t part_bytes(const struct shard *s, const struct model *m, enum shard_tensor t,
                          const struct weight *w)
{
    struct shard_part p = shard_part(s, &m->shape, t);
    return p.rows.count * dtype_bytes((enum dtype)w->type, p.cols.count);
}

int64_t shard_bytes(const struct shard *s, const struct model *m)
{
    int64_t sum = part_bytes(s, m, SHARD_EMBED, &m->embed) + part_bytes(s, m, SHARD_HEAD, &m->head);
    for (int32_t i = 0; i < m->shape.layers; i++)
        for (enum shard_tensor t = SHARD_WQ; t < SHARD_HEAD; t++)
            sum += part_bytes(s, m, t, layer_matrix(&m->layer[i], t));
    return sum;
}
