/* SPDX-License-Identifier: Apache-2.0 */
/* test_collective.c - collectives of device memory on a real GPU: a world of one by NCCL and
 * through the host's memory, what two ranks of one GPU are told, and two ranks of two GPUs.
 *
 *   build/tests/test_collective          prints a line for each; 0 if all is right
 *   build/tests/test_collective --bench  and what a captured sum takes between two GPUs, also by
 *                                        points of the template of reduce
 *
 * Where there is one GPU, what needs two says so and is left out. Sums of several ranks through the
 * host's memory are what a server of two ranks on one GPU does.
 */
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cpu/collective_shm.h"
#include "engine/cuda/collective_cuda.h"
#include "tests/device/time_points.h"

enum { N = 5000, REPLAYS = 3, WIDEST = 64 * 4096, SUMS = 64, NO_GPU = 77 };

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

/* ---- two ranks, each in a process with a GPU of its own -------------------------------------- */

struct pair {
    int rank, bench;
    const struct sum_points *points;
    struct collective *nccl, *peer;
    cudaStream_t stream;
    float *in, *residual, *out; /* [WIDEST], [WIDEST], [2 * WIDEST] */
};

/* Captured sums of n numbers, from `in` to `out`. */
static int capture_sums(struct pair *p, struct collective *c, int64_t n, int sums,
                        cudaGraphExec_t *exec, struct err *e)
{
    cudaGraph_t graph;
    int rc = 0;
    if (cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal))
        return err_set(e, "no capture");
    for (int i = 0; i < sums && rc == 0; i++)
        rc = c->ops->all_reduce(c, p->in, p->out, n, p->stream, e);
    if (cudaStreamEndCapture(p->stream, &graph))
        return err_set(e, "the capture failed");
    if (rc == 0 && cudaGraphInstantiate(exec, graph, 0))
        rc = err_set(e, "no graph");
    cudaGraphDestroy(graph);
    return rc;
}

/* Number i of a rank in a round: sums of two such are exact only now and then. */
static float number(int rank, int round, int64_t i)
{
    return (float)(i % 977 + 1) * (rank ? 0.1f : 0.7f) + (float)round;
}

/* Replays of different numbers, wide sums and narrow ones in turn, launched and captured. */
static int sums_are_right(struct pair *p, struct collective *c, struct err *e)
{
    static const int64_t width[] = {2, 2560, 31 * 4096, WIDEST, 64};
    static float host[WIDEST];
    cudaGraphExec_t exec;
    for (int round = 0; round < 2 * (int)(sizeof width / sizeof *width); round++) {
        int64_t n = width[round / 2];
        for (int64_t i = 0; i < n; i++)
            host[i] = number(p->rank, round, i);
        cudaMemcpyAsync(p->in, host, (size_t)n * 4, cudaMemcpyHostToDevice, p->stream);
        int rc = round % 2 ? c->ops->all_reduce(c, p->in, p->out, n, p->stream, e)
                           : capture_sums(p, c, n, 3, &exec, e);
        if (rc == 0 && round % 2 == 0)
            cudaGraphLaunch(exec, p->stream);
        cudaMemcpyAsync(host, p->out, (size_t)n * 4, cudaMemcpyDeviceToHost, p->stream);
        cudaError_t code = cudaStreamSynchronize(p->stream);
        if (rc || code)
            return rc ? rc : err_set(e, "%s", cudaGetErrorString(code));
        for (int64_t i = 0; i < n; i++) {
            volatile float want = number(0, round, i) + number(1, round, i);
            if (want != host[i])
                return err_set(e, "number %lld of %lld is %g, not %g", (long long)i, (long long)n,
                               (double)host[i], (double)want);
        }
    }
    return 0;
}

/* Microseconds of a captured sum, one behind the other: the best of some replays. */
static double time_sums(struct pair *p, struct collective *c, int64_t n, struct err *e)
{
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float best = 1e9f;
    if (capture_sums(p, c, n, SUMS, &exec, e))
        return -1;
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int t = 0; t < 10; t++) {
        float ms;
        cudaGraphLaunch(exec, p->stream);
        cudaEventRecord(from, p->stream);
        for (int i = 0; i < 5; i++)
            cudaGraphLaunch(exec, p->stream);
        cudaEventRecord(to, p->stream);
        cudaEventSynchronize(to);
        cudaEventElapsedTime(&ms, from, to);
        best = ms < best ? ms : best;
    }
    cudaGraphExecDestroy(exec);
    return best * 1e3 / 5 / SUMS;
}

static int time_all(struct pair *p, struct err *e)
{
    static const int hidden[] = {2560, 4096}, m[] = {1, 8, 32, 64};
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 4; i++) {
            int64_t n = (int64_t)hidden[h] * m[i];
            double nccl = time_sums(p, p->nccl, n, e), peer = time_sums(p, p->peer, n, e);
            if (nccl < 0 || peer < 0)
                return -1;
            if (p->rank == 0)
                printf("  %d x %d: NCCL %.2f us, GPU to GPU %.2f us, %.2fx\n", m[i], hidden[h],
                       nccl, peer, nccl / peer);
            fflush(stdout);
        }
    return 0;
}

/* Both ends leave what waits for the other, which does not come. */
static int one_never_comes(struct pair *p, struct err *e)
{
    if (p->rank == 1)
        return usleep(300000); /* and goes */
    if (p->peer->ops->all_reduce(p->peer, p->in, p->out, 2560, p->stream, e))
        return -1;
    usleep(100000);
    if (cudaStreamQuery(p->stream) != cudaErrorNotReady)
        return err_set(e, "a sum without the other rank ended by itself");
    p->peer->ops->abort(p->peer, "the other did not come");
    return cudaStreamSynchronize(p->stream) ? err_set(e, "it ended badly") : 0;
}

static int as_rank(struct pair *p, const char *id, struct err *e)
{
    if (cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking) ||
        cudaMalloc((void **)&p->in, WIDEST * 4) || cudaMalloc((void **)&p->residual, WIDEST * 4) ||
        cudaMalloc((void **)&p->out, WIDEST * 8))
        return err_set(e, "no memory");
    p->nccl = collective_nccl_open(id, p->rank, 2, e);
    p->peer =
        p->nccl ? collective_peer_open(collective_nccl_open(id + NCCL_ID, p->rank, 2, e)) : NULL;
    if (!p->peer || p->nccl->ops->prepare(p->nccl, WIDEST, p->stream, e) ||
        p->peer->ops->prepare(p->peer, WIDEST, p->stream, e))
        return -1;
    int failed = said("two GPUs, NCCL", sums_are_right(p, p->nccl, e) == 0, e->msg);
    failed += said("two GPUs, from one to the other", sums_are_right(p, p->peer, e) == 0, e->msg);
    if (!failed && p->bench)
        failed = time_all(p, e);
    if (!failed && p->points) {
        struct sum_rank r = {p->rank, p->peer, p->nccl, p->stream, p->in, p->residual, p->out};
        int wrong = sum_points_time(p->points, &r, e);
        failed = said("two GPUs, points of the template", wrong == 0, e->msg);
    }
    return failed + said("two GPUs, one rank does not come", one_never_comes(p, e) == 0, e->msg);
}

/* In a child: what was not shown is 77. */
static int be_rank(int rank, int bench, const int to[2])
{
    struct pair p = {.rank = rank, .bench = bench};
    struct err e = {""};
    char id[2 * NCCL_ID];
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) || gpus < 1)
        return NO_GPU;
    bool told = rank == 0 ? collective_nccl_id(id, &e) == 0 &&
                                collective_nccl_id(id + NCCL_ID, &e) == 0 &&
                                write(to[1], id, sizeof id) == sizeof id
                          : read(to[0], id, sizeof id) == sizeof id;
    if (!told)
        return said("two GPUs", 0, e.msg);
    const char *root = getenv("WHET_SOURCE_ROOT");
    if (bench)
        p.points = sum_points_compile(root ? root : ".", "sm_90a");
    int rc = as_rank(&p, id, &e);
    return rc ? said("two GPUs", 0, e.msg) : 0;
}

/* The GPUs that this process may see: rank r has the r-th. */
static void pick_gpu(int r)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"),
               *second = visible ? strchr(visible, ',') : 0;
    char gpu[2][48] = {"0", "1"}, both[100];
    if (second) {
        snprintf(gpu[0], sizeof gpu[0], "%.*s", (int)(second - visible), visible);
        snprintf(gpu[1], sizeof gpu[1], "%.*s", (int)strcspn(second + 1, ","), second + 1);
    }
    snprintf(both, sizeof both, "%s,%s", gpu[r], gpu[1 - r]);
    setenv("CUDA_VISIBLE_DEVICES", gpu[r], 1);
    setenv("WHET_RANK_GPUS", both, 1); /* areas for kernels of reduce, too */
}

static int two_on_two(int bench)
{
    int to[2], status, failed = 0, none = 0;
    pid_t child[2];
    if (pipe(to))
        return 1;
    for (int r = 1; r >= 0; r--) {
        if ((child[r] = fork()) == 0) {
            pick_gpu(r);
            _exit(be_rank(r, bench, to));
        }
    }
    for (int r = 1; r >= 0; r--) {
        waitpid(child[r], &status, 0);
        none += WIFEXITED(status) && WEXITSTATUS(status) == NO_GPU;
        failed += !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != NO_GPU);
        if (r == 1 && none)
            kill(child[0], SIGKILL);
    }
    if (none)
        puts("two GPUs: not shown, there is one");
    return none ? 0 : failed;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int failed = two_on_two(argc > 1 && !strcmp(argv[1], "--bench"));
    failed += two_on_one();
    failed += by_nccl();
    failed += by_host();
    printf("%d failed\n", failed);
    return failed != 0;
}
