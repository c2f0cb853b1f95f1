/* SPDX-License-Identifier: Apache-2.0 */
/* collective_host.c - collectives of device memory by way of the host's.
 *
 * Numbers go to pinned memory, a host function on the stream does with them what processes of one
 * host do (cpu/collective_shm.c), and they come back. All three are nodes of a graph where the
 * stream is captured. It costs tens of microseconds a call, so it is for ranks that share one
 * device (NCCL refuses those), for a host without NCCL, and to see that everything else is right.
 *
 * A stream runs one call after the other, so all calls share the two buffers. What a host function
 * needs to know outlives every graph that names it.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/cuda/collective_cuda.h"
#include "engine/cuda/device.h"

struct job {
    struct job *next;
    struct host_rank *of;
    int64_t n;
    int gather;
};

struct host_rank {
    struct collective base;
    struct collective *shm;
    float *in, *out; /* pinned: [most], [world * most] */
    int64_t most;
    pthread_mutex_t lock; /* jobs: the engine thread launches, another one captures */
    struct job *jobs;
};

/* On a thread of the driver. An error stays with the collective, where the step's end sees it. */
static void run_job(void *arg)
{
    struct job *j = arg;
    struct collective *shm = j->of->shm;
    struct err unused;
    (j->gather ? shm->ops->all_gather : shm->ops->all_reduce)(shm, j->of->in, j->of->out, j->n,
                                                              NULL, &unused);
}

static struct job *job_of(struct host_rank *k, int64_t n, int gather)
{
    pthread_mutex_lock(&k->lock);
    struct job *j = k->jobs;
    while (j && (j->n != n || j->gather != gather))
        j = j->next;
    if (!j) {
        j = xmalloc(sizeof *j);
        *j = (struct job){k->jobs, k, n, gather};
        k->jobs = j;
    }
    pthread_mutex_unlock(&k->lock);
    return j;
}

static int call(struct host_rank *k, int gather, const float *in, float *out, int64_t n,
                cudaStream_t stream, struct err *e)
{
    int64_t back = gather ? n * k->base.world : n;
    if (n > k->most)
        return err_set(e, "cuda: ranks put %lld numbers together; %lld were prepared for",
                       (long long)n, (long long)k->most);
    CU(cudaMemcpyAsync(k->in, in, (size_t)n * sizeof *in, cudaMemcpyDeviceToHost, stream));
    CU(cudaLaunchHostFunc(stream, run_job, job_of(k, n, gather)));
    CU(cudaMemcpyAsync(out, k->out, (size_t)back * sizeof *out, cudaMemcpyHostToDevice, stream));
    return 0;
}

static int host_reduce(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    return call((struct host_rank *)c, 0, in, out, n, stream, e);
}

static int host_gather(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    return call((struct host_rank *)c, 1, in, out, n, stream, e);
}

static int host_prepare(struct collective *c, int64_t most, void *stream, struct err *e)
{
    struct host_rank *k = (struct host_rank *)c;
    (void)stream;
    CU(cudaHostAlloc((void **)&k->in, (size_t)most * sizeof *k->in, cudaHostAllocDefault));
    CU(cudaHostAlloc((void **)&k->out, (size_t)(most * c->world) * sizeof *k->out,
                     cudaHostAllocDefault));
    k->most = most;
    return 0;
}

static int host_barrier(struct collective *c, struct err *e)
{
    struct collective *shm = ((struct host_rank *)c)->shm;
    return shm->ops->barrier(shm, e);
}

static const char *host_broken(struct collective *c)
{
    struct collective *shm = ((struct host_rank *)c)->shm;
    return shm->ops->broken(shm);
}

static void host_abort(struct collective *c, const char *why)
{
    struct collective *shm = ((struct host_rank *)c)->shm;
    shm->ops->abort(shm, why);
}

static void host_close(struct collective *c)
{
    struct host_rank *k = (struct host_rank *)c;
    if (!k)
        return;
    for (struct job *j = k->jobs, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    cudaFreeHost(k->in);
    cudaFreeHost(k->out);
    k->shm->ops->close(k->shm);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static const struct collective_ops ops = {.name = "host",
                                          .prepare = host_prepare,
                                          .all_reduce = host_reduce,
                                          .all_gather = host_gather,
                                          .barrier = host_barrier,
                                          .broken = host_broken,
                                          .abort = host_abort,
                                          .close = host_close};

struct collective *collective_host_open(struct collective *shm)
{
    struct host_rank *k = xcalloc(1, sizeof *k);
    k->base = (struct collective){&ops, shm->rank, shm->world};
    k->shm = shm;
    pthread_mutex_init(&k->lock, NULL);
    return &k->base;
}
