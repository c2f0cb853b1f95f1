/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - what the device holds, counted before anything is allocated.
 *
 * Four parts, one allocation each: weights, KV pages, buffers of a step, and the arena in which
 * loaded kernels keep repacked weights. A fifth is left alone: probes run in processes of their
 * own, whose contexts, matrices and pages need a place on the same device. Nothing is allocated or
 * freed while requests run, because that lengthens the steps beside it. The same code counts and
 * hands out: an arena without memory only adds up, so plan and use cannot disagree.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/log.h"
#include "engine/cpu/bind.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/products.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

enum { ALIGN = 256, WORK = 64 << 20, ADJUSTS = 1 << 18 };

void *arena_take(struct arena *a, int64_t bytes)
{
    char *p = a->base ? a->base + a->used : NULL;
    a->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

void *block_mirror(const struct step_block *s, const void *device)
{
    return s->host + ((const char *)device - s->device);
}

void *kv_pages(const struct backend *b, int32_t layer, int v)
{
    return b->kv.base + (2 * (int64_t)layer + v) * b->kv_layer;
}

static int64_t pad(int64_t n)
{
    return (n + NARROW - 1) / NARROW * NARROW;
}

/* ---- step blocks --------------------------------------------------------------------------- */

static void carve_block(struct arena *a, struct step_block *s, bool wide)
{
    int64_t n = s->tokens;
    int64_t from = a->used;
    s->device = a->base ? a->base + a->used : NULL;
    s->counts = arena_take(a, (int64_t)sizeof *s->counts);
    s->lead = arena_take(a, (int64_t)sizeof *s->lead);
    s->token = arena_take(a, n * 4);
    s->position = arena_take(a, n * 4);
    s->kv_at = arena_take(a, n * 4);
    s->pages_at = arena_take(a, n * 4);
    s->row = arena_take(a, s->rows * 4LL);
    s->single = arena_take(a, wide ? n * 4 : 4);
    s->span = arena_take(a, s->spans * (int64_t)sizeof *s->span);
    s->tile = arena_take(a, (n / EAGER_TILE + s->spans + 1) * (int64_t)sizeof *s->tile);
    s->page_table = arena_take(a, s->pages * 4);
    s->bytes = a->used - from;
}

/* Tokens of the widest step that attention of decodes has a choice in. */
static int64_t decodes(const struct backend *b)
{
    int64_t n = pad(b->options.max_tokens);
    return n < NARROW ? NARROW : n > DECODE_MOST ? DECODE_MOST : n;
}

/* A step's sequences: no more than rows, since each wants one in the end, nor than tokens. */
static void size_blocks(struct backend *b)
{
    int64_t pages = (b->positions + KV_PAGE - 1) / KV_PAGE;
    int32_t tokens = (int32_t)pad(b->options.max_tokens), rows = (int32_t)pad(b->options.max_rows);
    b->narrow.tokens = b->narrow.rows = b->narrow.spans = NARROW;
    b->narrow.pages = NARROW * pages;
    b->spare.block = b->narrow;
    if (b->spare.block.pages < b->table_least)
        b->spare.block.pages = b->table_least;
    b->spare.block.tokens = tokens > NARROW ? tokens : NARROW;
    b->spare.block.rows = b->spare.block.spans = (int32_t)decodes(b);
    b->wide.tokens = tokens;
    b->wide.rows = rows;
    b->wide.spans = tokens;
    b->wide.pages = (rows > NARROW ? rows : NARROW) * pages;
}

/* Columns of the widest product between two regions: q, k and v, or gate and up. */
static int64_t raw_width(const struct model_shape *s)
{
    int64_t qkv = ((int64_t)s->heads + 2LL * s->kv_heads) * s->head_dim;
    return qkv > 2LL * s->ffn ? qkv : 2LL * s->ffn;
}

int32_t memory_spare_pages(const struct model_shape *s)
{
    return (int32_t)(SPARE_KV_BYTES / (2LL * KV_PAGE * s->kv_heads * s->head_dim));
}

static void carve_spare(struct backend *b, struct arena *a)
{
    const struct model_shape *s = &b->model->shape;
    struct spare *l = &b->spare;
    int64_t m = l->block.tokens; /* benches of wide slots run on as many */
    int64_t q = (int64_t)s->heads * s->head_dim, in = q > s->ffn ? q : s->ffn;
    int64_t out = in > s->vocab ? in : s->vocab;
    int64_t own = m * s->kv_heads * s->head_dim * 2, single = decodes(b) * q;
    int64_t y = NARROW * out > m * s->hidden ? NARROW * out : m * s->hidden;
    l->y = arena_take(a, (y > single ? y : single) * 4);
    l->best = arena_take(a, NARROW * 4);
    l->own_at = arena_take(a, m * 4);
    l->own_k = arena_take(a, own);
    l->own_v = arena_take(a, own);
    l->result = arena_take(a, 3 * 16);
    carve_block(a, &l->block, false);
    l->x = arena_take(a, m * s->hidden * 4);
    l->in = arena_take(a, (NARROW * in > single ? NARROW * in : single) * 4);
    l->k = arena_take(a, SPARE_KV_BYTES);
    l->v = arena_take(a, SPARE_KV_BYTES);
    l->raw = arena_take(a, m > NARROW ? m * raw_width(s) * 2 : 0);
}

/* ---- buffers ------------------------------------------------------------------------------- */

static void carve_buffers(struct backend *b, struct arena *a)
{
    const struct model_shape *s = &b->model->shape;
    int64_t m = pad(b->options.max_tokens), rows = pad(b->options.max_rows);
    int64_t q = (int64_t)s->heads * s->head_dim, raw = raw_width(s);
    int64_t part = (int64_t)decode_group(b) * (s->head_dim + 2) * 4;
    int64_t blocks = 4LL * b->device.multiProcessorCount + m * s->heads;
    carve_block(a, &b->narrow, false);
    carve_block(a, &b->wide, true);
    b->x[0] = arena_take(a, m * s->hidden * 4);
    b->x[1] = arena_take(a, m * s->hidden * 4);
    b->q = arena_take(a, decodes(b) * q * 4);
    b->a = arena_take(a, decodes(b) * q * 4);
    b->h = arena_take(a, NARROW * s->ffn * 4LL);
    b->q16 = arena_take(a, m * q * 2);
    b->a16 = arena_take(a, m * q * 2);
    b->h16 = arena_take(a, m * s->ffn * 2);
    b->n16 = arena_take(a, (m > rows ? m : rows) * s->hidden * 2);
    b->raw = arena_take(a, m * raw * 2 > NARROW * raw * 4 ? m * raw * 2 : NARROW * raw * 4);
    b->logits = arena_take(a, rows * s->vocab * 4);
    b->weight = arena_take(a, rows * s->vocab * 4);
    b->best = arena_take(a, rows * 4);
    b->seen = arena_take(a, m * 4);
    b->parity_device = arena_take(a, 16);
    b->best_part = arena_take(a, rows * BEST_PARTS * 8);
    b->counter = arena_take(a, CUDA_COUNTERS * 4 + (m * s->heads + rows) * 4);
    b->work_bytes = blocks * part > WORK ? blocks * part : WORK;
    b->work = arena_take(a, b->work_bytes);
    b->sample = arena_take(a, rows * (int64_t)sizeof *b->sample);
    b->adjusts = ADJUSTS;
    b->adjust = arena_take(a, ADJUSTS * (int64_t)sizeof *b->adjust);
    b->on.rope_cos = arena_take(a, (int64_t)b->positions * s->head_dim / 2 * 4);
    b->on.rope_sin = arena_take(a, (int64_t)b->positions * s->head_dim / 2 * 4);
    b->expanded = arena_take(a, bricks_scratch(b->model));
    ranks_carve(b, b->options.collective ? b->options.collective->world : 1, a);
    carve_spare(b, a);
    arena_take(a, 32 << 20); /* cuBLASLt (blas.c) */
}

/* ---- pinned memory ------------------------------------------------------------------------- */

int memory_pinned(struct backend *b, void **p, int64_t bytes, struct err *e)
{
    bytes = (bytes + 15) / 16 * 16; /* transfer() */
    if (b->lent_pinned && b->lent_pinned->used + bytes > b->lent_pinned->bytes)
        return err_set(e, "cuda: a probe has %.0f MiB of host memory, which is too little",
                       (double)b->lent_pinned->bytes / (1 << 20));
    if (b->lent_pinned)
        *p = arena_take(b->lent_pinned, bytes);
    else
        CU(cudaHostAlloc(p, (size_t)bytes, cudaHostAllocMapped));
    memset(*p, 0, (size_t)bytes);
    return 0;
}

static int open_inflight(struct backend *b, struct inflight *f, struct err *e)
{
    int64_t rows = pad(b->options.max_rows);
    return memory_pinned(b, (void **)&f->narrow_host, b->narrow.bytes, e) ||
           memory_pinned(b, (void **)&f->wide_host, b->wide.bytes, e) ||
           memory_pinned(b, (void **)&f->best, rows * 4, e) ||
           memory_pinned(b, (void **)&f->sample, rows * (int64_t)sizeof *f->sample, e) ||
           memory_pinned(b, (void **)&f->sampled, rows * (int64_t)sizeof *f->sampled, e) ||
           memory_pinned(b, (void **)&f->adjust, ADJUSTS * (int64_t)sizeof *f->adjust, e);
}

static int open_pinned(struct backend *b, struct err *e)
{
    b->told = -1;
    if (memory_pinned(b, (void **)&b->parity_host, 2 * sizeof *b->parity_host, e))
        return -1;
    b->parity_host[1][0] = 1;
    return open_inflight(b, &b->inflight[0], e) || open_inflight(b, &b->inflight[1], e) ||
           memory_pinned(b, (void **)&b->spare.block.host, b->spare.block.bytes, e) ||
           memory_pinned(b, (void **)&b->spare.result_host, 3 * 16, e);
}

static void close_pinned(struct backend *b)
{
    for (int i = 0; i < 2; i++) {
        struct inflight *f = &b->inflight[i];
        void *host[] = {f->narrow_host, f->wide_host, f->best, f->sample, f->sampled, f->adjust};
        for (size_t k = 0; k < sizeof host / sizeof *host; k++)
            cudaFreeHost(host[k]);
    }
    cudaFreeHost(b->parity_host);
    cudaFreeHost(b->spare.block.host);
    cudaFreeHost(b->spare.result_host);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* As many as the largest matrix has in bf16: what a probe has room for. */
int64_t memory_packed_most(const struct model_shape *s)
{
    int64_t rows = (s->heads + 2LL * s->kv_heads) * s->head_dim;
    rows = rows > 2LL * s->ffn ? rows : 2LL * s->ffn;
    rows = rows > s->vocab ? rows : s->vocab;
    return 2 * rows * s->hidden;
}

/* What the largest probe allocates: the buffers of a narrow step, one matrix three times (the
 * model's, a drawn one, a repacked one), keys and values of the longest context twice, and outputs
 * of a batch of cases. */
int64_t memory_probe_arena(const struct model_shape *s)
{
    int64_t largest = memory_packed_most(s);
    int64_t kv = 4LL * (s->max_context + 40000) * s->kv_heads * s->head_dim * 2;
    return (1024LL << 20) + 3 * largest + kv + 24LL * NARROW * s->vocab * 4;
}

/* The same with the process's context and the libraries in it. */
static int64_t probe_room(const struct model_shape *s)
{
    return memory_probe_arena(s) + (640LL << 20);
}

/* specializer.pack_mib, or twice as much as the weights (decodes and wide steps may each want an
 * order of their own; of two forms, bf16 alone is repacked) where that is at most a quarter of the
 * rest. */
static int64_t pack_bytes(const struct model *m, int64_t asked, int64_t room)
{
    struct model packed = *m;
    int64_t quarter = (room - weights_bytes(m)) / 4;
    if (asked >= 0)
        return asked;
    packed.own_formats = m->own_formats && !m->bf16_copies;
    int64_t wanted = 2 * weights_bytes(&packed) + (64LL << 20);
    int64_t bytes = wanted < quarter ? wanted : quarter;
    return bytes > 0 ? bytes : 0;
}

static double gib(int64_t bytes)
{
    return (double)bytes / (1 << 30);
}

static int check_room(struct backend *b, struct err *e)
{
    size_t room, total;
    CU(cudaMemGetInfo(&room, &total));
    b->packs.bytes = pack_bytes(b->model, b->options.pack_bytes, (int64_t)room);
    int64_t need = b->weights.bytes + b->kv.bytes + b->buffers.bytes + b->packs.bytes;
    int64_t left = (int64_t)room - need, probes = probe_room(&b->model->shape);
    log_info(
        "cuda",
        "memory plan: weights %.2f, KV pages %.2f, buffers %.2f (steps of %d tokens, %d rows of "
        "logits), repacked weights %.2f GiB, left for probes %.2f GiB; %.2f of %.2f GiB are "
        "free",
        gib(b->weights.bytes), gib(b->kv.bytes), gib(b->buffers.bytes), b->options.max_tokens,
        b->options.max_rows, gib(b->packs.bytes), b->options.probes && left > 0 ? gib(left) : 0.0,
        gib((int64_t)room), gib((int64_t)total));
    if (b->options.probes && left < probes)
        log_warn("cuda",
                 "probes may need %.2f GiB: some kernels cannot be tried (less KV cache, "
                 "engine.kv_mib, leaves more)",
                 gib(probes));
    if (need > (int64_t)room - (256 << 20))
        return err_set(e,
                       "cuda: the model needs %.2f GiB on the device (weights %.2f, KV pages "
                       "%.2f, buffers %.2f, specializer.pack_mib %.2f), of which %.2f are free",
                       gib(need), gib(b->weights.bytes), gib(b->kv.bytes), gib(b->buffers.bytes),
                       gib(b->packs.bytes), gib((int64_t)room));
    return 0;
}

static int allocate(struct backend *b, struct arena *a, const char *what, struct err *e)
{
    if (a->bytes == 0)
        return 0;
    a->used = 0;
    if (b->lent && b->lent->used + a->bytes > b->lent->bytes)
        return err_set(e, "cuda: a probe has %.2f GiB, too little for %s", gib(b->lent->bytes),
                       what);
    if (b->lent) {
        a->base = arena_take(b->lent, a->bytes);
        return 0;
    }
    cudaError_t code = cudaMalloc((void **)&a->base, (size_t)a->bytes);
    if (code) {
        a->base = NULL;
        cudaGetLastError();
        return err_set(e, "cuda: %.2f GiB for %s: %s", gib(a->bytes), what,
                       cudaGetErrorString(code));
    }
    return 0;
}

static int open_rope(struct backend *b, struct err *e)
{
    size_t n = (size_t)b->positions * (size_t)(b->model->shape.head_dim / 2);
    float *cosine = xmalloc(n * sizeof *cosine), *sine = xmalloc(n * sizeof *sine);
    rope_tables(&b->model->shape, b->positions, cosine, sine);
    cudaError_t code = cudaMemcpy(b->on.rope_cos, cosine, n * 4, cudaMemcpyHostToDevice);
    if (!code)
        code = cudaMemcpy(b->on.rope_sin, sine, n * 4, cudaMemcpyHostToDevice);
    free(cosine);
    free(sine);
    CU(code);
    return 0;
}

int memory_open(struct backend *b, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    int64_t most = (int64_t)b->options.kv_pages * KV_PAGE;
    b->positions = s->max_context < most ? s->max_context : (int32_t)most;
    b->kv_layer = (int64_t)b->options.kv_pages * KV_PAGE * s->kv_heads * s->head_dim * 2;
    b->kv.bytes = 2 * b->kv_layer * s->layers;
    b->weights.bytes = weights_bytes(b->model);
    size_blocks(b);
    carve_buffers(b, &b->buffers);
    b->buffers.bytes = b->buffers.used;
    if ((!b->lent && check_room(b, e)) || allocate(b, &b->weights, "weights", e) ||
        allocate(b, &b->kv, "KV pages", e) ||
        allocate(b, &b->buffers, "the buffers of a step", e) ||
        allocate(b, &b->packs, "specializer.pack_mib", e))
        return -1;
    CU(cudaMemset(b->buffers.base, 0, (size_t)b->buffers.bytes));
    CU(cudaMemset(b->weights.base, 0, (size_t)b->weights.bytes));
    CU(cudaMemset(b->kv.base, 0, (size_t)b->kv.bytes)); /* what a page holds must be a number */
    carve_buffers(b, &b->buffers);
    b->buffers.used -= 32 << 20;
    return open_pinned(b, e) || open_rope(b, e);
}

/* Three quarters of what is left when everything else has its place, less if probes need more. */
int64_t memory_kv_room(const struct model *m, const struct backend_options *o, int64_t *page_bytes)
{
    const struct model_shape *s = &m->shape;
    struct backend b = {.model = m, .options = *o};
    size_t room, total;
    *page_bytes = 4LL * s->layers * KV_PAGE * s->kv_heads * s->head_dim;
    if (cudaMemGetInfo(&room, &total) || cudaGetDeviceProperties(&b.device, 0)) {
        cudaGetLastError();
        return 0;
    }
    b.positions = s->max_context;
    size_blocks(&b);
    carve_buffers(&b, &b.buffers);
    if (!m->alone) /* ranks agree on pages before they have a collective */
        ranks_carve(&b, m->shard.world, &b.buffers);
    int64_t left = (int64_t)room - o->keep_bytes - weights_bytes(m) - b.buffers.used -
                   pack_bytes(m, o->pack_bytes, (int64_t)room);
    int64_t probe = probe_room(s);
    int64_t spare = o->probes && left / 4 < probe ? probe : left / 4;
    return left > spare ? left - spare : 0;
}

int64_t memory_fixed(const struct model *m, const struct backend_options *o)
{
    struct backend b = {.model = m, .options = *o};
    if (cudaGetDeviceProperties(&b.device, 0)) {
        cudaGetLastError();
        return 0;
    }
    b.positions = m->shape.max_context;
    size_blocks(&b);
    carve_buffers(&b, &b.buffers);
    return weights_bytes(m) + b.buffers.used + (o->pack_bytes > 0 ? o->pack_bytes : 0);
}

void memory_close(struct backend *b)
{
    cudaFree(b->weights.base);
    cudaFree(b->kv.base);
    cudaFree(b->buffers.base);
    cudaFree(b->packs.base);
    close_pinned(b);
    free(b->on.layer);
}
