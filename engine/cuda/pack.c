/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - repacked weights: copies of a region's matrices in the order that a kernel reads them.
 *
 * A layout exists once, however many kernels read it, in the arena allocated at start; its cubin's
 * own whet_pack makes it out of the plain rows, layer by layer. Places are found first-fit between
 * the layouts that are there, and a layout goes with its last user. All under load_lock.
 *
 * Requests run meanwhile, so a copy takes a few blocks on the stream of lowest priority and rests
 * between layers: it takes a tenth of the bandwidth, and no step is late by more than that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/err.h"
#include "engine/cuda/bricks.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"

enum { PACK_BLOCKS = 24 };

static struct matrix matrix(const struct backend *b, struct device_weight w, int32_t tokens,
                            int32_t rows, int32_t cols)
{
    int64_t kept = bricks_bytes(w.type, rows, cols), plain = 2LL * rows * cols;
    if (w.copy && device_reads_copy(b->model, w.type, tokens))
        return (struct matrix){w.copy, rows, cols, DTYPE_BF16, plain, NULL};
    return (struct matrix){w.data, rows, cols, w.type, kept ? kept : plain, w.copy};
}

struct matrix matrix_of(const struct backend *b, enum region r, int32_t layer, int32_t tokens)
{
    const struct model_shape *s = &b->model->shape;
    const struct device_layer *l = &b->on.layer[layer];
    int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    switch (r) {
    case REGION_ATTN_IN:
        return matrix(b, l->wqkv, tokens, q + 2 * kv, s->hidden);
    case REGION_ATTN_OUT:
        return matrix(b, l->wo, tokens, s->hidden, q);
    case REGION_MLP_IN:
        return matrix(b, l->wgu, tokens, 2 * s->ffn, s->hidden);
    case REGION_MLP_OUT:
        return matrix(b, l->wdown, tokens, s->hidden, s->ffn);
    case REGION_HEAD:
        return matrix(b, b->on.head, tokens, b->model->head.rows, s->hidden);
    default:
        return (struct matrix){.type = DTYPE_BF16};
    }
}

/* Offset of the first gap between the packs of the arena that has room for `bytes`; -1: none has.
 */
static int64_t find_room(const struct backend *b, int64_t bytes)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (const struct pack *p = b->packs_list; p; p = p->next)
            if (at < p->at + p->bytes && p->at < at + bytes) {
                at = p->at + p->bytes;
                moved = true;
            }
    }
    return at + bytes <= b->packs.bytes ? at : -1;
}

static int run_pack(struct backend *b, const struct loaded *l, const struct pack *p,
                    const struct format_class *formats, struct err *e)
{
    cudaKernel_t entry;
    struct timespec rest = {0, 500000};
    CU(cudaLibraryGetKernel(&entry, l->library, "whet_pack"));
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < p->layers && !code; i++) {
        struct matrix m = matrix_of(b, p->region, class_layer(formats, i), l->info.m_max);
        struct cuda_pack_args a = {m.data, b->packs.base + p->at + i * p->each, m.rows, m.cols};
        void *parameter[] = {&a};
        code = cudaLaunchKernel((const void *)entry, (dim3){PACK_BLOCKS, 1, 1}, (dim3){256, 1, 1},
                                parameter, 0, b->loader);
        if (!code)
            code = cudaStreamSynchronize(b->loader);
        nanosleep(&rest, NULL);
    }
    CU(code);
    return 0;
}

static void pack_free(struct pack *p)
{
    free(p->index);
    free(p);
}

/* With the places of its layers; NULL: there is no room for it. */
static struct pack *pack_make(struct backend *b, struct loaded *l, const struct pack *like,
                              const struct format_class *formats, struct err *e)
{
    struct pack *p = xmalloc(sizeof *p);
    *p = *like;
    snprintf(p->layout, sizeof p->layout, "%s", l->info.layout);
    p->bytes = p->each * p->layers;
    p->at = find_room(b, p->bytes);
    if (formats)
        p->index = xcalloc((size_t)b->model->shape.layers, sizeof *p->index);
    for (int32_t i = 0; i < p->layers && formats; i++)
        p->index[formats->layer[i]] = i;
    if (p->at < 0)
        err_set(e,
                "layout %s needs %.1f MiB of repacked weights, for which the %.1f MiB of "
                "specializer.pack_mib have no room left",
                p->layout, (double)p->bytes / 1048576, (double)b->packs.bytes / 1048576);
    if (p->at < 0 || run_pack(b, l, p, formats, e)) {
        pack_free(p);
        return NULL;
    }
    p->next = b->packs_list;
    b->packs_list = p;
    return p;
}

/* The pack of this kernel's layout, made if it is not there; under load_lock. Classes have no layer
 * in common, so the first layer and their number tell one from another. */
int pack_open(struct backend *b, struct loaded *l, enum region r,
              const struct format_class *formats, struct err *e)
{
    const struct pack like = {.region = r,
                              .layer = class_layer(formats, 0),
                              .layers = class_layers(formats, r, b->model->shape.layers),
                              .each = (l->info.packed_bytes + 255) / 256 * 256};
    struct pack *p = b->packs_list;
    while (p && (p->region != r || p->layer != like.layer || p->layers != like.layers ||
                 strcmp(p->layout, l->info.layout) != 0))
        p = p->next;
    if (!p && !(p = pack_make(b, l, &like, formats, e)))
        return -1;
    if (p->each != like.each)
        return err_set(e, "layout %s: %lld bytes a layer, another kernel says %lld", p->layout,
                       (long long)like.each, (long long)p->each);
    p->users++;
    l->pack = p;
    return 0;
}

void pack_drop(struct backend *b, struct pack *p)
{
    if (!p || --p->users > 0)
        return;
    struct pack **at = &b->packs_list;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pack_free(p);
}
