/* SPDX-License-Identifier: Apache-2.0 */
/* loaded.c - kernels that were built elsewhere: cubins on their way in, in use, and out. An object
 * may also be the record of a library's algorithm (lt.c), which has no code of ours.
 *
 * A cubin says of itself how it is launched (kernels/cuda.h, whet_info). It is read back from the
 * device and checked against what this backend can give it.
 *
 * Unloading a library stalls whatever runs beside it, so an unloaded kernel is only retired; the
 * engine thread frees it when it has nothing else to do, once no graph refers to it.
 *
 * Specializer thread: load, unload. Engine and builder threads: loaded_region. What both touch is
 * behind load_lock.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/lt_record.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/products.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/reduce.h"
#include "engine/cuda/walk.h"
#include "engine/cuda/wide.h"

enum { OBJECT_MAX = 64 << 20, CLUSTER_MOST = 16 };

/* ---- loading ------------------------------------------------------------------------------- */

static int check_launch(const struct backend *b, const struct cuda_launch *l, int i, struct err *e)
{
    const struct cudaDeviceProp *d = &b->device;
    if (l->grid[0] < 1 || l->grid[1] < 1 || l->grid[2] < 1 || l->grid[1] > 65535 ||
        l->grid[2] > 65535)
        return err_set(e, "launch %d has a grid of %d x %d x %d", i, l->grid[0], l->grid[1],
                       l->grid[2]);
    if (l->threads < 1 || l->threads > 1024 || l->smem < 0 ||
        l->smem > (int32_t)d->sharedMemPerBlockOptin)
        return err_set(e, "launch %d asks for %d threads and %d bytes of shared memory", i,
                       l->threads, l->smem);
    /* A launch that the device cannot make is found out when it is captured, where it looks like a
     * failure of the device: the kernel would be tried again, and by another process. */
    if (l->cluster < 0 || l->cluster > CLUSTER_MOST || (l->cluster > 1 && d->major < 9))
        return err_set(e, "launch %d has clusters of %d blocks; compute capability %d.%d has %s", i,
                       l->cluster, d->major, d->minor, d->major < 9 ? "none" : "up to 16");
    if (l->cluster > 1 && l->grid[0] % l->cluster)
        return err_set(e, "launch %d has %d blocks in clusters of %d", i, l->grid[0], l->cluster);
    return 0;
}

static int check_info(const struct backend *b, const struct cuda_kernel_info *i, enum region r,
                      struct err *e)
{
    if (i->abi != WHET_CUDA_ABI)
        return err_set(e, "speaks interface %d, this program %d", i->abi, WHET_CUDA_ABI);
    if (i->region != (int32_t)r)
        return err_set(e, "computes region %d, expected %s", i->region, region_name(r));
    if (i->m_max < 1 || i->launches < 1 || i->launches > CUDA_LAUNCHES)
        return err_set(e, "says m_max %d, %d launches", i->m_max, i->launches);
    if (i->counters < 0 || i->counters > CUDA_COUNTERS || i->work_bytes < 0 ||
        i->work_bytes > b->work_bytes)
        return err_set(e, "asks for %d counters and %lld bytes to work in", i->counters,
                       (long long)i->work_bytes);
    if (i->packed_bytes < 0 || (i->packed_bytes > 0 && !memchr(i->layout, 0, sizeof i->layout)))
        return err_set(e, "its layout has no proper name");
    int64_t most =
        b->model ? memory_packed_most(&b->model->shape) : 0; /* a probe of reduce: none */
    if (i->packed_bytes > most)
        return err_set(e,
                       "asks for %.1f MiB of repacked weights a layer; the largest matrix of the "
                       "model has %.1f",
                       (double)i->packed_bytes / 1048576, (double)most / 1048576);
    for (int l = 0; l < i->launches; l++)
        if (check_launch(b, &i->launch[l], l, e))
            return -1;
    return 0;
}

static int read_info(const struct loaded *l, cudaStream_t stream, struct cuda_kernel_info *info,
                     struct err *e)
{
    void *at;
    size_t bytes;
    CU(cudaLibraryGetGlobal(&at, &bytes, l->library, "whet_info"));
    if (bytes != sizeof *info)
        return err_set(e, "whet_info has %zu bytes, expected %zu", bytes, sizeof *info);
    CU(cudaMemcpyAsync(info, at, bytes, cudaMemcpyDeviceToHost, stream));
    CU(cudaStreamSynchronize(stream));
    return 0;
}

static int open_library(struct loaded *l, const char *path, struct err *e)
{
    FILE *f = fopen(path, "rbe");
    long n = -1;
    if (f && fseek(f, 0, SEEK_END) == 0)
        n = ftell(f);
    char *image = n > 0 && n < OBJECT_MAX ? xmalloc((size_t)n) : NULL;
    if (f && image && (rewind(f), fread(image, 1, (size_t)n, f)) != (size_t)n) {
        free(image);
        image = NULL;
    }
    if (f)
        fclose(f);
    if (!image)
        return err_set(e, "cannot be read");
    cudaError_t code = cudaLibraryLoadData(&l->library, image, NULL, NULL, 0, NULL, NULL, 0);
    free(image);
    CU(code);
    return 0;
}

static int open_entries(struct backend *b, struct loaded *l, const char *name, struct err *e)
{
    for (int i = 0; i < l->info.launches; i++) {
        char entry[256];
        struct cudaFuncAttributes a;
        const struct cuda_launch *how = &l->info.launch[i];
        if (i == 0)
            snprintf(entry, sizeof entry, "%s", name);
        else
            snprintf(entry, sizeof entry, "%s_%d", name, i);
        CU(cudaLibraryGetKernel(&l->entry[i], l->library, entry));
        CU(cudaFuncGetAttributes(&a, (const void *)l->entry[i]));
        if (how->threads > a.maxThreadsPerBlock ||
            how->smem + a.sharedSizeBytes > b->device.sharedMemPerBlockOptin)
            return err_set(e,
                           "%s: %d threads with %d registers and %zu bytes of shared memory do "
                           "not fit this device",
                           entry, how->threads, a.numRegs, how->smem + a.sharedSizeBytes);
        if (how->smem > 0)
            CU(cudaFuncSetAttribute((const void *)l->entry[i],
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, how->smem));
        if (how->cluster > 8)
            CU(cudaFuncSetAttribute((const void *)l->entry[i],
                                    cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    return 0;
}

static int load_parts(struct backend *b, struct loaded *l, const struct kernel_object *o,
                      bool packs, struct err *e)
{
    if (lt_record_is(o->path))
        return lt_open(b, o->path, o->region, &l->lt, e);
    if (open_library(l, o->path, e) || read_info(l, b->loader, &l->info, e) ||
        check_info(b, &l->info, o->region, e) || wide_check(b, l, o->region, e) ||
        open_entries(b, l, o->entry && *o->entry ? o->entry : "whet_kernel", e))
        return -1;
    if (l->info.packed_bytes == 0 || !packs)
        return 0;
    pthread_mutex_lock(&b->load_lock);
    int rc = pack_open(b, l, o->region, o->formats, e);
    pthread_mutex_unlock(&b->load_lock);
    return rc;
}

struct kernel *loaded_open(struct backend *b, const struct kernel_object *o, bool packs,
                           struct err *e)
{
    struct loaded *l = xcalloc(1, sizeof *l);
    struct kernel *k = xcalloc(1, sizeof *k);
    snprintf(k->id, sizeof k->id, "%s", o->id);
    snprintf(k->name, sizeof k->name, "%s", o->name);
    k->region = o->region;
    k->origin = o->origin;
    k->backend = l;
    l->kernel = k;
    l->number = ++b->loads;
    if (load_parts(b, l, o, packs, e)) {
        err_prefix(e, "%s", o->path);
        cuda_unload(b, k);
        return NULL;
    }
    if (l->lt)
        l->info.m_max = l->lt->m;
    int32_t most = o->region == REGION_ATTN ? DECODE_MOST : NARROW;
    bool any = l->info.m_max < most || l->lt || l->info.box_rows;
    k->m_max = any ? l->info.m_max : most;
    k->leaves16 = l->lt || l->info.leaves16;
    k->reads16 = l->lt || l->info.box_rows;
    return k;
}

bool loaded_takes(const struct kernel *k, bool wide)
{
    const struct loaded *l = k->backend;
    bool either = k->region == REGION_ATTN; /* has floats in wide steps, too */
    return !l || l->lt || either || (l->info.box_rows > 0 && l->info.m_max > NARROW) == wide;
}

struct kernel *cuda_load(struct backend *b, const struct kernel_object *o, struct err *e)
{
    return loaded_open(b, o, true, e);
}

void cuda_unload(struct backend *b, struct kernel *k)
{
    if (!k)
        return;
    struct loaded *l = k->backend;
    atomic_store(&l->retired, true);
    pthread_mutex_lock(&b->load_lock);
    l->next_retired = b->retired;
    b->retired = l;
    pthread_mutex_unlock(&b->load_lock);
}

void loaded_reap(struct backend *b, bool all)
{
    if (all)
        pthread_mutex_lock(&b->load_lock);
    else if (pthread_mutex_trylock(&b->load_lock)) /* a kernel is being loaded: next time */
        return;
    if (b->retired && !all)
        cudaStreamSynchronize(b->stream);
    for (struct loaded **at = &b->retired; *at;) {
        struct loaded *l = *at;
        if (!all && graph_uses(b, l->kernel, true)) {
            at = &l->next_retired;
            continue;
        }
        *at = l->next_retired;
        reduce_forget(b, l->kernel);
        pack_drop(b, l->pack);
        if (l->library)
            cudaLibraryUnload(l->library);
        free(l->lt);
        free(l->kernel);
        free(l);
    }
    pthread_mutex_unlock(&b->load_lock);
}

/* ---- running ------------------------------------------------------------------------------- */

union any_args {
    struct cuda_attn_in_args attn_in;
    struct cuda_attn_args attn;
    struct cuda_out_args out;
    struct cuda_mlp_in_args mlp_in;
    struct cuda_head_args head;
    struct peer_reduce_args reduce;
};

/* The repacked weights that l reads in a layer, NULL for a kernel that reads plain ones. The head
 * has one matrix, whatever layer a bench says. */
static const char *packed_of(const struct backend *b, const struct loaded *l, enum region r,
                             int32_t layer)
{
    if (!l->pack)
        return NULL;
    int32_t at = region_info(r)->once ? 0 : l->pack->index ? l->pack->index[layer] : layer;
    return b->packs.base + l->pack->at + at * l->pack->each;
}

/* Weights that the step will read after region r of `layer`, as the kernel that will read them
 * wants them: what a kernel may bring into L2 ahead of time. Which those are, the plan says. */
struct ahead {
    const void *data;
    int64_t bytes;
};

static struct ahead ahead_of(const struct walk *w, enum region r, int32_t layer)
{
    const struct backend *b = w->b;
    if (w->next)
        return (struct ahead){w->next, w->next_bytes};
    const struct plan_node *n = plan_ahead(b->plan, r, layer);
    if (!n)
        return (struct ahead){NULL, 0};
    struct matrix m = matrix_of(b, n->region, n->layer, walk_width(w, n->region));
    const struct kernel *k = walk_kernel(w, n->region, n->layer);
    const struct loaded *l = k ? k->backend : NULL;
    if (l && l->pack)
        return (struct ahead){packed_of(b, l, n->region, n->layer), l->pack->each};
    return (struct ahead){m.data, m.bytes};
}

static void fill_attn_in(const struct walk *w, int32_t layer, struct cuda_attn_in_args *a)
{
    const struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    const struct device_layer *l = &b->on.layer[layer];
    struct ahead ahead = ahead_of(w, REGION_ATTN_IN, layer);
    *a = (struct cuda_attn_in_args){.counts = w->block->counts,
                                    .x = w->x,
                                    .norm = l->attn_norm,
                                    .w = matrix_of(b, REGION_ATTN_IN, layer, w->m).data,
                                    .bias = l->bias,
                                    .q_norm = l->q_norm,
                                    .k_norm = l->k_norm,
                                    .rope_cos = b->on.rope_cos,
                                    .rope_sin = b->on.rope_sin,
                                    .position = w->block->position,
                                    .kv_at = w->kv_at ? w->kv_at : w->block->kv_at,
                                    .q = w->q,
                                    .k_pages = w->k_pages ? w->k_pages : kv_pages(b, layer, 0),
                                    .v_pages = w->v_pages ? w->v_pages : kv_pages(b, layer, 1),
                                    .work = {b->work, b->counter},
                                    .hidden = s->hidden,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .eps = s->eps,
                                    .next = ahead.data,
                                    .next_bytes = ahead.bytes};
}

/* Where the region leaves what it has in bf16, beside its floats or instead of them; NULL: nowhere.
 */
static void *asked16(const struct walk *w, const struct loaded *l, enum region r)
{
    return w->wants16 && l->info.leaves16 ? wide_left16(w, r) : NULL;
}

static void fill_attn(const struct walk *w, int32_t layer, void *a16, struct cuda_attn_args *a)
{
    const struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    struct ahead ahead = ahead_of(w, REGION_ATTN, layer);
    *a = (struct cuda_attn_args){.counts = w->counts ? w->counts : w->block->counts,
                                 .q = w->q,
                                 .k_pages = w->k_pages ? w->k_pages : kv_pages(b, layer, 0),
                                 .v_pages = w->v_pages ? w->v_pages : kv_pages(b, layer, 1),
                                 .position = w->block->position,
                                 .pages_at = w->block->pages_at,
                                 .page_table = w->block->page_table,
                                 .span = w->block->span,
                                 .a = a16 && w->only16 ? NULL : w->a,
                                 .a16 = a16,
                                 .work = {b->work, b->counter},
                                 .next = ahead.data,
                                 .next_bytes = ahead.bytes,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .scale = (float)(1 / sqrt((double)s->head_dim))};
}

static void fill_args(const struct walk *w, const struct loaded *l, enum region r, int32_t layer,
                      union any_args *a)
{
    const void *packed = packed_of(w->b, l, r, layer);
    void *out16 = asked16(w, l, r);
    const struct backend *b = w->b;
    const struct model_shape *s = &b->model->shape;
    struct matrix m = matrix_of(b, r, layer, walk_width(w, r));
    struct cuda_work work = {b->work, b->counter};
    struct ahead ahead = ahead_of(w, r, layer);
    switch (r) {
    case REGION_REDUCE:
        reduce_fill(w, &a->reduce);
        break;
    case REGION_ATTN_IN:
        fill_attn_in(w, layer, &a->attn_in);
        a->attn_in.packed = packed;
        break;
    case REGION_ATTN:
        fill_attn(w, layer, out16, &a->attn);
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        a->out = (struct cuda_out_args){.counts = w->block->counts,
                                        .in = r == REGION_ATTN_OUT ? w->a : w->h,
                                        .x = w->fused.area.world ? w->x : ranks_residual(w),
                                        .w = m.data,
                                        .packed = packed,
                                        .y = w->y,
                                        .work = work,
                                        .n = m.rows,
                                        .k = m.cols,
                                        .next = ahead.data,
                                        .next_bytes = ahead.bytes,
                                        .sum = w->fused};
        break;
    case REGION_MLP_IN:
        a->mlp_in = (struct cuda_mlp_in_args){.counts = w->block->counts,
                                              .x = w->x,
                                              .norm = b->on.layer[layer].mlp_norm,
                                              .w = m.data,
                                              .packed = packed,
                                              .h = out16 && w->only16 ? NULL : w->h,
                                              .wide.out16 = out16,
                                              .work = work,
                                              .hidden = s->hidden,
                                              .ffn = s->ffn,
                                              .eps = s->eps,
                                              .next = ahead.data,
                                              .next_bytes = ahead.bytes};
        break;
    default:
        a->head = (struct cuda_head_args){.counts = w->block->counts,
                                          .row = w->block->row,
                                          .x = w->x,
                                          .norm = b->on.final_norm,
                                          .w = m.data,
                                          .packed = packed,
                                          .logits = w->logits,
                                          .best = w->best,
                                          .work = work,
                                          .hidden = s->hidden,
                                          .vocab = m.rows,
                                          .eps = s->eps};
        break;
    }
}

/* Where the arguments of region r have what wide steps need. */
static struct cuda_wide *wide_of(union any_args *a, enum region r)
{
    return r == REGION_ATTN_IN  ? &a->attn_in.wide
           : r == REGION_MLP_IN ? &a->mlp_in.wide
                                : &a->out.wide;
}

/* In a wide step q is wanted as float, too, where a template takes the attention of the first
 * tokens, or of all. Elsewhere (a probe's) it is made of the bf16 afterwards. */
static int fill_wide(struct walk *w, const struct loaded *l, enum region r, union any_args *a,
                     struct err *e)
{
    if (!w->wide && l->info.m_max > NARROW)
        return err_set(e, "cuda: a kernel for wide steps in a narrow one");
    if (r == REGION_ATTN_IN)
        a->attn_in.q = w->lead || wide_floats(w) ? w->b->q : NULL;
    return wide_begin(w, l, r, w->b->work, wide_of(a, r), e);
}

static int launch_loaded(const struct walk *w, const struct loaded *l, int i, union any_args *args,
                         struct err *e)
{
    const struct cuda_launch *how = &l->info.launch[i];
    cudaLaunchAttribute attribute[2] = {0};
    cudaLaunchConfig_t c = {
        .gridDim = {(unsigned)how->grid[0], (unsigned)how->grid[1], (unsigned)how->grid[2]},
        .blockDim = {(unsigned)how->threads, 1, 1},
        .dynamicSmemBytes = (size_t)how->smem,
        .stream = w->stream,
        .attrs = attribute};
    void *parameter[] = {args};
    if (how->pdl && w->b->device.major >= 9) {
        attribute[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (how->cluster > 1) {
        attribute[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[c.numAttrs].val.clusterDim.x = (unsigned)how->cluster;
        attribute[c.numAttrs].val.clusterDim.y = 1;
        attribute[c.numAttrs++].val.clusterDim.z = 1;
    }
    CU(cudaLaunchKernelExC(&c, (const void *)l->entry[i], parameter));
    return 0;
}

int loaded_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                  struct err *e)
{
    const struct loaded *l = k->backend;
    union any_args args;
    fill_args(w, l, r, layer, &args);
    w->have16[r] = asked16(w, l, r) != NULL;
    if (l->info.box_rows && fill_wide(w, l, r, &args, e))
        return -1;
    w->launches[w->place] += l->info.launches;
    for (int i = 0; i < l->info.launches; i++)
        if (launch_loaded(w, l, i, &args, e))
            return -1;
    return l->info.box_rows ? wide_end(w, r, e) : 0;
}
