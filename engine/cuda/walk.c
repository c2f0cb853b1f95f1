/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c - a step on a stream: the nodes of the plan, one after the other.
 *
 * The same walk is captured into graphs (graph.c), runs wide and mixed steps directly, and is what
 * hooks observe. The residual stream alternates between two buffers, so no region writes what it
 * reads. Every launch of ours has a programmatic edge to the one before it: kernels wait by
 * themselves before they touch what that one wrote.
 */
#include <stdatomic.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/reduce.h"
#include "engine/cuda/walk.h"

int32_t walk_padded(int32_t n)
{
    if (n <= NARROW)
        return m_bucket[m_bucket_of(n)];
    return (n + NARROW - 1) / NARROW * NARROW;
}

void walk_init(struct walk *w, struct backend *b, cudaStream_t stream, const struct step_block *s,
               const struct kernel_choice *c)
{
    *w = (struct walk){.b = b,
                       .stream = stream,
                       .block = s,
                       .choice = c,
                       .wide = s == &b->wide,
                       .m = c->m,
                       .rows = c->rows,
                       .lead = c->lead,
                       .context = c->context,
                       .decode = true,
                       .x = b->x[0],
                       .y = b->x[1],
                       .logits = b->own_logits ? b->own_logits : b->logits,
                       .best = b->best};
    if (!w->wide) {
        w->q = b->q;
        w->a = b->a;
        w->h = b->h;
    }
}

int walk_place(const struct walk *w, enum region r, int32_t layer)
{
    return formats_place(w->b->formats, r, layer, w->m);
}

const struct kernel *walk_kernel(const struct walk *w, enum region r, int32_t layer)
{
    return w->choice->kernel[walk_place(w, r, layer)];
}

bool walk_times(const struct walk *w, enum region r, int32_t layer)
{
    int32_t layers = w->b->model->shape.layers;
    return w->timed &&
           (region_info(r)->once || layer == formats_middle(w->b->formats, r, layer, w->m, layers));
}

int32_t walk_width(const struct walk *w, enum region r)
{
    return r == REGION_HEAD ? w->rows : w->m;
}

void walk_floats(struct walk *w, bool hooked)
{
    const struct loaded *l = w->choice->kernel[REGION_ATTN]->backend;
    if (w->wide && w->decode && w->m <= DECODE_MOST && (hooked || (l && !l->lt))) {
        w->q = w->b->q;
        w->a = w->b->a;
    }
}

int launch_clusters(struct walk *w, enum primitive p, dim3 grid, unsigned cluster, int threads,
                    int smem, const void *args, struct err *e)
{
    cudaLaunchAttribute how[] = {
        {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
         .val.programmaticStreamSerializationAllowed = 1},
        {.id = cudaLaunchAttributeClusterDimension, .val.clusterDim = {cluster, 1, 1}}};
    cudaLaunchConfig_t c = {.gridDim = grid,
                            .blockDim = {(unsigned)threads, 1, 1},
                            .dynamicSmemBytes = (size_t)smem,
                            .stream = w->stream,
                            .attrs = how,
                            .numAttrs = w->b->device.major < 9 ? 0
                                        : cluster > 1          ? 2
                                                               : 1};
    void *parameter[] = {(void *)args};
    w->launches[w->place]++;
    CU(cudaLaunchKernelExC(&c, (const void *)w->b->primitive[p], parameter));
    return 0;
}

int launch(struct walk *w, enum primitive p, dim3 grid, int threads, int smem, const void *args,
           struct err *e)
{
    return launch_clusters(w, p, grid, 1, threads, smem, args, e);
}

int walk_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer, struct err *e)
{
    const struct loaded *l = k->backend;
    w->region = r;
    w->place = walk_place(w, r, layer);
    w->lt = l ? l->lt : NULL;
    if (l && !l->lt && r == REGION_ATTN && !w->decode)
        return eager_attn_beside(w, k, layer, e);
    if (l && !l->lt)
        return loaded_region(w, k, r, layer, e);
    if (r == REGION_REDUCE)
        return reduce_eager(w, e);
    return eager_region(w, r, layer, e);
}

/* A step that hooks observe has floats, too: they look at those. */
static void want16(struct walk *w, enum region r, int32_t layer)
{
    enum region by = region_info(r)->feeds;
    w->wants16 = by && walk_kernel(w, by, layer)->reads16;
    w->only16 = !w->live;
}

static int mark(const struct walk *w, enum region r, int32_t layer, int end, struct err *e)
{
    if (walk_times(w, r, layer))
        CU(cudaEventRecord(w->timed->region_event[walk_place(w, r, layer)][end], w->stream));
    return 0;
}

void walk_aim(struct walk *w, enum region r)
{
    w->x = w->b->x[region_info(r)->x];
    w->y = w->b->x[region_info(r)->y];
}

static int run(void *ctx, const struct plan_node *n, struct err *e)
{
    struct walk *w = ctx;
    enum region r = n->region;
    int32_t layer = n->layer;
    if ((int)r >= REGION_LOCAL)
        return ranks_put_together(w, n, e);
    walk_aim(w, r);
    ranks_aim(w, r);
    reduce_aim(w, n);
    want16(w, r, layer);
    if (mark(w, r, layer, 0, e))
        return -1;
    if (w->live && hook_before(w, r, layer, e))
        return -1;
    if (walk_region(w, walk_kernel(w, r, layer), r, layer, e) || mark(w, r, layer, 1, e))
        return -1;
    return w->live ? hook_after(w, r, layer, e) : 0;
}

int walk_step(struct walk *w, struct err *e)
{
    return plan_walk(w->b->plan, w->rows, 0, run, w, e);
}
