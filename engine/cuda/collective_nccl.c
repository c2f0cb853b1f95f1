/* SPDX-License-Identifier: Apache-2.0 */
/* collective_nccl.c - NCCL behind collective.h.
 *
 * The library is found when it is first needed (libnccl.so.2: a package of the system, or
 * the wheel nvidia-nccl-cu13 on the library path), so a server of one rank neither needs nor loads
 * it. The few functions that are used have had the same interface in all of NCCL 2; they are
 * declared here, from its documentation, instead of asking for a header at build time.
 *
 * NCCL may connect lazily and register buffers of captured calls with its peers. Both would be work
 * between ranks inside a capture, which each rank makes when it likes: so everything is connected
 * at the start (NCCL_RUNTIME_CONNECT=0) and nothing registered (NCCL_GRAPH_REGISTER=0), unless the
 * environment says otherwise. The engine thread launches while another thread captures, and a
 * communicator is one thread's at a time: hence the lock.
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/cuda/collective_cuda.h"
#include "engine/cuda/device.h"

struct nccl_id {
    char bytes[NCCL_ID];
};
typedef void *nccl_comm;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

static struct {
    int (*get_version)(int *version);
    int (*get_unique_id)(struct nccl_id *id);
    int (*comm_init_rank)(nccl_comm *comm, int ranks, struct nccl_id id, int rank);
    int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, nccl_comm comm,
                      cudaStream_t stream);
    int (*all_gather)(const void *in, void *out, size_t n, int type, nccl_comm comm,
                      cudaStream_t stream);
    int (*comm_get_async_error)(nccl_comm comm, int *error);
    int (*comm_abort)(nccl_comm comm);
    const char *(*get_error_string)(int code);
    const char *(*get_last_error)(nccl_comm comm);
    void *library;
} nccl;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
    const char *name;
    void *to;
} symbols[] = {{"ncclGetVersion", &nccl.get_version},
               {"ncclGetUniqueId", &nccl.get_unique_id},
               {"ncclCommInitRank", &nccl.comm_init_rank},
               {"ncclAllReduce", &nccl.all_reduce},
               {"ncclAllGather", &nccl.all_gather},
               {"ncclCommGetAsyncError", &nccl.comm_get_async_error},
               {"ncclCommAbort", &nccl.comm_abort},
               {"ncclGetErrorString", &nccl.get_error_string},
               {"ncclGetLastError", &nccl.get_last_error}};

static int load(struct err *e)
{
    static bool failed;
    int rc = 0;
    pthread_mutex_lock(&load_lock);
    if (!nccl.library && !failed) {
        setenv("NCCL_RUNTIME_CONNECT", "0", 0);
        setenv("NCCL_GRAPH_REGISTER", "0", 0);
        nccl.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!nccl.library)
            rc = err_set(e, "NCCL is not there (%s)", dlerror());
        for (size_t i = 0; nccl.library && i < sizeof symbols / sizeof *symbols; i++) {
            void *at = dlsym(nccl.library, symbols[i].name);
            memcpy(symbols[i].to, &at, sizeof at);
            if (!at && !rc)
                rc = err_set(e, "libnccl.so.2 has no %s", symbols[i].name);
        }
        failed = rc != 0;
    } else if (failed) {
        rc = err_set(e, "NCCL is not there");
    }
    pthread_mutex_unlock(&load_lock);
    return rc;
}

/* ---- one rank's communicator ----------------------------------------------------------------- */

struct nccl_rank {
    struct collective base;
    nccl_comm comm;
    pthread_mutex_t lock; /* held during every call on `comm` except the abort */
    pthread_mutex_t why_lock;
    char why[256];
    _Atomic bool broken, aborted;
};

static void say(struct nccl_rank *k, const char *why)
{
    pthread_mutex_lock(&k->why_lock);
    if (!atomic_load(&k->broken)) {
        snprintf(k->why, sizeof k->why, "%s", why);
        atomic_store(&k->broken, true);
    }
    pthread_mutex_unlock(&k->why_lock);
}

/* ncclCommAbort() ends the kernels of NCCL that run on the device, so a step that waits for them
 * returns. */
static void nccl_abort(struct collective *c, const char *why)
{
    struct nccl_rank *k = (struct nccl_rank *)c;
    say(k, why);
    if (!atomic_exchange(&k->aborted, true))
        nccl.comm_abort(k->comm);
}

static const char *nccl_broken(struct collective *c)
{
    struct nccl_rank *k = (struct nccl_rank *)c;
    int code = NCCL_SUCCESS;
    if (atomic_load(&k->broken))
        return k->why;
    if (pthread_mutex_trylock(&k->lock) != 0)
        return NULL; /* another call holds it; the next poll will read the state */
    if (!atomic_load(&k->aborted))
        nccl.comm_get_async_error(k->comm, &code);
    pthread_mutex_unlock(&k->lock);
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS)
        return NULL;
    char why[200];
    snprintf(why, sizeof why, "NCCL: %s", nccl.get_error_string(code));
    nccl_abort(c, why);
    return k->why;
}

static int fail(struct nccl_rank *k, const char *what, int code, struct err *e)
{
    char why[240];
    const char *more = nccl.get_last_error(k->comm);
    snprintf(why, sizeof why, "%s: %s (%.120s)", what, nccl.get_error_string(code),
             more ? more : "");
    say(k, why);
    return err_set(e, "%s", k->why);
}

static int call(struct nccl_rank *k, bool reduce, const float *in, float *out, int64_t n,
                void *stream, struct err *e)
{
    int code = NCCL_SUCCESS;
    if (atomic_load(&k->broken))
        return err_set(e, "%s", k->why);
    pthread_mutex_lock(&k->lock);
    if (reduce)
        code = nccl.all_reduce(in, out, (size_t)n, NCCL_FLOAT32, NCCL_SUM, k->comm, stream);
    else
        code = nccl.all_gather(in, out, (size_t)n, NCCL_FLOAT32, k->comm, stream);
    pthread_mutex_unlock(&k->lock);
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS)
        return 0;
    return fail(k, reduce ? "ncclAllReduce" : "ncclAllGather", code, e);
}

static int nccl_reduce(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    return call((struct nccl_rank *)c, true, in, out, n, stream, e);
}

static int nccl_gather(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                       struct err *e)
{
    return call((struct nccl_rank *)c, false, in, out, n, stream, e);
}

/* Every size class once, so that nothing is set up at the first step of its kind. */
static int nccl_prepare(struct collective *c, int64_t most, void *stream, struct err *e)
{
    struct nccl_rank *k = (struct nccl_rank *)c;
    float *room = NULL;
    int rc = 0;
    CU(cudaMalloc((void **)&room, (size_t)(most * (c->world + 1)) * sizeof *room));
    CU(cudaMemsetAsync(room, 0, (size_t)most * sizeof *room, stream));
    for (int64_t n = 64; rc == 0 && n <= most; n *= 4)
        rc = call(k, true, room, room, n, stream, e) ||
             call(k, false, room, room + most, n, stream, e);
    cudaError_t code = cudaStreamSynchronize(stream);
    cudaFree(room);
    if (rc == 0)
        CU(code);
    return rc ? -1 : 0;
}

static int nccl_barrier(struct collective *c, struct err *e)
{
    (void)c;
    return err_set(e, "NCCL has no barrier of host threads");
}

/* Called by each rank at its own time, when its stream is empty. */
static void nccl_close(struct collective *c)
{
    struct nccl_rank *k = (struct nccl_rank *)c;
    if (!k)
        return;
    nccl_abort(c, "closed");
    pthread_mutex_destroy(&k->lock);
    pthread_mutex_destroy(&k->why_lock);
    free(k);
}

static const struct collective_ops ops = {.name = "nccl",
                                          .prepare = nccl_prepare,
                                          .all_reduce = nccl_reduce,
                                          .all_gather = nccl_gather,
                                          .barrier = nccl_barrier,
                                          .broken = nccl_broken,
                                          .abort = nccl_abort,
                                          .close = nccl_close};

/* ---- opening -------------------------------------------------------------------------------- */

int collective_nccl_id(char id[NCCL_ID], struct err *e)
{
    struct nccl_id made;
    if (load(e))
        return -1;
    int code = nccl.get_unique_id(&made);
    if (code != NCCL_SUCCESS)
        return err_set(e, "ncclGetUniqueId: %s", nccl.get_error_string(code));
    memcpy(id, made.bytes, NCCL_ID);
    return 0;
}

struct collective *collective_nccl_open(const char id[NCCL_ID], int32_t rank, int32_t world,
                                        struct err *e)
{
    struct nccl_id of;
    int version = 0;
    if (load(e))
        return NULL;
    struct nccl_rank *k = xcalloc(1, sizeof *k);
    k->base = (struct collective){&ops, rank, world};
    memcpy(of.bytes, id, NCCL_ID);
    int code = nccl.comm_init_rank(&k->comm, world, of, rank);
    if (code != NCCL_SUCCESS) {
        err_set(e, "ncclCommInitRank: %s (%.200s)", nccl.get_error_string(code),
                nccl.get_last_error(NULL));
        free(k);
        return NULL;
    }
    pthread_mutex_init(&k->lock, NULL);
    pthread_mutex_init(&k->why_lock, NULL);
    nccl.get_version(&version);
    log_info("cuda", "rank %d of %d by NCCL %d.%d.%d", rank, world, version / 10000,
             version / 100 % 100, version % 100);
    return &k->base;
}
