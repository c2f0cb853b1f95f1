/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c - ranks on GPUs: which collective they have, and where a step uses it.
 *
 * An id begins with a letter: N and NCCL's own, P and the same where all ranks are on one host, or
 * H and the name of shared memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/cpu/collective_shm.h"
#include "engine/cuda/collective_cuda.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/reduce.h"
#include "engine/cuda/walk.h"

/* ---- how they find each other ---------------------------------------------------------------- */

/* Whoever keeps NCCL from GPU-to-GPU memory means all of it; the other is for comparing. */
static bool peers_wanted(void)
{
    const char *own = getenv("WHET_PEER_SUMS"), *p2p = getenv("NCCL_P2P_DISABLE");
    return !(own && !strcmp(own, "0")) && !(p2p && strcmp(p2p, "0") != 0);
}

static int make(char id[RANKS_ID], int32_t world, bool one_host, bool shared, struct err *e)
{
    struct err why = {"ranks share a GPU"};
    memset(id, 0, RANKS_ID);
    id[0] = one_host && peers_wanted() ? 'P' : 'N';
    if (!shared && collective_nccl_id(id + 1, &why) == 0)
        return 0;
    if (!one_host)
        return err_set(e, "cuda: ranks on several hosts need NCCL: %s", why.msg);
    log_warn("cuda", "sums of %d ranks go through the host's memory, which is slow: %s", world,
             why.msg);
    char name[RANKS_ID];
    id[0] = 'H';
    if (collective_shm_ranks.make(name, world, one_host, shared, e))
        return -1;
    memcpy(id + 1, name, RANKS_ID - 1);
    return 0;
}

static struct collective *open_by_id(const char id[RANKS_ID], int32_t rank, int32_t world,
                                     double timeout_s, struct err *e)
{
    if (id[0] == 'N')
        return collective_nccl_open(id + 1, rank, world, e);
    if (id[0] == 'P')
        return collective_peer_open(collective_nccl_open(id + 1, rank, world, e));
    struct collective *shm = collective_shm_open(id + 1, rank, world, timeout_s, e);
    return shm ? collective_host_open(shm) : NULL;
}

static void made(const char id[RANKS_ID])
{
    if (id[0] == 'H')
        collective_shm_ranks.made(id + 1);
}

static void device(char *to, size_t n)
{
    struct cudaDeviceProp p;
    to[0] = 0;
    if (cudaGetDeviceProperties(&p, 0)) {
        cudaGetLastError();
        return;
    }
    for (size_t i = 0; i < sizeof p.uuid.bytes && 2 * i + 3 <= n; i++)
        snprintf(to + 2 * i, 3, "%02x", (unsigned char)p.uuid.bytes[i]);
}

const struct ranks_ops cuda_ranks = {.many_hosts = true,
                                     .reduces =
                                         true, /* where backend_ops.eager() has a kernel for it */
                                     .searched = true,
                                     .make = make,
                                     .open = open_by_id,
                                     .made = made,
                                     .device = device};

/* ---- in a backend --------------------------------------------------------------------------- */

void ranks_carve(struct backend *b, int32_t world, struct arena *a)
{
    int64_t rows = walk_padded(b->options.max_rows), m = walk_padded(b->options.max_tokens);
    if (world < 2)
        return;
    b->own_logits = arena_take(a, rows * b->model->head.rows * 4);
    b->gathered = arena_take(a, world * rows * b->model->head.rows * 4);
    b->zeros = arena_take(a, m * b->model->shape.hidden * 4);
    b->partial = arena_take(a, m * b->model->shape.hidden * 4);
}

int ranks_prepare(struct backend *b, struct err *e)
{
    struct collective *c = b->options.collective;
    int64_t rows = walk_padded(b->options.max_rows), m = walk_padded(b->options.max_tokens);
    int64_t sum = m * b->model->shape.hidden, logits = rows * b->model->head.rows;
    return c ? c->ops->prepare(c, sum > logits ? sum : logits, b->stream, e) : 0;
}

const float *ranks_residual(const struct walk *w)
{
    return w->b->zeros ? w->b->zeros : w->x;
}

/* The rows of each rank's part of the head to their columns of the logits; where they overlap, the
 * later rank's count, on all ranks alike. */
static int spread(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    size_t own = (size_t)b->model->head.rows * 4, all = (size_t)b->model->shape.vocab * 4;
    for (int32_t r = 0; r < b->options.collective->world; r++) {
        int32_t from = shard_tokens(b->model->shape.vocab, b->options.collective->world, r).from;
        const char *part = (const char *)b->gathered + (size_t)r * (size_t)w->rows * own;
        CU(cudaMemcpy2DAsync(b->logits + from, all, part, own, own, (size_t)w->rows,
                             cudaMemcpyDeviceToDevice, w->stream));
    }
    return 0;
}

void ranks_aim(struct walk *w, enum region r)
{
    if (w->b->partial && (r == REGION_ATTN_OUT || r == REGION_MLP_OUT))
        w->y = w->b->partial;
}

static int add(struct walk *w, const struct plan_node *n, struct err *e)
{
    struct backend *b = w->b;
    int32_t hidden = b->model->shape.hidden;
    struct eager_add_args a = {&w->block->counts->m, b->x[region_info(n->of)->x],
                               b->x[region_info(n->of)->y], hidden};
    dim3 grid = {(unsigned)(hidden + 1023) / 1024, (unsigned)w->m, 1};
    return launch(w, PRIM_ADD, grid, 256, 0, &a, e);
}

int ranks_alone(struct walk *w, const struct plan_node *n, struct err *e)
{
    w->region = n->of;
    return n->region == REGION_REDUCE ? add(w, n, e) : 0;
}

/* All ranks' columns of the logits. Of one row whose parts do not overlap they are, one behind the
 * other, the row. */
static int gather(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    struct collective *c = b->options.collective;
    int32_t own = b->model->head.rows, vocab = b->model->shape.vocab;
    bool whole = w->rows == 1 && own * c->world == vocab;
    if (c->ops->all_gather(c, b->own_logits, whole ? b->logits : b->gathered,
                           (int64_t)w->rows * own, w->stream, e))
        return -1;
    return (!whole && spread(w, e)) || eager_best(w, b->logits, vocab, e) ? -1 : 0;
}

int ranks_put_together(struct walk *w, const struct plan_node *n, struct err *e)
{
    w->region = n->of;
    return n->region == REGION_REDUCE ? reduce_run(w, n, e) : gather(w, e);
}

int ranks_check(const struct backend *b, struct err *e)
{
    struct collective *c = b->options.collective;
    const char *why = c ? c->ops->broken(c) : NULL;
    return why ? err_set(e, "%s", why) : 0;
}
