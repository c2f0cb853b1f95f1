/* SPDX-License-Identifier: Apache-2.0 */
/* time_points.c - see time_points.h. */
#include "tests/device/time_points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/device.h"
#include "kernels/cuda.h"
#include "kernels/peer.h"
#include "tests/device/compile_pool.h"

enum { SIZES = 8, KINDS = 6, EACH = 6, POINTS = 1 + KINDS * EACH, CALLS = 64, SMS = 132 };
static const int hidden_of[SIZES] = {2560, 2560, 2560, 2560, 4096, 4096, 4096, 4096};
static const int m_of[SIZES] = {1, 8, 32, 64, 1, 8, 32, 64};

struct sum_points {
    struct compile_job job[SIZES][POINTS];
    int jobs[SIZES];
    char *cubin[SIZES][POINTS]; /* NULL: job.why */
    int kind[SIZES][POINTS];    /* way and shots; -1: START's */
};

/* ---- which ---------------------------------------------------------------------------------- */

static int knob(const struct template *t, const struct point *p, const char *name)
{
    return p->value[template_knob(t, name)];
}

/* As many threads as there are items, or a few times fewer: others are slow for certain. */
static bool plausible(const struct template *t, const struct point *p, const struct facts *f)
{
    int64_t threads = 32L * knob(t, p, "BLOCKS") * knob(t, p, "WARPS");
    int64_t items = (int64_t)f->M_MAX * f->HIDDEN / (knob(t, p, "WAY") == REDUCE_LL ? 2 : 4);
    return threads * 8 >= items;
}

static void choose(struct sum_points *s, int size, uint32_t *z)
{
    static const struct model_shape any = {.arch = ARCH_QWEN3, .heads = 32, .kv_heads = 8};
    const struct template *t = template_find("reduce_peer");
    struct model_shape shape = any;
    shape.hidden = hidden_of[size];
    struct facts f = cuda_facts(&shape, REGION_REDUCE, m_of[size], SMS);
    struct compile_job *job = s->job[size];
    int *n = &s->jobs[size], found[KINDS] = {0};
    s->kind[size][0] = -1;
    job[(*n)++] = (struct compile_job){.t = t, .f = f, .p = cuda_start(t, &f)};
    for (int tries = 0; tries < 4000 && *n < POINTS; tries++) {
        struct point p;
        if (!cuda_point_random(t, &f, z, &p) || !plausible(t, &p, &f))
            continue;
        int kind = knob(t, &p, "WAY") * 2 + knob(t, &p, "SHOTS") - 1;
        bool seen = found[kind] == EACH;
        for (int i = 0; i < *n && !seen; i++)
            seen = memcmp(&job[i].p, &p, sizeof p) == 0;
        if (seen)
            continue;
        found[kind]++;
        s->kind[size][*n] = kind;
        job[(*n)++] = (struct compile_job){.t = t, .f = f, .p = p};
    }
}

struct sum_points *sum_points_compile(const char *root, const char *arch)
{
    struct sum_points *s = xcalloc(1, sizeof *s);
    struct compile_job *all[SIZES * POINTS];
    uint32_t z = 7;
    int n = 0;
    for (int i = 0; i < SIZES; i++) {
        choose(s, i, &z);
        for (int k = 0; k < s->jobs[i]; k++)
            all[n++] = &s->job[i][k];
    }
    struct compile_pool *pool = compile_pool_start(all, n, 0, root, arch);
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < s->jobs[i]; k++) {
            compile_pool_await(pool, &s->job[i][k]);
            s->cubin[i][k] = s->job[i][k].cubin;
            s->job[i][k].cubin = NULL;
        }
    compile_pool_end(pool);
    return s;
}

/* ---- running -------------------------------------------------------------------------------- */

struct loaded_point {
    cudaLibrary_t library;
    cudaKernel_t kernel;
    struct cuda_kernel_info info;
};

static int load(const struct sum_points *p, int size, int i, struct loaded_point *l, struct err *e)
{
    void *at;
    size_t bytes;
    if (!p->cubin[size][i])
        return err_set(e, "%.200s", p->job[size][i].why);
    CU(cudaLibraryLoadData(&l->library, p->cubin[size][i], NULL, NULL, 0, NULL, NULL, 0));
    CU(cudaLibraryGetKernel(&l->kernel, l->library, "whet_kernel"));
    CU(cudaLibraryGetGlobal(&at, &bytes, l->library, "whet_info"));
    CU(cudaMemcpy(&l->info, at, sizeof l->info, cudaMemcpyDeviceToHost));
    return 0;
}

/* One call of what is timed: NCCL's (NULL, NULL), the eager kernel or a point. */
static int call(const struct sum_rank *r, const struct loaded_point *l, bool eager, int size,
                struct err *e)
{
    int64_t n = (int64_t)m_of[size] * hidden_of[size];
    if (!l && eager)
        return r->peer->ops->reduce(r->peer, r->in, r->residual, r->out, n, r->stream, e);
    if (!l)
        return r->nccl->ops->all_reduce(r->nccl, r->in, r->out, n, r->stream, e);
    struct peer_reduce_args a = {
        r->in,  r->residual,
        r->out, m_of[size],
        0,      *(const struct peer_area *)r->peer->ops->area(r->peer, REDUCE_TRIALS)->host};
    cudaLaunchAttribute edge = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t c = {.gridDim = {(unsigned)l->info.launch[0].grid[0], 1, 1},
                            .blockDim = {(unsigned)l->info.launch[0].threads, 1, 1},
                            .stream = r->stream,
                            .attrs = &edge,
                            .numAttrs = 1};
    void *parameter[] = {&a};
    CU(cudaLaunchKernelExC(&c, (const void *)l->kernel, parameter));
    return 0;
}

static int replay(const struct sum_rank *r, cudaGraphExec_t exec, double *us, struct err *e)
{
    cudaEvent_t from, to;
    float best = 1e9f, ms;
    CU(cudaEventCreate(&from));
    CU(cudaEventCreate(&to));
    for (int t = 0; t < 6; t++) {
        CU(cudaGraphLaunch(exec, r->stream));
        CU(cudaEventRecord(from, r->stream));
        for (int i = 0; i < 3; i++)
            CU(cudaGraphLaunch(exec, r->stream));
        CU(cudaEventRecord(to, r->stream));
        CU(cudaEventSynchronize(to));
        CU(cudaEventElapsedTime(&ms, from, to));
        best = ms < best ? ms : best;
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    *us = (double)best * 1e3 / 3 / CALLS;
    return 0;
}

/* Microseconds of a captured call, one behind the other. */
static int time_calls(const struct sum_rank *r, const struct loaded_point *l, bool eager, int size,
                      double *us, struct err *e)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    int rc = 0;
    CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < CALLS && rc == 0; i++)
        rc = call(r, l, eager, size, e);
    CU(cudaStreamEndCapture(r->stream, &graph));
    if (rc == 0)
        CU(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphDestroy(graph);
    rc = rc ? -1 : replay(r, exec, us, e);
    if (exec)
        cudaGraphExecDestroy(exec);
    return rc;
}

static float number(int rank, int64_t i)
{
    return (float)(i % 977 + 1) * (rank == 0 ? 0.7f : rank == 1 ? 0.1f : 0.3f);
}

static int send_numbers(const struct sum_rank *r, struct err *e)
{
    enum { ALL = 64 * 4096 };
    float *host = xmalloc(ALL * sizeof *host);
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < ALL; i++)
            host[i] = number(k ? 2 : r->rank, i);
        CU(cudaMemcpy(k ? r->residual : r->in, host, ALL * sizeof *host, cudaMemcpyHostToDevice));
    }
    free(host);
    return 0;
}

/* Numbers of the last call that are not the sum of both ranks', then the residual. */
static int64_t wrong(const struct sum_rank *r, int size)
{
    int64_t n = (int64_t)m_of[size] * hidden_of[size], bad = 0;
    float *host = xmalloc((size_t)n * sizeof *host);
    if (cudaMemcpy(host, r->out, (size_t)n * sizeof *host, cudaMemcpyDeviceToHost))
        bad = n;
    for (int64_t i = 0; i < n && bad < n; i++) {
        volatile float sum = number(0, i) + number(1, i);
        sum += number(2, i);
        bad += sum != host[i];
    }
    free(host);
    return bad;
}

struct best {
    double us;
    const char *knobs;
};

static int time_size(const struct sum_points *p, const struct sum_rank *r, int size,
                     struct best of[KINDS + 3], struct err *e)
{
    int failed = 0;
    for (int k = 0; k < KINDS + 3; k++)
        of[k] = (struct best){1e9, ""};
    if (time_calls(r, NULL, false, size, &of[KINDS + 1].us, e) ||
        time_calls(r, NULL, true, size, &of[KINDS + 2].us, e))
        return -1;
    for (int i = 0; i < p->jobs[size]; i++) {
        const struct compile_job *j = &p->job[size][i];
        struct loaded_point l;
        double us = 0;
        CU(cudaMemset(r->out, 0xff, 64 * 4096 * sizeof *r->out));
        if (load(p, size, i, &l, e) || time_calls(r, &l, false, size, &us, e))
            return -1;
        int64_t bad = wrong(r, size);
        if (bad)
            printf("FAIL rank %d, %d x %d, %s: %lld numbers are wrong\n", r->rank, m_of[size],
                   hidden_of[size], j->knobs, (long long)bad);
        failed += bad > 0;
        struct best *b = &of[p->kind[size][i] < 0 ? KINDS : p->kind[size][i]];
        if (!bad && us < b->us)
            *b = (struct best){us, j->knobs};
        cudaLibraryUnload(l.library);
    }
    return failed;
}

int sum_points_time(const struct sum_points *p, const struct sum_rank *r, struct err *e)
{
    static const char *const way[] = {"number and call", "lines of 128", "plain and flag"};
    struct best of[KINDS + 3];
    int failed = send_numbers(r, e);
    if (!r->peer->ops->area(r->peer, REDUCE_TRIALS))
        return err_set(e, "there is no area for kernels of reduce");
    for (int s = 0; s < SIZES && failed >= 0; s++) {
        int bad = time_size(p, r, s, of, e);
        failed = bad < 0 ? -1 : failed + bad;
        if (r->rank || bad < 0)
            continue;
        printf("  %d x %d, %d points: NCCL %.2f us, eager %.2f, START %.2f (%s)\n", m_of[s],
               hidden_of[s], p->jobs[s], of[KINDS + 1].us, of[KINDS + 2].us, of[KINDS].us,
               of[KINDS].knobs);
        for (int k = 0; k < KINDS; k++)
            if (of[k].us < 1e9)
                printf("      %s, %d shot%s: %.2f us (%s)\n", way[k / 2], k % 2 + 1,
                       k % 2 ? "s" : "", of[k].us, of[k].knobs);
        fflush(stdout);
    }
    return failed;
}
