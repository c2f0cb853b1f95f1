/* SPDX-License-Identifier: Apache-2.0 */
/* model_check.c - the whole model on tokens of nobody, in slices between live steps.
 *
 * Kernels that are right alone may drift together over thirty layers, so a promoted candidate runs
 * in all of them. A process of its own would need the model's memory a second time; here the
 * weights are, and the candidate has already run in this process (its bench). The check has
 * token, pages and logits of its own in spare memory and shares only the buffers between two
 * regions, which hold nothing from one step to the next. One call is one step: the engine lends it
 * between two of its own, on the same stream.
 *
 * A slot of decode steps is checked by sequences that decode. Keys and values of a layer follow
 * those of the layer before; sequence i has page i of each, so such a check is at most KV_PAGE
 * positions long, and has as many sequences as there is spare room for. A wide slot is checked by
 * one prompt of its width in one step: an algorithm that splits K at 16 tokens may not do so at
 * 2048. There a layer's keys and values are needed no longer than the layer runs, so all layers
 * share the pages into which hooks write theirs.
 */
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/prefill.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/walk.h"

static int64_t layer_bytes(const struct backend *b, int32_t m)
{
    const struct model_shape *s = &b->model->shape;
    return 2LL * m * KV_PAGE * s->kv_heads * s->head_dim;
}

/* The most sequences, a bucket's or fewer, whose pages fit. */
static int32_t room(const struct backend *b, int32_t m)
{
    int64_t layers = b->model->shape.layers;
    while (m > 1 && layer_bytes(b, walk_padded(m)) * layers > SPARE_KV_BYTES)
        m = m_bucket[m_bucket_of(m) - 1];
    return m;
}

static int check(const struct backend *b, struct model_check *r, struct err *e)
{
    if (r->prompt && r->m > b->options.max_tokens)
        r->m = b->options.max_tokens;
    if (!r->prompt && (r->m <= NARROW || r->slot->region == REGION_ATTN))
        r->m = room(b, r->m < NARROW ? r->m : NARROW);
    int32_t most = r->prompt ? 1 : KV_PAGE;
    if (r->m < 1 || (!r->prompt && r->m > NARROW) || (r->prompt && r->m <= NARROW) ||
        r->positions < 1 || r->positions > most || r->rows > r->m || r->rows > NARROW)
        return err_set(e, "cuda: a check of the whole model on %d tokens, %d positions and %d rows",
                       r->m, r->positions, r->rows);
    return 0;
}

/* Fills the block with one token of each sequence, at position `at`. */
static int32_t fill_decode(const struct step_block *k, const struct model_check *r, int32_t at)
{
    int32_t *kv_at = block_mirror(k, k->kv_at), *pages_at = block_mirror(k, k->pages_at);
    int32_t *position = block_mirror(k, k->position), *row = block_mirror(k, k->row);
    int32_t *table = block_mirror(k, k->page_table);
    struct span *span = block_mirror(k, k->span);
    for (int32_t i = 0; i < r->m; i++) {
        position[i] = at;
        kv_at[i] = i * KV_PAGE + at;
        pages_at[i] = row[i] = table[i] = i;
        span[i] = (struct span){i, 1, at + 1, i};
    }
    *(struct cuda_counts *)block_mirror(k, k->counts) =
        (struct cuda_counts){r->m, r->m, r->m, at + 1, {0}};
    return r->m;
}

/* Fills the block with a whole sequence, whose last tokens are the rows. */
static int32_t fill_prompt(const struct step_block *k, const struct model_check *r,
                           int32_t tile_rows)
{
    int32_t *kv_at = block_mirror(k, k->kv_at), *pages_at = block_mirror(k, k->pages_at);
    int32_t *position = block_mirror(k, k->position), *row = block_mirror(k, k->row);
    int32_t *table = block_mirror(k, k->page_table), pages = (r->m + KV_PAGE - 1) / KV_PAGE;
    struct span *span = block_mirror(k, k->span);
    for (int32_t i = 0; i < r->m; i++) {
        position[i] = kv_at[i] = i;
        pages_at[i] = 0;
    }
    for (int32_t i = 0; i < pages; i++)
        table[i] = i;
    for (int32_t i = 0; i < r->rows; i++)
        row[i] = r->m - r->rows + i;
    span[0] = (struct span){0, r->m, r->m, 0};
    prefill_tiles(block_mirror(k, k->tile), tile_rows, 0, r->m, r->m, 0);
    *(struct cuda_counts *)block_mirror(k, k->counts) =
        (struct cuda_counts){r->m, r->rows, 1, r->m, {0}};
    return pages;
}

static int send_block(struct backend *b, const struct model_check *r, int32_t at, struct err *e)
{
    const struct step_block *k = &b->spare.block;
    int32_t *token = block_mirror(k, k->token);
    memcpy(token, r->token + (size_t)at * (size_t)r->m, (size_t)r->m * sizeof *token);
    int32_t pages = r->prompt ? fill_prompt(k, r, prefill_rows(b)) : fill_decode(k, r, at);
    size_t used = (size_t)((char *)(k->page_table + pages) - k->device);
    CU(cudaMemcpyAsync(k->device, k->host, used, cudaMemcpyHostToDevice, b->stream));
    return 0;
}

static int run(void *ctx, const struct plan_node *n, struct err *e)
{
    struct walk *w = ctx;
    struct backend *b = w->b;
    if ((int)n->region >= REGION_LOCAL)
        return ranks_alone(w, n, e);
    int64_t bytes = layer_bytes(b, w->m);
    w->k_pages = w->wide ? b->spare.own_k : (char *)b->spare.k + n->layer * bytes;
    w->v_pages = w->wide ? b->spare.own_v : (char *)b->spare.v + n->layer * bytes;
    walk_aim(w, n->region);
    return walk_region(w, walk_kernel(w, n->region, n->layer), n->region, n->layer, e);
}

static int walk_model(struct walk *w, struct err *e)
{
    w->logits = w->b->spare.y;
    w->best = w->b->spare.best;
    return plan_walk(w->b->plan, w->rows, 0, run, w, e);
}

/* The compared rows' logits to the host; eager's best tokens are the next step's. */
static int fetch(struct backend *b, struct model_check *r, int32_t at, bool eager, struct err *e)
{
    size_t vocab = (size_t)b->model->shape.vocab, own = (size_t)b->model->head.rows;
    float *to = (eager ? r->eager : r->own) + (size_t)(at * r->rows) * vocab;
    for (int32_t i = 0; i < r->rows; i++)
        CU(cudaMemcpyAsync(to + (size_t)i * vocab, b->spare.y + (size_t)((at + i) % r->m) * own,
                           own * sizeof *to, cudaMemcpyDeviceToHost, b->stream));
    int32_t drawn = r->prompt ? r->rows : r->m, *next = r->token + (size_t)(at + 1) * (size_t)r->m;
    if (eager)
        CU(cudaMemcpyAsync(next, b->spare.best, (size_t)drawn * sizeof *next,
                           cudaMemcpyDeviceToHost, b->stream));
    CU(cudaStreamSynchronize(b->stream));
    for (int32_t i = 0; i < r->rows; i++) /* of several ranks: the others' columns */
        memset(to + (size_t)i * vocab + own, 0, (vocab - own) * sizeof *to);
    for (int32_t i = 0; eager && i < drawn; i++)
        if (next[i] < 0)
            return err_set(e,
                           "cuda: a check of the whole model in which eager finds no best token");
    return 0;
}

/* A prompt is a wide step; decodes are narrow ones. */
static void choose(const struct backend *b, const struct model_check *r, bool eager,
                   struct kernel_choice *c)
{
    int32_t rows = prefill_rows(b);
    *c = (struct kernel_choice){.m = walk_padded(r->m),
                                .rows = walk_padded(r->prompt ? r->rows : r->m),
                                .context = context_bucket[0],
                                .tiles = r->prompt ? (r->m + rows - 1) / rows : 0};
    for (int p = 0; p < STEP_PLACES; p++)
        if (place_region(p) < REGION_COUNT)
            c->kernel[p] = &b->eager[place_region(p)];
    if (!eager) /* eager still runs in the layers of other format classes */
        c->kernel[slot_place(b->formats, r->slot)] = r->kernel;
}

int cuda_check_model(struct backend *b, struct model_check *r, struct err *e)
{
    struct kernel_choice choice;
    struct walk w;
    if (r->done == 0 && check(b, r, e))
        return -1;
    int32_t at = r->done % r->positions;
    bool eager = r->done < r->positions;
    choose(b, r, eager, &choice);
    if (send_block(b, r, at, e))
        return -1;
    walk_init(&w, b, b->stream, &b->spare.block, &choice);
    if (r->prompt) {
        w.wide = true;
        w.decode = false;
        w.tiles = choice.tiles;
        w.q = w.a = w.h = NULL;
    }
    if (walk_model(&w, e) || fetch(b, r, at, eager, e))
        return -1;
    return ++r->done >= 2 * r->positions;
}
