/* SPDX-License-Identifier: Apache-2.0 */
/* test_collective.c - collectives of device memory on a real GPU: a world of one by NCCL and
 * through the host's memory, and what two ranks of one GPU are told.
 *
 *   build/tests/test_collective      prints a line for each; 0 if all is right
 *
 * One GPU is enough. Sums of several ranks through the host's memory are what a server of two ranks
 * on one GPU does; by NCCL they need two GPUs, and are not shown here.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cpu/collective_shm.h"
#include "engine/cuda/collective_cuda.h"

enum { N = 5000, REPLAYS = 3 };

static int said(const char *what, int right, const char *why)
{
    printf("%-44s %s%s%s\n", what, right ? "ok" : "FAIL", *why ? ": " : "", why);
    fflush(stdout);
    return right ? 0 : 1;
}

static int capture(struct collective *c, float *d, cudaStream_t s, cudaGraphExec_t *exec,
                   struct err *e)
{
    cudaGraph_t graph;
    if (cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal))
        return err_set(e, "no capture");
    int rc = c->ops->all_reduce(c, d, d + N, N, s, e) ||
             c->ops->all_gather(c, d + N, d + 2 * N, N, s, e);
    if (cudaStreamEndCapture(s, &graph))
        return err_set(e, "the capture failed");
    if (rc == 0 && cudaGraphInstantiate(exec, graph, 0))
        rc = err_set(e, "no graph");
    cudaGraphDestroy(graph);
    return rc;
}

/* A sum and a gather of one rank are copies: replayed with other numbers each time. */
static int replay(struct collective *c, const char *what)
{
    struct err e = {""};
    cudaStream_t s;
    cudaGraphExec_t exec = NULL;
    float *d, host[N], back[N];
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMalloc((void **)&d, 3 * N * sizeof *d);
    int rc = c->ops->prepare(c, 1 << 20, s, &e) || capture(c, d, s, &exec, &e);
    for (int k = 0; rc == 0 && k < REPLAYS; k++) {
        for (int i = 0; i < N; i++)
            host[i] = (float)(k * 1000 + i);
        cudaMemcpyAsync(d, host, sizeof host, cudaMemcpyHostToDevice, s);
        cudaGraphLaunch(exec, s);
        cudaMemcpyAsync(back, d + 2 * N, sizeof back, cudaMemcpyDeviceToHost, s);
        cudaError_t code = cudaStreamSynchronize(s);
        if (code || memcmp(back, host, sizeof host) != 0)
            rc = err_set(&e, "replay %d: %s", k, code ? cudaGetErrorString(code) : "other numbers");
    }
    if (rc == 0 && c->ops->broken(c))
        rc = err_set(&e, "%s", c->ops->broken(c));
    cudaFree(d);
    return said(what, rc == 0, e.msg);
}

static int by_nccl(void)
{
    struct err e = {""};
    char id[NCCL_ID];
    if (collective_nccl_id(id, &e))
        return said("NCCL", 0, e.msg);
    struct collective *c = collective_nccl_open(id, 0, 1, &e);
    if (!c)
        return said("NCCL, a world of one", 0, e.msg);
    int failed = replay(c, "NCCL, captured and replayed");
    c->ops->abort(c, "enough");
    float *none = NULL;
    int rc = c->ops->all_reduce(c, none, none, 1, NULL, &e);
    failed += said("NCCL, after its end", rc == -1 && strstr(e.msg, "enough"), e.msg);
    c->ops->close(c);
    return failed;
}

static int by_host(void)
{
    struct err e = {""};
    char id[RANKS_ID];
    if (collective_shm_ranks.make(id, 1, true, true, &e))
        return said("host", 0, e.msg);
    struct collective *shm = collective_shm_open(id, 0, 1, 10, &e);
    collective_shm_ranks.made(id);
    struct collective *c = shm ? collective_host_open(shm) : NULL;
    if (!c)
        return said("host", 0, e.msg);
    int failed = replay(c, "host, captured and replayed");
    c->ops->close(c);
    return failed;
}

/* NCCL refuses them, in words and in time. */
static int two_on_one(void)
{
    int failed = 0;
    int to[2];
    char id[NCCL_ID];
    struct err e = {""};
    if (pipe(to))
        return 1;
    pid_t other = fork(); /* before any of CUDA */
    if (other == 0) {
        int rc = read(to[0], id, sizeof id) == sizeof id && cudaSetDevice(0) == cudaSuccess &&
                 !collective_nccl_open(id, 1, 2, &e);
        _exit(rc ? 0 : 1);
    }
    if (collective_nccl_id(id, &e) || write(to[1], id, sizeof id) != sizeof id)
        return said("two ranks of one GPU", 0, e.msg);
    cudaSetDevice(0);
    struct collective *c = collective_nccl_open(id, 0, 2, &e);
    failed = said("NCCL, two ranks of one GPU are refused", !c, e.msg);
    int status = 0;
    waitpid(other, &status, 0);
    return failed + said("NCCL, and so is the other", status == 0, "");
}

int main(void)
{
    int failed = two_on_one();
    failed += by_nccl();
    failed += by_host();
    printf("%d failed\n", failed);
    return failed != 0;
}
