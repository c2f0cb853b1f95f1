/* SPDX-License-Identifier: Apache-2.0 */
/* hook_capture.c - the inputs of one region of a live step, copied to the host.
 *
 * Activations come at once: the stream is idle. KV pages of attention are more, so they are
 * gathered one behind the other in spare memory on the device, and fetched by whoever removes the
 * hook, on the specializer's thread.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/capture.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"

enum { CAPTURE_PAGES = 1024 };

static int fetch_floats(const float *from, int64_t n, float **to, struct err *e)
{
    *to = xmalloc((size_t)n * sizeof **to + 1);
    CU(cudaMemcpy(*to, from, (size_t)n * sizeof **to, cudaMemcpyDeviceToHost));
    return 0;
}

/* n numbers from `from` + at, bf16 there. */
static int fetch_halfs(const void *from, int64_t at, int64_t n, float **to, struct err *e)
{
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    cudaError_t code = cudaMemcpy(half, (const uint16_t *)from + at, (size_t)n * sizeof *half,
                                  cudaMemcpyDeviceToHost);
    *to = xmalloc((size_t)n * sizeof **to);
    for (int64_t i = 0; i < n && !code; i++)
        (*to)[i] = bf16_to_f32(half[i]);
    free(half);
    CU(code);
    return 0;
}

/* Copies the pages into spare memory in one launch; from there the specializer's thread fetches
 * them (hook_fetch()), because the bus takes longer than a step. */
static int gather_pages(struct walk *w, const struct capture *c, const int32_t *number,
                        const int32_t *place, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    const struct step_block *k = &b->spare.block;
    int32_t *list = block_mirror(k, k->page_table);
    for (int32_t p = 0; p < b->options.kv_pages; p++)
        if (number[p] > 0)
            list[place[number[p] - 1]] = p;
    CU(cudaMemcpyAsync(k->page_table, list, (size_t)c->pages * sizeof *list, cudaMemcpyHostToDevice,
                       w->stream));
    struct eager_gather_args a = {.k = kv_pages(b, c->layer, 0),
                                  .v = kv_pages(b, c->layer, 1),
                                  .to_k = b->spare.k,
                                  .to_v = b->spare.v,
                                  .number = k->page_table,
                                  .page16 = s->kv_heads * KV_PAGE * s->head_dim / 8};
    if (launch(w, PRIM_GATHER, (dim3){(unsigned)c->pages, 2, 1}, 256, 0, &a, e))
        return -1;
    CU(cudaStreamSynchronize(w->stream));
    b->spare.gathered = c->pages;
    return 0;
}

/* Specializer thread: what gather_pages() left, as floats. */
int hook_fetch(struct backend *b, struct capture *c, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    size_t n = (size_t)b->spare.gathered * (size_t)s->kv_heads * KV_PAGE * (size_t)s->head_dim;
    uint16_t *half = xmalloc(n * sizeof *half);
    void **to[2] = {&c->k_pages, &c->v_pages};
    cudaError_t code = cudaSuccess;
    for (int v = 0; v < 2 && !code; v++) {
        code = cudaMemcpyAsync(half, v ? b->spare.v : b->spare.k, n * sizeof *half,
                               cudaMemcpyDeviceToHost, b->loader);
        if (!code)
            code = cudaStreamSynchronize(b->loader);
        float *f = xmalloc(n * sizeof *f);
        *to[v] = f;
        for (size_t i = 0; i < n && !code; i++)
            f[i] = bf16_to_f32(half[i]);
    }
    free(half);
    b->spare.gathered = 0;
    CU(code);
    return 0;
}

/* Sequences that together have more than CAPTURE_PAGES pages, or than there is room for, share
 * some: a bench wants their number and length, and no particular numbers. */
static int capture_attn(struct walk *w, struct capture *c, const struct step *s, int32_t *number,
                        struct err *e)
{
    const struct model_shape *shape = &w->b->model->shape;
    int32_t room = memory_spare_pages(shape);
    if (room <= s->spans) /* each sequence writes one of its own */
        return err_set(e, "cuda: %d captured pages have room, too few for a step", room);
    capture_table(c, s, number);
    int32_t *place = capture_fold(c, room < CAPTURE_PAGES ? room : CAPTURE_PAGES);
    int rc = fetch_floats(w->q, (int64_t)s->m * shape->heads * shape->head_dim, &c->in, e) ||
             gather_pages(w, c, number, place, e);
    free(place);
    return rc;
}

/* The rows of x that needed logits, gathered. */
static int capture_head(const struct walk *w, struct capture *c, const struct step *s,
                        struct err *e)
{
    size_t row = (size_t)w->b->model->shape.hidden;
    c->x = xmalloc((size_t)s->rows * row * sizeof *c->x + 1);
    for (int32_t i = 0; i < s->rows; i++)
        CU(cudaMemcpy(c->x + (size_t)i * row, w->x + (size_t)s->row[i] * row, row * sizeof *c->x,
                      cudaMemcpyDeviceToHost));
    return 0;
}

/* NARROW rows out of the middle of a wide step: benches and probes repeat them. */
static int capture_wide(struct walk *w, struct capture *c, enum region r, int32_t layer,
                        struct err *e)
{
    const struct model_shape *shape = &w->b->model->shape;
    struct step part = *w->live;
    int32_t first = (part.m - NARROW) / 2, *number = NULL;
    int64_t q = (int64_t)shape->heads * shape->head_dim;
    *c = (struct capture){.region = r,
                          .layer = layer,
                          .m = NARROW,
                          .step_m = part.m,
                          .spans = capture_spans(&part, NARROW),
                          .context = part.context};
    part.m = NARROW;
    part.position += first;
    part.kv_at += first;
    if (r == REGION_ATTN_IN) {
        number = xcalloc((size_t)w->b->options.kv_pages, sizeof *number);
        capture_kv_at(c, &part, number);
        free(number);
    }
    if (fetch_floats(w->x + (int64_t)first * shape->hidden, (int64_t)NARROW * shape->hidden, &c->x,
                     e))
        return -1;
    if (r == REGION_ATTN_OUT)
        return fetch_halfs(w->b->a16, first * q, NARROW * q, &c->in, e);
    return r == REGION_MLP_OUT ? fetch_halfs(w->b->h16, (int64_t)first * shape->ffn,
                                             (int64_t)NARROW * shape->ffn, &c->in, e)
                               : 0;
}

static int capture(struct walk *w, struct capture *c, enum region r, int32_t layer, struct err *e)
{
    const struct step *s = w->live;
    const struct model_shape *shape = &w->b->model->shape;
    int64_t x = (int64_t)s->m * shape->hidden;
    int32_t *number = xcalloc((size_t)w->b->options.kv_pages, sizeof *number);
    *c = (struct capture){.region = r,
                          .layer = layer,
                          .m = region_m(r, s->m, s->rows),
                          .spans = capture_spans(s, region_m(r, s->m, s->rows)),
                          .context = s->context};
    int rc = 0;
    if (r == REGION_ATTN_IN || r == REGION_MLP_IN || r == REGION_ATTN_OUT || r == REGION_MLP_OUT)
        rc = fetch_floats(w->x, x, &c->x, e);
    if (r == REGION_REDUCE)
        rc = fetch_floats(w->sum.residual, x, &c->x, e) || fetch_floats(w->sum.x, x, &c->in, e);
    if (!rc && r == REGION_ATTN_OUT)
        rc = fetch_floats(w->a, (int64_t)s->m * shape->heads * shape->head_dim, &c->in, e);
    if (!rc && r == REGION_MLP_OUT)
        rc = fetch_floats(w->h, (int64_t)s->m * shape->ffn, &c->in, e);
    if (!rc && r == REGION_ATTN_IN)
        capture_kv_at(c, s, number);
    if (!rc && r == REGION_ATTN)
        rc = capture_attn(w, c, s, number, e);
    if (!rc && r == REGION_HEAD)
        rc = capture_head(w, c, s, e);
    free(number);
    return rc;
}

int hook_capture(struct walk *w, struct capture *c, enum region r, int32_t layer, struct err *e)
{
    bool part = w->wide && r != REGION_ATTN;
    return part ? capture_wide(w, c, r, layer, e) : capture(w, c, r, layer, e);
}
