/* rehearse.c - the whole model on tokens of nobody, in slices between live steps.
 *
 * Kernels that are right alone may drift together over thirty layers, so a finalist runs in all of
 * them. A process of its own would need the model's memory a second time; here the weights are, and
 * the candidate has already run in this process (its bench). The rehearsal has token, pages and
 * logits of its own in the lab's memory and shares only the buffers between two regions, which hold
 * nothing from one step to the next. One call is one step: the engine lends it between two of its
 * own, on the same stream.
 *
 * Keys and values of a layer follow those of the layer before; sequence i has page i of each, so a
 * rehearsal is at most KV_PAGE positions long.
 */
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_private.h"

static int64_t layer_bytes(const struct backend *b, int32_t m)
{
    const struct model_shape *s = &b->model->shape;
    return 2LL * m * KV_PAGE * s->kv_heads * s->head_dim;
}

static int check(const struct backend *b, const struct rehearsal *r, struct err *e)
{
    if (r->m < 1 || r->m > NARROW || r->positions < 1 || r->positions > KV_PAGE || r->rows > r->m)
        return err_set(e, "cuda: a rehearsal of %d sequences and %d positions", r->m, r->positions);
    if (layer_bytes(b, walk_padded(r->m)) * b->model->shape.layers > LAB_PAGES_BYTES)
        return err_set(e, "cuda: a rehearsal of %d sequences has no room for its pages", r->m);
    return 0;
}

static int send_block(struct backend *b, const struct rehearsal *r, int32_t at, struct err *e)
{
    const struct step_block *k = &b->lab.block;
    struct cuda_counts *counts = block_twin(k, k->counts);
    int32_t *token = block_twin(k, k->token), *position = block_twin(k, k->position);
    int32_t *kv_at = block_twin(k, k->kv_at), *pages_at = block_twin(k, k->pages_at);
    int32_t *row = block_twin(k, k->row), *table = block_twin(k, k->page_table);
    struct span *span = block_twin(k, k->span);
    *counts = (struct cuda_counts){r->m, r->m, r->m, at + 1, {0}};
    for (int32_t i = 0; i < r->m; i++) {
        token[i] = r->token[at * r->m + i];
        position[i] = at;
        kv_at[i] = i * KV_PAGE + at;
        pages_at[i] = row[i] = table[i] = i;
        span[i] = (struct span){i, 1, at + 1, i};
    }
    size_t used = (size_t)((char *)(k->page_table + r->m) - k->device);
    CU(cudaMemcpyAsync(k->device, k->host, used, cudaMemcpyHostToDevice, b->stream));
    return 0;
}

static int walk_layer(struct walk *w, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    int64_t bytes = layer_bytes(b, w->m);
    w->k_pages = (char *)b->lab.k + layer * bytes;
    w->v_pages = (char *)b->lab.v + layer * bytes;
    for (int r = REGION_ATTN_IN; r <= REGION_MLP_OUT; r++) {
        bool second = r == REGION_MLP_IN || r == REGION_MLP_OUT;
        w->x = b->x[second];
        w->y = b->x[!second];
        if (walk_region(w, w->choice->kernel[r], (enum region)r, layer, e))
            return -1;
    }
    return 0;
}

static int walk_model(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    w->y = b->x[0];
    if (walk_region(w, w->choice->kernel[REGION_EMBED], REGION_EMBED, 0, e))
        return -1;
    for (int32_t l = 0; l < b->model->shape.layers; l++)
        if (walk_layer(w, l, e))
            return -1;
    w->x = b->x[0];
    w->logits = b->lab.y;
    w->best = b->lab.best;
    return walk_region(w, w->choice->kernel[REGION_HEAD], REGION_HEAD, 0, e);
}

/* The looked rows' logits to the host; eager's best tokens are the next step's. */
static int fetch(struct backend *b, struct rehearsal *r, int32_t at, bool eager, struct err *e)
{
    size_t vocab = (size_t)b->model->shape.vocab;
    float *to = (eager ? r->eager : r->own) + (size_t)(at * r->rows) * vocab;
    for (int32_t i = 0; i < r->rows; i++)
        CU(cudaMemcpyAsync(to + (size_t)i * vocab, b->lab.y + (size_t)((at + i) % r->m) * vocab,
                           vocab * sizeof *to, cudaMemcpyDeviceToHost, b->stream));
    if (eager)
        CU(cudaMemcpyAsync(r->token + (size_t)(at + 1) * (size_t)r->m, b->lab.best,
                           (size_t)r->m * sizeof *r->token, cudaMemcpyDeviceToHost, b->stream));
    CU(cudaStreamSynchronize(b->stream));
    for (int32_t i = 0; eager && i < r->m; i++)
        if (r->token[(at + 1) * r->m + i] < 0)
            return err_set(e, "cuda: a rehearsal in which eager finds no best token");
    return 0;
}

int cuda_rehearse(struct backend *b, struct rehearsal *r, struct err *e)
{
    struct choice choice = {.m = walk_padded(r->m), .rows = walk_padded(r->m)};
    struct walk w;
    int32_t at = r->done % r->positions;
    bool eager = r->done < r->positions;
    if (r->done == 0 && check(b, r, e))
        return -1;
    choice.context = context_bucket[0];
    for (int i = 0; i < REGION_COUNT; i++)
        choice.kernel[i] = &b->eager[i];
    if (!eager)
        choice.kernel[r->slot->region] = r->kernel;
    if (send_block(b, r, at, e))
        return -1;
    walk_init(&w, b, b->stream, &b->lab.block, &choice);
    if (walk_model(&w, e) || fetch(b, r, at, eager, e))
        return -1;
    return ++r->done >= 2 * r->positions;
}
