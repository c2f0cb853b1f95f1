/* SPDX-License-Identifier: Apache-2.0 */
/* tap.c - looking at live steps: taps.
 *
 * A step that a tap looks at is launched uncaptured instead of as a graph, so there is a place
 * between its regions. There the inputs of one region are copied to the host (TAP_CAPTURE), or
 * another kernel runs on them into spare outputs, poisoned before, and both outputs are compared on
 * the device (TAP_COMPARE). What the step served is only read; k and v of the tapped kernel go to
 * pages of the spare memory. Numbers come back with the step's own results.
 *
 * Hand-over as in engine/cpu/backend_taps.c: the engine thread raises `looking` before it reads
 * `tap`; who removes a tap clears `tap` first and then waits for `looking` to fall.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/err.h"
#include "config/log.h"
#include "engine/capture.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/products.h"
#include "engine/cuda/tap.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"

enum { CAPTURE_PAGES = 1024 };

int tap_open(struct backend *b, struct err *e)
{
    int32_t n = b->spare.block.tokens, *at = xcalloc((size_t)n, sizeof *at);
    for (int i = 0; i < n; i++)
        at[i] = i;
    cudaError_t code =
        cudaMemcpy(b->spare.own_at, at, (size_t)n * sizeof *at, cudaMemcpyHostToDevice);
    free(at);
    CU(code);
    for (int i = 0; i < 4; i++)
        CU(cudaEventCreate(&b->spare.event[i]));
    CU(cudaDeviceSynchronize()); /* what was cleared and copied since the start is there */
    return 0;
}

void tap_close(struct backend *b)
{
    for (int i = 0; i < 4; i++)
        if (b->spare.event[i])
            cudaEventDestroy(b->spare.event[i]);
}

static int capture_fetch(struct backend *b, struct capture *c, struct err *e);

/* In wide steps only products have a choice. */
static bool can_look(const struct slot *s)
{
    bool product = s->region != REGION_ATTN && s->region != REGION_HEAD;
    return s->region != REGION_EMBED && (s->m <= NARROW || product);
}

int cuda_tap(struct backend *b, struct tap *t)
{
    if (t && !can_look(t->slot))
        return -1; /* nothing to specialize there */
    struct tap *old = atomic_load(&b->tap);
    struct err why = {""};
    atomic_store(&b->tap, NULL);
    while (atomic_load(&b->looking)) {
        struct timespec us100 = {0, 100000};
        nanosleep(&us100, NULL);
    }
    if (old && old->kind == TAP_CAPTURE && atomic_load(&old->left) == 0 && b->spare.gathered > 0 &&
        capture_fetch(b, old->capture, &why))
        log_error("cuda", "captured pages: %s", why.msg);
    atomic_store(&b->tap, t);
    return 0;
}

bool tap_wants(struct backend *b, const struct choice *c)
{
    if (!atomic_load_explicit(&b->tap, memory_order_relaxed))
        return false;
    atomic_store(&b->looking, true);
    struct tap *t = atomic_load(&b->tap);
    bool want =
        t && c->slot[t->slot->region] == t->slot && atomic_load(&t->left) > 0 &&
        (!t->served || t->served == c->kernel[t->slot->region]) &&
        (t->slot->m > NARROW) == (c->m > NARROW) && region_m(t->slot->region, c->m, c->rows) > 0 &&
        (t->slot->region != REGION_ATTN || c->decode) &&
        (t->kind == TAP_CAPTURE || t->kernel->m_max >= region_m(t->slot->region, c->m, c->rows)) &&
        b->matches++ % (t->every > 0 ? t->every : 1) == 0;
    if (!want) {
        atomic_store(&b->looking, false);
        return false;
    }
    b->spare.layer = region_info(t->slot->region)->once ? 0 : b->look_layer;
    b->look_layer = (b->look_layer + 1) % b->model->shape.layers;
    return true;
}

/* ---- capture ------------------------------------------------------------------------------- */

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
 * them (capture_fetch), because the bus takes longer than a step. */
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
static int capture_fetch(struct backend *b, struct capture *c, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    size_t n = (size_t)b->spare.gathered * (size_t)s->kv_heads * KV_PAGE * (size_t)s->head_dim;
    uint16_t *half = xmalloc(n * sizeof *half);
    float **to[2] = {&c->k_pages, &c->v_pages};
    cudaError_t code = cudaSuccess;
    for (int v = 0; v < 2 && !code; v++) {
        code = cudaMemcpyAsync(half, v ? b->spare.v : b->spare.k, n * sizeof *half,
                               cudaMemcpyDeviceToHost, b->loader);
        if (!code)
            code = cudaStreamSynchronize(b->loader);
        float *f = *to[v] = xmalloc(n * sizeof *f);
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
    if (room <= NARROW) /* each sequence writes one of its own */
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
    struct step part = *w->look;
    int32_t first = (part.m - NARROW) / 2, *number = NULL;
    int64_t q = (int64_t)shape->heads * shape->head_dim;
    *c = (struct capture){.region = r,
                          .layer = layer,
                          .m = NARROW,
                          .step_m = part.m,
                          .spans = part.spans,
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
    const struct step *s = w->look;
    const struct model_shape *shape = &w->b->model->shape;
    int64_t x = (int64_t)s->m * shape->hidden;
    int32_t *number = xcalloc((size_t)w->b->options.kv_pages, sizeof *number);
    *c = (struct capture){.region = r,
                          .layer = layer,
                          .m = region_m(r, s->m, s->rows),
                          .spans = s->spans,
                          .context = s->context};
    int rc = 0;
    if (r == REGION_ATTN_IN || r == REGION_MLP_IN || r == REGION_ATTN_OUT || r == REGION_MLP_OUT)
        rc = fetch_floats(w->x, x, &c->x, e);
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

/* ---- compare ------------------------------------------------------------------------------- */

void spare_aim(struct walk *w, enum region r)
{
    struct spare *l = &w->b->spare;
    if (r == REGION_ATTN_IN) {
        w->k_pages = l->own_k;
        w->v_pages = l->own_v;
        w->kv_at = l->own_at;
        w->q = l->y;
    } else if (r == REGION_ATTN) {
        w->a = l->y;
    } else if (r == REGION_MLP_IN) {
        w->h = l->y;
    } else if (r == REGION_HEAD) {
        w->logits = l->y;
        w->best = l->best;
    } else {
        w->y = l->y;
    }
}

int spare_redirect(struct walk *w, enum region r, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    struct spare *l = &b->spare;
    size_t q = (size_t)s->heads * (size_t)s->head_dim, width = (size_t)s->hidden;
    size_t own = (size_t)NARROW * (size_t)s->kv_heads * (size_t)s->head_dim * 2;
    if (r == REGION_ATTN_IN || r == REGION_ATTN)
        width = q;
    else if (r == REGION_MLP_IN)
        width = (size_t)s->ffn;
    else if (r == REGION_HEAD)
        width = (size_t)s->vocab;
    CU(cudaMemsetAsync(l->y, 0xff, (size_t)w->m * width * 4, w->stream));
    if (r == REGION_ATTN_IN) {
        CU(cudaMemsetAsync(l->own_k, 0xff, own, w->stream));
        CU(cudaMemsetAsync(l->own_v, 0xff, own, w->stream));
    }
    spare_aim(w, r);
    return 0;
}

static int compare(const struct walk *w, enum region r, int32_t layer, struct walk *other,
                   struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    int32_t q = s->heads * s->head_dim;
    const struct cuda_counts *c = w->block->counts;
    struct eager_compare_args a = {.count = r == REGION_HEAD ? &c->rows : &c->m,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim,
                                   .out = b->spare.result};
    const float *served[] = {
        [REGION_ATTN_IN] = w->q, [REGION_ATTN] = w->a,    [REGION_ATTN_OUT] = w->y,
        [REGION_MLP_IN] = w->h,  [REGION_MLP_OUT] = w->y, [REGION_HEAD] = w->logits};
    const int32_t cols[] = {[REGION_ATTN_IN] = q,          [REGION_ATTN] = q,
                            [REGION_ATTN_OUT] = s->hidden, [REGION_MLP_IN] = s->ffn,
                            [REGION_MLP_OUT] = s->hidden,  [REGION_HEAD] = s->vocab};
    dim3 grid = {(unsigned)region_m(r, w->m, w->rows), 1, 1};
    a.a = b->spare.y;
    a.b = served[r];
    a.cols = cols[r];
    CU(cudaMemsetAsync(b->spare.result, 0, 3 * 16, w->stream));
    if (launch(other, PRIM_COMPARE, grid, 256, 0, &a, e))
        return -1;
    for (int v = 0; r == REGION_ATTN_IN && v < 2; v++) {
        a.a = a.b = NULL;
        a.a_pages = v ? other->v_pages : other->k_pages;
        a.b_pages = kv_pages(b, layer, v);
        a.a_at = other->kv_at;
        a.b_at = w->block->kv_at;
        a.cols = s->kv_heads * s->head_dim;
        a.out = b->spare.result + 4 * (v + 1);
        if (launch(other, PRIM_COMPARE, grid, 256, 0, &a, e))
            return -1;
    }
    CU(cudaMemcpyAsync(b->spare.result_host, b->spare.result, 3 * 16, cudaMemcpyDeviceToHost,
                       w->stream));
    return 0;
}

/* Kernels of a wide region differ in their product and in nothing else (step.c lets no others in).
 * Its inputs and what it left still lie where they were: so the other's is made beside it, and
 * compared element for element. */
static int compare_wide(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                        struct err *e)
{
    struct backend *b = w->b;
    const struct loaded *l = k->backend;
    struct product p = blas_product(b, r, w->m);
    struct eager_compare_args a = {.count = &w->block->counts->m,
                                   .kv_heads = 1, /* rows are pages of one head as wide as they */
                                   .cols = p.n,
                                   .head_dim = p.n,
                                   .out = b->spare.result};
    struct matrix m = matrix_of(b, r, layer);
    if (m.type != DTYPE_BF16)
        return err_set(e, "cuda: a library's algorithm beside weights that it cannot read");
    p.w = m.data;
    if (p.d16) {
        a.a_pages = p.d = b->spare.raw;
        a.b_pages = b->raw;
    } else {
        p.c = w->x;
        a.a = p.d = b->spare.y;
        a.b = w->y;
    }
    CU(cudaMemsetAsync(p.d, 0xff, (size_t)p.m * (size_t)p.n * (p.d16 ? 2 : 4), w->stream));
    CU(cudaMemsetAsync(b->spare.result, 0, 3 * 16, w->stream));
    CU(cudaEventRecord(b->spare.event[2], w->stream));
    if (blas_run(b, w->stream, &p, l ? l->lt : NULL, e))
        return -1;
    CU(cudaEventRecord(b->spare.event[3], w->stream));
    if (launch(w, PRIM_COMPARE, (dim3){(unsigned)w->m, 1, 1}, 256, 0, &a, e))
        return -1;
    CU(cudaMemcpyAsync(b->spare.result_host, b->spare.result, 3 * 16, cudaMemcpyDeviceToHost,
                       w->stream));
    b->spare.pending = true;
    return 0;
}

static bool here(const struct walk *w, enum region r, int32_t layer)
{
    const struct tap *t = atomic_load(&w->b->tap);
    return t && t->slot->region == r && layer == w->b->spare.layer;
}

int tap_before(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    if (here(w, r, layer))
        CU(cudaEventRecord(w->b->spare.event[0], w->stream));
    return 0;
}

int tap_after(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    struct tap *t = atomic_load(&b->tap);
    if (!here(w, r, layer))
        return 0;
    CU(cudaEventRecord(b->spare.event[1], w->stream));
    if (t->kind == TAP_CAPTURE) {
        CU(cudaStreamSynchronize(w->stream));
        if (w->wide ? capture_wide(w, t->capture, r, layer, e)
                    : capture(w, t->capture, r, layer, e)) {
            capture_free(t->capture);
            return -1;
        }
        atomic_store(&t->left, 0);
        return 0;
    }
    struct walk other = *w;
    if (w->wide)
        return compare_wide(w, t->kernel, r, layer, e);
    if (spare_redirect(&other, r, e))
        return -1;
    CU(cudaEventRecord(b->spare.event[2], w->stream));
    if (walk_region(&other, t->kernel, r, layer, e))
        return -1;
    w->have16[r] = false; /* it may have written its own there */
    CU(cudaEventRecord(b->spare.event[3], w->stream));
    b->spare.pending = true;
    return compare(w, r, layer, &other, e);
}

static float bits_float(unsigned bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void tap_done(struct backend *b, bool failed)
{
    struct tap *t = atomic_load(&b->tap);
    struct spare *l = &b->spare;
    if (l->pending && t && !failed) {
        float served = 0, tapped = 0;
        bool bad = false, served_bad = false, different = false;
        int outputs = t->slot->region == REGION_ATTN_IN && t->slot->m <= NARROW ? 3 : 1;
        for (int i = 0; i < outputs; i++) {
            const unsigned *r = l->result_host + (ptrdiff_t)4 * i;
            bad |= (r[0] & 0xffff) > 0;
            served_bad |= r[0] >> 16 > 0;
            different |= r[1] > 0;
            t->worst_max = fmax(t->worst_max, bad ? HUGE_VAL : (double)bits_float(r[2]));
            t->worst_rms = fmax(t->worst_rms, bad ? HUGE_VAL : (double)bits_float(r[3]));
        }
        cudaEventElapsedTime(&served, l->event[0], l->event[1]);
        cudaEventElapsedTime(&tapped, l->event[2], l->event[3]);
        t->looks++;
        t->nonfinite += bad;
        t->served_nonfinite += served_bad;
        t->different += different;
        t->served_ns += (int64_t)((double)served * 1e6);
        t->kernel_ns += (int64_t)((double)tapped * 1e6);
        atomic_fetch_sub(&t->left, 1);
    }
    l->pending = false;
    atomic_store(&b->looking, false);
}
