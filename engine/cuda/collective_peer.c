/* SPDX-License-Identifier: Apache-2.0 */
/* collective_peer.c - small calls by kernels of ours between GPUs of one host; the rest by NCCL.
 *
 * A decode step of a model in two ranks sums a few tens of kilobytes twice a layer, where what
 * counts is latency: a kernel that writes into the other GPU's memory (kernels/cuda/eager_peer.cu)
 * takes 2.4 us for 2560 numbers, ncclAllReduce 6.9 (two H100, 2026-11-25), and it is a launch like
 * all others, with a programmatic edge on either side. Large calls are NCCL's.
 *
 * Kernels of reduce that are searched for meet in areas of their own (kernels/peer.h), behind that
 * of the eager ones in the same memory, if there is room and if a probe will find the other GPUs.
 *
 * Each rank has an area that the others map (cudaIpcGetMemHandle); handles travel by NCCL, as does
 * every word of agreement here: a rank that cannot map another's area, or whose results are not,
 * bit for bit, those of the numbers in the order of ranks, takes the kernels from all of them. So a
 * call is answered in one way on all ranks, by its size alone.
 *
 * Invariant: whatever fails on a rank before the end of prepare(), it takes part in the agreement.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/cuda/collective_cuda.h"
#include "engine/cuda/device.h"
#include "engine/cuda/peer_area.h"
#include "kernels/eager.h"

enum { SUM_MOST = 64 * 4096, GATHER_MOST = 1 << 17 }; /* numbers */
enum way { SUM, GATHER, WAYS };
enum { CALLS = 4 };
#define PROOF_NS INT64_C(2000000000)
_Static_assert((int)PEERS_MOST <= (int)REDUCE_PEERS, "all of them meet in an area");

struct peer_rank {
    struct collective base;
    struct collective *nccl;
    struct eager_peer_args args; /* most 0: NCCL has all */
    cudaLibrary_t library;
    cudaKernel_t kernel[WAYS];
    bool edges;
    unsigned *over; /* the host's side of args.over */
    bool searched;  /* there are areas for kernels of reduce, on all ranks */
    struct peer_area peer[REDUCE_USES];
    struct reduce_area area[REDUCE_USES]; /* host: peer[] */
};

/* ---- calls ---------------------------------------------------------------------------------- */

static int launch(const struct peer_rank *k, enum way way, const float *in, const float *add,
                  float *out, int64_t n, cudaStream_t stream, struct err *e)
{
    struct eager_peer_args a = k->args;
    cudaLaunchAttribute edge = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t c = {.gridDim = {PEER_BLOCKS, 1, 1},
                            .blockDim = {PEER_THREADS, 1, 1},
                            .stream = stream,
                            .attrs = &edge,
                            .numAttrs = k->edges};
    void *parameter[] = {&a};
    const char *why = k->base.ops->broken((struct collective *)&k->base);
    if (why)
        return err_set(e, "%s", why);
    a.in = in;
    a.add = add;
    a.out = out;
    a.n = (int32_t)n;
    CU(cudaLaunchKernelExC(&c, (const void *)k->kernel[way], parameter));
    return 0;
}

static int peer_sum(struct collective *c, const float *in, const float *residual, float *out,
                    int64_t n, void *stream, struct err *e)
{
    struct peer_rank *k = (struct peer_rank *)c;
    if (n > k->args.most || n % 2)
        return 1;
    return launch(k, SUM, in, residual, out, n, stream, e);
}

static int peer_reduce(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    struct peer_rank *k = (struct peer_rank *)c;
    int rc = peer_sum(c, in, NULL, out, n, stream, e);
    return rc <= 0 ? rc : k->nccl->ops->all_reduce(k->nccl, in, out, n, stream, e);
}

static int peer_gather(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    struct peer_rank *k = (struct peer_rank *)c;
    if (n <= k->args.most && n <= GATHER_MOST && n % 2 == 0)
        return launch(k, GATHER, in, NULL, out, n, stream, e);
    return k->nccl->ops->all_gather(k->nccl, in, out, n, stream, e);
}

static struct reduce_area *peer_area_of(struct collective *c, enum reduce_use use)
{
    struct peer_rank *k = (struct peer_rank *)c;
    return k->searched ? &k->area[use] : NULL;
}

static int peer_barrier(struct collective *c, struct err *e)
{
    struct peer_rank *k = (struct peer_rank *)c;
    return k->nccl->ops->barrier(k->nccl, e);
}

static const char *peer_broken(struct collective *c)
{
    struct peer_rank *k = (struct peer_rank *)c;
    return k->nccl->ops->broken(k->nccl);
}

static void peer_abort(struct collective *c, const char *why)
{
    struct peer_rank *k = (struct peer_rank *)c;
    if (k->over)
        *(volatile unsigned *)k->over = 1;
    k->nccl->ops->abort(k->nccl, why);
}

/* ---- areas ---------------------------------------------------------------------------------- */

/* Every rank's `bytes` (a multiple of 4) at `own` to all of them, in order. */
static int exchange(struct peer_rank *k, const void *own, void *all, size_t bytes,
                    cudaStream_t stream, struct err *e)
{
    char *room;
    size_t world = (size_t)k->base.world;
    CU(cudaMalloc((void **)&room, (world + 1) * bytes));
    cudaError_t code = cudaMemcpyAsync(room, own, bytes, cudaMemcpyHostToDevice, stream);
    int rc =
        k->nccl->ops->all_gather(k->nccl, (float *)(void *)room, (float *)(void *)(room + bytes),
                                 (int64_t)(bytes / 4), stream, e);
    if (rc == 0 && !code)
        code = cudaMemcpyAsync(all, room + bytes, world * bytes, cudaMemcpyDeviceToHost, stream);
    cudaError_t end = cudaStreamSynchronize(stream);
    cudaFree(room);
    CU(code ? code : end);
    return rc;
}

/* Whether all ranks say yes; -1 where they cannot be asked. */
static int all_say(struct peer_rank *k, bool yes, cudaStream_t stream, struct err *e)
{
    int32_t said[PEERS_MOST], own = yes;
    if (exchange(k, &own, said, sizeof own, stream, e))
        return -1;
    for (int32_t r = 0; r < k->base.world; r++)
        yes &= said[r] == 1;
    return yes;
}

static int32_t area_numbers(int64_t most)
{
    return (int32_t)((most + 63) / 64 * 64);
}

/* Where the areas begin in every rank's memory. */
static size_t areas_at(const struct peer_rank *k, int64_t most)
{
    return ((size_t)PEER_AREA(k->base.world, most) + 255) / 256 * 256;
}

/* Places of words are empty; all else begins as zero (kernels/peer.h). */
static int empty_areas(const struct peer_rank *k, int64_t most, struct err *e)
{
    int32_t world = k->base.world, numbers = area_numbers(most);
    char *areas = (char *)k->args.area[k->base.rank] + areas_at(k, most);
    for (int u = 0; u < REDUCE_USES; u++) {
        size_t each = peer_area_bytes(world, numbers), words = peer_words_at(world, numbers);
        CU(cudaMemset(areas + (size_t)u * each + words, 0xff, each - words));
    }
    return 0;
}

/* Memory of this rank that the others reach; the areas are left out where they have no use or no
 * room. */
static int open_memory(struct peer_rank *k, int64_t most, struct err *e)
{
    struct eager_peer_args *a = &k->args;
    size_t each = peer_area_bytes(k->base.world, area_numbers(most)), bytes = areas_at(k, most),
           calls = PEER_BLOCKS * sizeof *a->calls;
    void **own = &a->area[k->base.rank];
    k->searched = peer_gpus_known(k->base.world);
    if (k->searched && cudaMalloc(own, bytes + REDUCE_USES * each) == cudaSuccess) {
        bytes += REDUCE_USES * each;
        calls += REDUCE_USES * peer_area_counts();
    } else {
        cudaGetLastError();
        k->searched = false;
        CU(cudaMalloc(own, bytes));
    }
    CU(cudaMemset(*own, 0, bytes));
    if (k->searched && empty_areas(k, most, e))
        return -1;
    CU(cudaMalloc((void **)&a->calls, calls));
    CU(cudaMemset(a->calls, 0, calls));
    return 0;
}

/* Once all ranks' memory is reached from here. */
static void aim_areas(struct peer_rank *k, int64_t most)
{
    int32_t numbers = area_numbers(most);
    for (int u = 0; u < REDUCE_USES; u++) {
        struct peer_area *p = &k->peer[u];
        *p = (struct peer_area){.calls = k->args.calls + PEER_BLOCKS +
                                         (size_t)u * REDUCE_WAYS * REDUCE_COUNTS,
                                .over = k->args.over,
                                .rank = k->base.rank,
                                .world = k->base.world,
                                .numbers = numbers};
        for (int32_t r = 0; r < k->base.world; r++)
            p->memory[r] = (char *)k->args.area[r] + areas_at(k, most) +
                           (size_t)u * peer_area_bytes(k->base.world, numbers);
        k->area[u] = (struct reduce_area){.rank = k->base.rank, .world = k->base.world, .host = p};
    }
}

static int open_own(struct peer_rank *k, int64_t most, cudaIpcMemHandle_t *handle, struct err *e)
{
    static const char *const name[] = {"eager_peer_sum", "eager_peer_gather"};
    struct cudaDeviceProp p;
    struct eager_peer_args *a = &k->args;
    a->rank = k->base.rank;
    a->world = k->base.world;
    a->most = (int32_t)most;
    CU(cudaGetDeviceProperties(&p, 0));
    if (device_image(&p, "eager_peer.cu", &k->library, e))
        return -1;
    for (int i = 0; i < WAYS; i++)
        CU(cudaLibraryGetKernel(&k->kernel[i], k->library, name[i]));
    k->edges = p.major >= 9;
    if (open_memory(k, most, e))
        return -1;
    CU(cudaHostAlloc((void **)&k->over, sizeof *k->over, cudaHostAllocMapped));
    *k->over = 0;
    CU(cudaHostGetDevicePointer((void **)&a->over, k->over, 0));
    CU(cudaIpcGetMemHandle(handle, a->area[k->base.rank]));
    CU(cudaDeviceSynchronize());
    return 0;
}

static int open_theirs(struct peer_rank *k, const cudaIpcMemHandle_t *handle, struct err *e)
{
    for (int32_t r = 0; r < k->base.world; r++)
        if (r != k->base.rank)
            CU(cudaIpcOpenMemHandle(&k->args.area[r], handle[r], cudaIpcMemLazyEnablePeerAccess));
    return 0;
}

/* ---- the proof ------------------------------------------------------------------------------ */

static float drawn(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return ((float)(*state >> 8) - 8388608.0f) / 8388608.0f;
}

/* A proof: CALLS sums or gathers, one behind the other; every second one of sums is in place. What
 * sums add is the first call's own numbers, so that it is seen to be added. */
struct proof {
    enum way way;
    int64_t n;
    float *own, *all, *got; /* host: [CALLS][n], [world][CALLS][n]; [CALLS][n or world * n] */
    float *in, *out;        /* device, as own and got */
};

static float expected(const struct peer_rank *k, const struct proof *p, int64_t call, int64_t i)
{
    float sum = p->all[call * p->n + i];
    for (int32_t r = 1; r < k->base.world; r++)
        sum += p->all[(r * CALLS + call) * p->n + i];
    return sum + p->own[i];
}

static int compare(const struct peer_rank *k, const struct proof *p, struct err *e)
{
    int64_t results = p->way == GATHER ? k->base.world * p->n : p->n;
    for (int64_t call = 0; call < CALLS; call++)
        for (int64_t i = 0; i < results; i++) {
            float got = p->got[call * results + i],
                  want = p->way == GATHER ? p->all[(i / p->n * CALLS + call) * p->n + i % p->n]
                                          : expected(k, p, call, i);
            if (memcmp(&got, &want, sizeof got) != 0)
                return err_set(e, "number %lld of %lld is %g, not %g", (long long)i,
                               (long long)p->n, (double)got, (double)want);
        }
    return 0;
}

/* What was launched must end by itself: where numbers do not come, nobody waits for ever. */
static int end_of_proof(struct peer_rank *k, cudaStream_t stream, struct err *e)
{
    int64_t until = clock_ns() + PROOF_NS;
    while (cudaStreamQuery(stream) == cudaErrorNotReady && clock_ns() < until)
        usleep(100);
    bool late = cudaStreamQuery(stream) == cudaErrorNotReady;
    if (late)
        *(volatile unsigned *)k->over = 1;
    CU(cudaStreamSynchronize(stream));
    return late ? err_set(e, "what another GPU wrote did not come") : 0;
}

static int prove(struct peer_rank *k, const struct proof *p, cudaStream_t stream, struct err *e)
{
    int64_t results = p->way == GATHER ? k->base.world * p->n : p->n;
    size_t each = (size_t)p->n * sizeof *p->in;
    CU(cudaMemcpyAsync(p->in, p->own, CALLS * each, cudaMemcpyHostToDevice, stream));
    for (int64_t call = 0; call < CALLS; call++) {
        float *in = p->in + call * p->n, *out = p->out + call * results;
        bool gather = p->way == GATHER, in_place = call % 2 && !gather;
        if (launch(k, p->way, in, gather ? NULL : p->in, in_place ? in : out, p->n, stream, e))
            return -1;
        if (in_place)
            CU(cudaMemcpyAsync(out, in, each, cudaMemcpyDeviceToDevice, stream));
    }
    if (end_of_proof(k, stream, e))
        return -1;
    CU(cudaMemcpyAsync(p->got, p->out, (size_t)(CALLS * results) * sizeof *p->got,
                       cudaMemcpyDeviceToHost, stream));
    CU(cudaStreamSynchronize(stream));
    return compare(k, p, e);
}

/* The ranks exchange numbers for each proof, whatever became of the one before; -1 where they
 * cannot. */
static int prove_all(struct peer_rank *k, int64_t most, cudaStream_t stream, bool *proved,
                     struct err *why)
{
    const struct {
        enum way way;
        int64_t n;
    } of[] = {{SUM, 2}, {GATHER, 62}, {SUM, 2560}, {GATHER, GATHER_MOST}, {SUM, most}};
    int64_t world = k->base.world, floats = CALLS * most;
    float *host = xmalloc((size_t)((1 + 2 * world) * floats) * sizeof *host), *room = NULL;
    int rc = 0;
    *proved = cudaMalloc((void **)&room, (size_t)((1 + world) * floats) * sizeof *room) == 0;
    for (size_t i = 0; i < sizeof of / sizeof *of && rc == 0; i++) {
        int64_t n = of[i].n < most ? of[i].n : most;
        struct proof p = {of[i].way,    n, host, host + floats, host + (1 + world) * floats, room,
                          room + floats};
        uint32_t state = (uint32_t)k->base.rank * 7919 + (uint32_t)n;
        for (int64_t at = 0; at < CALLS * n; at++)
            p.own[at] = drawn(&state);
        rc = exchange(k, p.own, p.all, (size_t)(CALLS * n) * sizeof *host, stream, why);
        *proved = rc == 0 && *proved && prove(k, &p, stream, why) == 0;
    }
    cudaFree(room);
    free(host);
    return rc;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Leaves args.most 0 where a rank cannot. -1: the ranks do not even come together by NCCL. */
static int set_up(struct peer_rank *k, int64_t most, cudaStream_t stream, struct err *e)
{
    cudaIpcMemHandle_t own = {{0}}, all[PEERS_MOST];
    struct err why = {"another rank cannot"};
    bool can = open_own(k, most, &own, &why) == 0;
    if (exchange(k, &own, all, sizeof own, stream, e))
        return -1;
    int go = all_say(k, can, stream, e);
    if (go > 0)
        go = all_say(k, open_theirs(k, all, &why) == 0, stream, e);
    if (go > 0)
        go = prove_all(k, most, stream, &can, &why) ? -1 : all_say(k, can, stream, e);
    if (go < 0)
        return *e->msg ? -1 : err_set(e, "%s", why.msg);
    k->args.most = go ? (int32_t)most : 0;
    int searched = go ? all_say(k, k->searched, stream, e) : 0;
    if (searched < 0)
        return -1;
    if (go && !searched)
        log_info("cuda", "no kernels are searched for these sums: %s",
                 k->searched ? "another rank has no room for their areas, or sees its GPU alone"
                 : peer_gpus_known(k->base.world)
                     ? "the device has no room for their areas"
                     : "this process sees its own GPU alone, and a probe needs all ranks'");
    k->searched = searched;
    aim_areas(k, most);
    if (go)
        log_info("cuda", "sums of up to %lld numbers go from GPU to GPU, larger ones by NCCL",
                 (long long)most);
    else
        log_warn("cuda", "all sums go by NCCL: GPUs do not reach each other: %s", why.msg);
    return 0;
}

static int peer_prepare(struct collective *c, int64_t most, void *stream, struct err *e)
{
    struct peer_rank *k = (struct peer_rank *)c;
    if (k->nccl->ops->prepare(k->nccl, most, stream, e))
        return -1;
    return set_up(k, most < SUM_MOST ? most / 2 * 2 : SUM_MOST, stream, e);
}

static void peer_close(struct collective *c)
{
    struct peer_rank *k = (struct peer_rank *)c;
    if (!k)
        return;
    for (int32_t r = 0; r < k->base.world; r++)
        if (r != k->base.rank && k->args.area[r])
            cudaIpcCloseMemHandle(k->args.area[r]);
    cudaFree(k->args.area[k->base.rank]);
    cudaFree(k->args.calls);
    cudaFreeHost(k->over);
    if (k->library)
        cudaLibraryUnload(k->library);
    k->nccl->ops->close(k->nccl);
    free(k);
}

static const struct collective_ops ops = {.name = "peer",
                                          .prepare = peer_prepare,
                                          .all_reduce = peer_reduce,
                                          .reduce = peer_sum,
                                          .all_gather = peer_gather,
                                          .area = peer_area_of,
                                          .barrier = peer_barrier,
                                          .broken = peer_broken,
                                          .abort = peer_abort,
                                          .close = peer_close};

struct collective *collective_peer_open(struct collective *nccl)
{
    if (!nccl || nccl->world < 2 || nccl->world > PEERS_MOST)
        return nccl;
    struct peer_rank *k = xcalloc(1, sizeof *k);
    k->base = (struct collective){&ops, nccl->rank, nccl->world};
    k->nccl = nccl;
    return &k->base;
}
