/* SPDX-License-Identifier: Apache-2.0 */
/* inputs.c - captured inputs of a region on the device: what benches and checks run kernels on.
 *
 * Spare memory has a step block, activations and pages of its own, so a live step and its KV cache
 * are never touched. Captured pages are copied several times over; launches rotate over the copies.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"

/* On the stream that reads it: a plain copy out of pageable memory returns when the driver has the
 * numbers, not when the device has, and streams like ours do not wait for it. */
static int send_floats(float *to, const float *from, int64_t n, cudaStream_t stream, struct err *e)
{
    CU(cudaMemcpyAsync(to, from, (size_t)n * sizeof *to, cudaMemcpyHostToDevice, stream));
    return 0;
}

static int send_pages(void *to, const float *from, int64_t n, int32_t copies, cudaStream_t stream,
                      struct err *e)
{
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    for (int64_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(from[i]);
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < copies && !code; i++)
        code = cudaMemcpyAsync((char *)to + i * n * 2, half, (size_t)n * 2, cudaMemcpyHostToDevice,
                               stream);
    if (!code)
        code = cudaStreamSynchronize(stream);
    free(half);
    CU(code);
    return 0;
}

/* ---- wide steps ---------------------------------------------------------------------------- */

static int32_t step_tokens(const struct backend *b, const struct capture *c)
{
    int32_t m = c->step_m > c->m ? c->step_m : c->m;
    return m < b->options.max_tokens ? m : b->options.max_tokens;
}

int32_t inputs_width(const struct backend *b, const struct capture *c)
{
    return walk_padded(step_tokens(b, c));
}

static int32_t captured_rows(const struct capture *c)
{
    int32_t most = rows_seen(c->region);
    return c->m < most ? c->m : most;
}

/* Rows 0 .. have-1 again and again, up to row `all`. */
static int repeat_rows(void *rows, int64_t bytes, int32_t have, int32_t all, cudaStream_t stream,
                       struct err *e)
{
    for (int32_t n; have < all; have += n) {
        n = have < all - have ? have : all - have;
        CU(cudaMemcpyAsync((char *)rows + have * bytes, rows, (size_t)(n * bytes),
                           cudaMemcpyDeviceToDevice, stream));
    }
    return 0;
}

int inputs_widen(struct walk *w, const struct capture *c, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    bool out = c->region == REGION_ATTN_OUT;
    int32_t n = out ? s->heads * s->head_dim : s->ffn, rows = captured_rows(c);
    void *to = out ? b->a16 : b->h16;
    struct eager_round_args a = {&w->block->counts->m, b->spare.in, to, n};
    if (!out && c->region != REGION_MLP_OUT)
        return 0;
    return launch(w, PRIM_ROUND, (dim3){(unsigned)(n + 1023) / 1024, (unsigned)rows, 1}, 256, 0, &a,
                  e) ||
           repeat_rows(to, 2LL * n, rows, w->m, w->stream, e);
}

/* ---- sending ------------------------------------------------------------------------------- */

/* The captured step as a block. */
static int send_block(struct backend *b, cudaStream_t stream, const struct capture *c,
                      struct err *e)
{
    int32_t m = step_tokens(b, c), rows = captured_rows(c);
    const struct step_block *k = &b->spare.block;
    int32_t *position = block_mirror(k, k->position), *kv_at = block_mirror(k, k->kv_at);
    int32_t *pages_at = block_mirror(k, k->pages_at), *row = block_mirror(k, k->row);
    int32_t *table = block_mirror(k, k->page_table), pages = 0;
    struct cuda_counts *counts = block_mirror(k, k->counts);
    *counts = (struct cuda_counts){m, rows, c->spans, c->context, {0}};
    for (int32_t i = 0; i < m; i++) {
        position[i] = c->position ? c->position[i % rows] : 0;
        kv_at[i] = i;
    }
    for (int32_t i = 0; i < rows; i++)
        row[i] = i;
    for (int32_t i = 0; c->span && i < c->spans && c->spans <= k->spans; i++) {
        const struct span *s = &c->span[i];
        int32_t end = s->pages_at + (s->context + KV_PAGE - 1) / KV_PAGE;
        pages = end > pages ? end : pages;
        for (int32_t t = 0; t < s->count; t++) {
            position[s->first + t] = s->context - s->count + t;
            pages_at[s->first + t] = s->pages_at;
        }
    }
    if (pages > k->pages || c->spans > k->spans)
        return err_set(e, "cuda: a captured step of %d sequences with %d pages", c->spans, pages);
    if (pages)
        memcpy(table, c->page_table, (size_t)pages * sizeof *table);
    size_t used = (size_t)((char *)(k->page_table + pages) - k->device);
    CU(cudaMemcpyAsync(k->device, k->host, used, cudaMemcpyHostToDevice, stream));
    CU(cudaStreamSynchronize(stream));
    return 0;
}

static int64_t captured_floats(const struct backend *b, const struct capture *c)
{
    const struct model_shape *s = &b->model->shape;
    return (int64_t)c->pages * KV_PAGE * s->kv_heads * s->head_dim;
}

/* Copies of the captured pages; launches rotate over them. */
static int32_t page_copies(const struct backend *b, const struct capture *c)
{
    int64_t bytes = captured_floats(b, c) * 2;
    int64_t n = bytes > 0 ? SPARE_KV_BYTES / bytes : 1;
    return n > b->model->shape.layers ? b->model->shape.layers : (int32_t)n;
}

int inputs_send(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    int64_t q = (int64_t)s->heads * s->head_dim;
    int64_t width = c->region == REGION_MLP_OUT ? s->ffn : q;
    int32_t rows = captured_rows(c), all = inputs_width(b, c);
    if (send_block(b, stream, c, e) ||
        (c->x && send_floats(b->spare.x, c->x, (int64_t)rows * s->hidden, stream, e)) ||
        (c->in && send_floats(b->spare.in, c->in, rows * width, stream, e)) ||
        (all > NARROW && c->x && repeat_rows(b->spare.x, 4LL * s->hidden, rows, all, stream, e)))
        return -1;
    CU(cudaStreamSynchronize(stream));
    if (c->region != REGION_ATTN)
        return 0;
    int32_t copies = page_copies(b, c);
    if (copies < 1)
        return err_set(e, "cuda: %d captured pages are too many for a bench", c->pages);
    return send_pages(b->spare.k, c->k_pages, captured_floats(b, c), copies, stream, e) ||
           send_pages(b->spare.v, c->v_pages, captured_floats(b, c), copies, stream, e);
}

int inputs_spread(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e)
{
    const struct step_block *k = &b->spare.block;
    int32_t *table = block_mirror(k, k->page_table), pages = 0;
    for (int32_t i = 0; i < c->spans; i++) {
        int32_t end = c->span[i].pages_at + (c->span[i].context + KV_PAGE - 1) / KV_PAGE;
        pages = end > pages ? end : pages;
    }
    for (int32_t i = 0; i < pages; i++)
        table[i] = i % b->options.kv_pages;
    CU(cudaMemcpyAsync(k->page_table, table, (size_t)pages * sizeof *table, cudaMemcpyHostToDevice,
                       stream));
    CU(cudaStreamSynchronize(stream));
    return 0;
}

void inputs_aim(struct walk *w, const struct capture *c, int32_t copy)
{
    struct backend *b = w->b;
    int64_t bytes = captured_floats(b, c) * 2;
    w->x = b->spare.x;
    if (c->region == REGION_ATTN) {
        int32_t at = copy % page_copies(b, c);
        w->q = b->spare.in;
        w->k_pages = (char *)b->spare.k + at * bytes;
        w->v_pages = (char *)b->spare.v + at * bytes;
    } else if (c->region == REGION_ATTN_OUT) {
        w->a = b->spare.in;
    } else if (c->region == REGION_MLP_OUT) {
        w->h = b->spare.in;
    }
}

/* ---- one run ------------------------------------------------------------------------------- */

static int fetch_rows(const float *from, int64_t n, float **to, struct err *e)
{
    *to = xmalloc((size_t)n * sizeof **to + 1);
    CU(cudaMemcpy(*to, from, (size_t)n * sizeof **to, cudaMemcpyDeviceToHost));
    return 0;
}

/* Positions 0 .. m-1 of the spare pages as rows. */
static int fetch_own(struct backend *b, const void *pages, int32_t m, float **to, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    size_t hd = (size_t)s->head_dim, heads = (size_t)s->kv_heads, all = NARROW * heads * hd;
    uint16_t *half = xmalloc(all * sizeof *half);
    *to = xmalloc((size_t)m * heads * hd * sizeof **to);
    cudaError_t code = cudaMemcpy(half, pages, all * 2, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < (size_t)m; i++)
        for (size_t h = 0; h < heads; h++)
            for (size_t d = 0; d < hd; d++)
                (*to)[(i * heads + h) * hd + d] =
                    bf16_to_f32(half[((i / KV_PAGE * heads + h) * KV_PAGE + i % KV_PAGE) * hd + d]);
    free(half);
    CU(code);
    return 0;
}

int inputs_run(struct backend *b, const struct kernel *k, const struct capture *c, float *out[3],
               struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    struct kernel_choice choice = {.m = walk_padded(c->m), .rows = walk_padded(c->m)};
    struct walk w;
    const int32_t q = s->heads * s->head_dim;
    const int32_t cols[] = {[REGION_ATTN_IN] = q,          [REGION_ATTN] = q,
                            [REGION_ATTN_OUT] = s->hidden, [REGION_MLP_IN] = s->ffn,
                            [REGION_MLP_OUT] = s->hidden,  [REGION_HEAD] = b->model->head.rows};
    out[0] = out[1] = out[2] = NULL;
    if (c->region == REGION_EMBED || c->m < 1 || c->m > rows_seen(c->region))
        return err_set(e, "cuda: a run of %s with %d tokens", region_name(c->region), c->m);
    choice.context = context_bucket[context_bucket_of(c->context)];
    walk_init(&w, b, b->stream, &b->spare.block, &choice);
    if (inputs_send(b, b->stream, c, e) || spare_redirect(&w, c->region, e))
        return -1;
    inputs_aim(&w, c, 0);
    if (walk_region(&w, k, c->region, c->layer, e))
        return -1;
    CU(cudaStreamSynchronize(b->stream));
    if (fetch_rows(b->spare.y, (int64_t)c->m * cols[c->region], &out[0], e))
        return -1;
    return c->region != REGION_ATTN_IN ? 0
                                       : fetch_own(b, b->spare.own_k, c->m, &out[1], e) ||
                                             fetch_own(b, b->spare.own_v, c->m, &out[2], e);
}
