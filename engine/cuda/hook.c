/* SPDX-License-Identifier: Apache-2.0 */
/* hook.c - the capture hook: observes live steps.
 *
 * A step that a hook observes is launched uncaptured instead of as a graph, so there is a place
 * between its regions. There the inputs of one region are copied to the host (HOOK_CAPTURE, done by
 * hook_capture.c), or another kernel runs on them into spare outputs, poisoned before, and both
 * outputs are compared on the device (HOOK_COMPARE). What the step served is only read; k and v of
 * the compared kernel go to pages of the spare memory. Numbers come back with the step's own
 * results.
 *
 * Hand-over as in engine/cpu/backend_hook.c: the engine thread raises `hook_held` before it reads
 * `hook`; who removes a hook clears `hook` first and then waits for `hook_held` to fall.
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
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/products.h"
#include "engine/cuda/walk.h"

int hook_open(struct backend *b, struct err *e)
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

void hook_close(struct backend *b)
{
    for (int i = 0; i < 4; i++)
        if (b->spare.event[i])
            cudaEventDestroy(b->spare.event[i]);
}

/* In wide steps products have a choice, and attention of decodes. */
static bool can_hook(const struct slot *s)
{
    bool product =
        s->region != REGION_ATTN && s->region != REGION_HEAD && s->region != REGION_REDUCE;
    return s->region != REGION_EMBED && (s->m <= rows_seen(s->region) || product);
}

int cuda_hook(struct backend *b, struct hook *t)
{
    if (t && !can_hook(t->slot))
        return -1; /* nothing to specialize there */
    struct hook *old = atomic_load(&b->hook);
    struct err why = {""};
    atomic_store(&b->hook, NULL);
    while (atomic_load(&b->hook_held)) {
        struct timespec us100 = {0, 100000};
        nanosleep(&us100, NULL);
    }
    if (old && old->kind == HOOK_CAPTURE && atomic_load(&old->left) == 0 && b->spare.gathered > 0 &&
        hook_fetch(b, old->capture, &why))
        log_error("cuda", "captured pages: %s", why.msg);
    atomic_store(&b->hook, t);
    return 0;
}

bool hook_wants(struct backend *b, const struct kernel_choice *c)
{
    if (!atomic_load_explicit(&b->hook, memory_order_relaxed))
        return false;
    atomic_store(&b->hook_held, true);
    struct hook *t = atomic_load(&b->hook);
    /* Kernels of reduce are compared where all ranks know of it (cuda_trial()). */
    bool here = t && (t->kind == HOOK_CAPTURE || t->slot->region != REGION_REDUCE);
    int place = here ? slot_place(b->formats, t->slot) : 0;
    bool want =
        here && c->slot[place] == t->slot && atomic_load(&t->left) > 0 &&
        (!t->served || t->served == c->kernel[place]) && (t->slot->m > NARROW) == (c->m > NARROW) &&
        region_m(t->slot->region, c->m, c->rows) > 0 &&
        (t->slot->region != REGION_ATTN || c->decode) &&
        (t->kind == HOOK_CAPTURE || t->kernel->m_max >= region_m(t->slot->region, c->m, c->rows)) &&
        b->matches++ % (t->every > 0 ? t->every : 1) == 0;
    if (!want) {
        atomic_store(&b->hook_held, false);
        return false;
    }
    const struct format_class *formats = t->slot->formats;
    int32_t layers = class_layers(formats, t->slot->region, b->model->shape.layers);
    b->spare.layer = class_layer(formats, b->hook_layer % layers);
    b->hook_layer = b->hook_layer % layers + 1;
    return true;
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
    } else if (r == REGION_REDUCE) {
        w->sum.out = l->y;
        w->sum.use = REDUCE_TRIALS;
    } else {
        w->y = l->y;
    }
}

int spare_redirect(struct walk *w, enum region r, struct err *e)
{
    w->wants16 = false; /* the step's own lies where it would write its */
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
        width = (size_t)w->b->model->head.rows;
    CU(cudaMemsetAsync(l->y, 0xff, (size_t)w->m * width * 4, w->stream));
    if (r == REGION_ATTN_IN) {
        CU(cudaMemsetAsync(l->own_k, 0xff, own, w->stream));
        CU(cudaMemsetAsync(l->own_v, 0xff, own, w->stream));
    }
    spare_aim(w, r);
    return 0;
}

/* Keys and values of attn_in, as further results beside those of `a`. */
static int compare_pages(const struct walk *w, int32_t layer, struct walk *other,
                         const struct eager_compare_args *a, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    for (int v = 0; v < 2; v++) {
        struct eager_compare_args p = {.count = a->count,
                                       .a_pages = v ? other->v_pages : other->k_pages,
                                       .b_pages = kv_pages(b, layer, v),
                                       .a_at = other->kv_at,
                                       .b_at = w->block->kv_at,
                                       .cols = s->kv_heads * s->head_dim,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim,
                                       .out = b->spare.result + 4 * (v + 1)};
        if (launch(other, PRIM_COMPARE, (dim3){(unsigned)w->m, 1, 1}, 256, 0, &p, e))
            return -1;
    }
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
        [REGION_ATTN_IN] = w->q,     [REGION_ATTN] = w->a,    [REGION_ATTN_OUT] = w->y,
        [REGION_MLP_IN] = w->h,      [REGION_MLP_OUT] = w->y, [REGION_HEAD] = w->logits,
        [REGION_REDUCE] = w->sum.out};
    const int32_t cols[] = {[REGION_ATTN_IN] = q,          [REGION_ATTN] = q,
                            [REGION_ATTN_OUT] = s->hidden, [REGION_MLP_IN] = s->ffn,
                            [REGION_MLP_OUT] = s->hidden,  [REGION_HEAD] = b->model->head.rows,
                            [REGION_REDUCE] = s->hidden};
    dim3 grid = {(unsigned)region_m(r, w->m, w->rows), 1, 1};
    a.a = b->spare.y;
    a.b = served[r];
    a.cols = cols[r];
    CU(cudaMemsetAsync(b->spare.result, 0, 3 * 16, w->stream));
    if (launch(other, PRIM_COMPARE, grid, 256, 0, &a, e))
        return -1;
    if (r == REGION_ATTN_IN && compare_pages(w, layer, other, &a, e))
        return -1;
    CU(cudaMemcpyAsync(b->spare.result_host, b->spare.result, 3 * 16, cudaMemcpyDeviceToHost,
                       w->stream));
    return 0;
}

/* Library products in a wide region differ from eager's in their product and in nothing else. Its
 * inputs and what it left still lie where they were: so the other's is made beside it, and compared
 * element for element. */
static int compare_products(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
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
    struct matrix m = matrix_of(b, r, layer, w->m);
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

/* What there is to compare when a template is on either side: all that the region leaves. In a wide
 * step that is bf16, looked at as pages of one head as wide as a row. */
static int aim_regions(struct walk *other, const struct walk *w, enum region r,
                       struct eager_compare_args *a, struct err *e)
{
    struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    bool in = r == REGION_ATTN_IN || r == REGION_MLP_IN;
    int32_t cols = r == REGION_ATTN_IN  ? s->heads * s->head_dim
                   : r == REGION_MLP_IN ? s->ffn
                                        : s->hidden;
    *a = (struct eager_compare_args){.count = &w->block->counts->m,
                                     .a = in ? NULL : b->spare.y,
                                     .b = in ? NULL : w->y,
                                     .a_pages = in ? b->spare.raw : NULL,
                                     .b_pages = !in                   ? NULL
                                                : r == REGION_ATTN_IN ? b->q16
                                                                      : b->h16,
                                     .kv_heads = 1,
                                     .cols = cols,
                                     .head_dim = cols,
                                     .out = b->spare.result};
    *other = *w;
    spare_aim(other, r);
    other->q = other->h = NULL;
    other->lead = 0;
    other->wants16 = false;
    other->out16 = in ? b->spare.raw : NULL;
    CU(cudaMemsetAsync(in ? b->spare.raw : b->spare.y, 0xff,
                       (size_t)w->m * (size_t)cols * (in ? 2 : 4), w->stream));
    CU(cudaMemsetAsync(b->spare.result, 0, 3 * 16, w->stream));
    return 0;
}

static int compare_regions(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                           struct err *e)
{
    struct backend *b = w->b;
    struct eager_compare_args a;
    struct walk other;
    if (aim_regions(&other, w, r, &a, e))
        return -1;
    CU(cudaEventRecord(b->spare.event[2], w->stream));
    if (walk_region(&other, k, r, layer, e))
        return -1;
    CU(cudaEventRecord(b->spare.event[3], w->stream));
    if (launch(w, PRIM_COMPARE, (dim3){(unsigned)w->m, 1, 1}, 256, 0, &a, e) ||
        (r == REGION_ATTN_IN && compare_pages(w, layer, &other, &a, e)))
        return -1;
    CU(cudaMemcpyAsync(b->spare.result_host, b->spare.result, 3 * 16, cudaMemcpyDeviceToHost,
                       w->stream));
    b->spare.pending = true;
    return 0;
}

static bool is_template(const struct kernel *k)
{
    const struct loaded *l = k->backend;
    return l && !l->lt;
}

static int compare_wide(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                        struct err *e)
{
    return is_template(k) || is_template(walk_kernel(w, r, layer))
               ? compare_regions(w, k, r, layer, e)
               : compare_products(w, k, r, layer, e);
}

static bool here(const struct walk *w, enum region r, int32_t layer)
{
    const struct hook *t = atomic_load(&w->b->hook);
    return t && t->slot->region == r && layer == w->b->spare.layer;
}

int hook_before(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    if (here(w, r, layer))
        CU(cudaEventRecord(w->b->spare.event[0], w->stream));
    return 0;
}

int hook_compare(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                 struct err *e)
{
    struct backend *b = w->b;
    struct walk other = *w;
    if (spare_redirect(&other, r, e))
        return -1;
    CU(cudaEventRecord(b->spare.event[2], w->stream));
    if (walk_region(&other, k, r, layer, e))
        return -1;
    w->have16[r] = false; /* it may have written its own there */
    CU(cudaEventRecord(b->spare.event[3], w->stream));
    b->spare.pending = true;
    return compare(w, r, layer, &other, e);
}

int hook_after(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    struct backend *b = w->b;
    struct hook *t = atomic_load(&b->hook);
    if (!here(w, r, layer))
        return 0;
    CU(cudaEventRecord(b->spare.event[1], w->stream));
    if (t->kind == HOOK_CAPTURE) {
        CU(cudaStreamSynchronize(w->stream));
        if (hook_capture(w, t->capture, r, layer, e)) {
            capture_free(t->capture);
            return -1;
        }
        atomic_store(&t->left, 0);
        return 0;
    }
    if (w->wide && r != REGION_ATTN)
        return compare_wide(w, t->kernel, r, layer, e);
    return hook_compare(w, t->kernel, r, layer, e);
}

static float bits_float(unsigned bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void hook_done(struct backend *b, bool failed)
{
    struct hook *t = atomic_load(&b->hook);
    struct spare *l = &b->spare;
    if (l->pending && t && !failed) {
        float served = 0, compared = 0;
        bool bad = false, served_bad = false, different = false;
        int outputs = t->slot->region == REGION_ATTN_IN ? 3 : 1; /* what is not looked at is 0 */
        for (int i = 0; i < outputs; i++) {
            const unsigned *r = l->result_host + (ptrdiff_t)4 * i;
            bad |= (r[0] & 0xffff) > 0;
            served_bad |= r[0] >> 16 > 0;
            different |= r[1] > 0;
            t->worst_max = fmax(t->worst_max, bad ? HUGE_VAL : (double)bits_float(r[2]));
            t->worst_rms = fmax(t->worst_rms, bad ? HUGE_VAL : (double)bits_float(r[3]));
        }
        cudaEventElapsedTime(&served, l->event[0], l->event[1]);
        cudaEventElapsedTime(&compared, l->event[2], l->event[3]);
        t->comparisons++;
        t->nonfinite += bad;
        t->served_nonfinite += served_bad;
        t->different += different;
        t->served_ns += (int64_t)((double)served * 1e6);
        t->kernel_ns += (int64_t)((double)compared * 1e6);
        atomic_fetch_sub(&t->left, 1);
    }
    l->pending = false;
    atomic_store(&b->hook_held, false);
}
