/* SPDX-License-Identifier: Apache-2.0 */
/* probe_reduce_gpus.c - the ranks of a probe of reduce: one process that has all their GPUs.
 *
 * The session's GPU is rank 0; the others get a context when the first kernel of reduce is probed.
 * Memory is made anew for each kernel. Ranks are as far apart as they are told to be: each has a
 * stream, and before a call may run a predecessor of the probe's (probe_produce), which lets the
 * call start and writes its inputs late.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/device.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/peer_area.h"
#include "engine/cuda/probe_reduce.h"
#include "engine/cuda/walk.h"

size_t party_out_stride(const struct party *p)
{
    return ((size_t)p->most * sizeof(float) + 255) / 256 * 256 + PARTY_BAND;
}

static size_t area_bytes(const struct party *p)
{
    return peer_area_bytes(p->world, p->numbers);
}

static size_t words_at(const struct party *p)
{
    return peer_words_at(p->world, p->numbers);
}

int32_t party_turn(const struct party *p, int i)
{
    return (p->round + i) & 1;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int reach_others(struct party *p, int32_t rank, struct err *e)
{
    for (int32_t r = 0; r < p->world; r++) {
        int can = 0;
        if (r == rank)
            continue;
        CU(cudaDeviceCanAccessPeer(&can, rank, r));
        if (!can)
            return err_set(e, "GPU %d does not reach the memory of GPU %d", rank, r);
        cudaError_t code = cudaDeviceEnablePeerAccess(r, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled)
            cudaGetLastError();
        else
            CU(code);
    }
    return 0;
}

static int open_gpu(struct party *p, int32_t rank, struct err *e)
{
    struct party_gpu *g = &p->gpu[rank];
    size_t rows = PARTY_CALLS * (size_t)p->most * sizeof(float);
    size_t out = PARTY_CALLS * party_out_stride(p) + PARTY_BAND;
    g->device = rank;
    CU(cudaSetDevice(rank));
    if (reach_others(p, rank, e))
        return -1;
    CU(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&g->done, cudaEventDisableTiming));
    CU(cudaMalloc((void **)&g->area, area_bytes(p) + 2 * PARTY_BAND));
    CU(cudaMalloc((void **)&g->x, rows));
    CU(cudaMalloc((void **)&g->residual, rows));
    CU(cudaMalloc((void **)&g->stage_x, rows));
    CU(cudaMalloc((void **)&g->stage_residual, rows));
    CU(cudaMalloc((void **)&g->out, out));
    CU(cudaMalloc((void **)&g->calls, peer_area_counts()));
    CU(cudaMalloc((void **)&g->segment, PARTY_CALLS * PARTY_SEGMENTS * sizeof *g->segment));
    CU(cudaMalloc((void **)&g->delay, PARTY_CALLS * sizeof *g->delay));
    g->x_host = xcalloc(1, rows);
    g->out_host = xmalloc(out);
    g->area_host = xmalloc(area_bytes(p) + 2 * PARTY_BAND);
    return 0;
}

/* What a rank is told of all. */
static void aim(struct party *p)
{
    for (int32_t r = 0; r < p->world; r++) {
        struct peer_area *v = &p->gpu[r].view;
        *v = (struct peer_area){.calls = p->gpu[r].calls,
                                .over = p->over_device,
                                .rank = r,
                                .world = p->world,
                                .numbers = p->numbers};
        for (int32_t k = 0; k < p->world; k++)
            v->memory[k] = p->gpu[k].area + PARTY_BAND;
    }
}

static int open_kernel(struct party *p, struct err *e)
{
    struct kernel_object object = {p->q->object,    "whet_kernel", REGION_REDUCE,
                                   ORIGIN_TEMPLATE, "probe",       "probe"};
    p->b = xmalloc(sizeof *p->b);
    *p->b = p->session->base;
    pthread_mutex_init(&p->b->load_lock, NULL);
    p->kernel = loaded_open(p->b, &object, false, e);
    if (!p->kernel)
        return -1;
    p->loaded = p->kernel->backend;
    const struct cuda_kernel_info *i = &p->loaded->info;
    struct cudaFuncAttributes a;
    if (i->m_max < p->q->m_to)
        return err_set(e, "takes %d tokens at most where the slot has %d", i->m_max, p->q->m_to);
    if (i->launches != 1 || i->counters || i->work_bytes || i->packed_bytes || i->box_rows)
        return err_set(e, "wants memory or launches that reduce has not");
    CU(cudaFuncGetAttributes(&a, (const void *)p->loaded->entry[0]));
    if (a.localSizeBytes > 0)
        return err_set(e, "keeps %zu bytes of each thread in local memory", a.localSizeBytes);
    return 0;
}

/* Code comes onto a device when it is asked about, or else at its first launch: which then might
 * wait for a call that waits for it. */
static int bring_code(const struct party *p, struct err *e)
{
    struct cudaFuncAttributes a;
    for (int32_t r = p->world - 1; r >= 0; r--) {
        CU(cudaSetDevice(r));
        CU(cudaFuncGetAttributes(&a, (const void *)p->loaded->entry[0]));
        CU(cudaFuncGetAttributes(&a, (const void *)p->session->tool[TOOL_PRODUCE]));
    }
    return 0;
}

int party_open(struct party *p, enum device_verdict *verdict, struct err *e)
{
    int devices = 0, rc = 0;
    size_t rows = PARTY_CALLS * (size_t)p->most * sizeof(float);
    *verdict = DEVICE_ERROR;
    CU(cudaGetDeviceCount(&devices));
    if (devices < p->world)
        return err_set(e, "%d ranks meet in a kernel of reduce, and the probe sees %d GPUs",
                       p->world, devices);
    CU(cudaHostAlloc((void **)&p->over, sizeof *p->over,
                     cudaHostAllocMapped | cudaHostAllocPortable));
    *p->over = 0;
    CU(cudaHostGetDevicePointer((void **)&p->over_device, p->over, 0));
    p->residual_host = xcalloc(1, rows);
    for (int32_t r = 0; r < p->world && rc == 0; r++)
        rc = open_gpu(p, r, e);
    CU(cudaSetDevice(0));
    aim(p);
    if (rc)
        return -1;
    *verdict = DEVICE_FAULT;
    return open_kernel(p, e) || bring_code(p, e) ? -1 : 0;
}

static void close_gpu(struct party_gpu *g)
{
    void *const memory[] = {g->area, g->x,     g->residual, g->stage_x, g->stage_residual,
                            g->out,  g->calls, g->segment,  g->delay};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i])
            cudaFree(memory[i]);
    if (g->done)
        cudaEventDestroy(g->done);
    if (g->stream)
        cudaStreamDestroy(g->stream);
}

void party_close(struct party *p, bool sound)
{
    for (int32_t r = 0; r < p->world && sound; r++)
        if (cudaSetDevice(r) == cudaSuccess)
            close_gpu(&p->gpu[r]);
    cudaSetDevice(0);
    if (p->kernel && sound) {
        cuda_unload(p->b, p->kernel);
        loaded_reap(p->b, true);
    }
    if (p->over && sound)
        cudaFreeHost(p->over);
    if (p->b && sound) {
        pthread_mutex_destroy(&p->b->load_lock);
        free(p->b);
    }
    for (int32_t r = 0; r < p->world; r++) {
        free(p->gpu[r].x_host);
        free(p->gpu[r].out_host);
        free(p->gpu[r].area_host);
    }
    free(p->residual_host);
}

/* ---- numbers -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* About 1, far apart in size, denormal, or zero of either sign: never infinite, so that a sum is
 * one, too. */
static float drawn(uint64_t seed, int kind)
{
    uint64_t bits = mix(seed);
    uint32_t sign = (uint32_t)(bits >> 63) << 31, fraction = (uint32_t)bits & 0x7fffff;
    uint32_t exponent = kind == 1 ? 67 + (uint32_t)(bits >> 32) % 120 : 127;
    uint32_t word = kind == 3   ? sign
                    : kind == 2 ? sign | fraction
                                : sign | exponent << 23 | fraction;
    float v;
    memcpy(&v, &word, sizeof v);
    return v;
}

static void draw_call(struct party *p, int i)
{
    int kind = (p->round + i) % 8 == 5 ? 3 : (p->round + i) % 4 == 3 ? 2 : (p->round + i) % 2;
    uint64_t seed = mix(p->q->seed + (uint64_t)(p->round * PARTY_CALLS + i + 1));
    for (int64_t n = 0; n < (int64_t)p->m[i] * p->q->hidden; n++) {
        for (int32_t r = 0; r < p->world; r++)
            p->gpu[r].x_host[i * p->most + n] =
                drawn(seed + (uint64_t)(n * (REDUCE_PEERS + 1) + r), kind);
        p->residual_host[i * p->most + n] =
            drawn(seed + (uint64_t)(n * (REDUCE_PEERS + 1) + REDUCE_PEERS), kind);
    }
}

static float *out_of(const struct party *p, const struct party_gpu *g, int i)
{
    return (float *)(void *)(g->out + (size_t)i * party_out_stride(p) + PARTY_BAND);
}

static int fill_gpu(const struct party *p, const struct party_gpu *g, struct err *e)
{
    struct probe_segment s[PARTY_CALLS][PARTY_SEGMENTS];
    size_t rows = PARTY_CALLS * (size_t)p->most * sizeof(float);
    for (int i = 0; i < PARTY_CALLS; i++) {
        int64_t at = i * p->most, bytes = (int64_t)p->m[i] * p->q->hidden * 4;
        s[i][0] = (struct probe_segment){g->stage_x + at, g->x + at, bytes};
        s[i][1] = (struct probe_segment){g->stage_residual + at, g->residual + at, bytes};
        s[i][2] = (struct probe_segment){NULL, out_of(p, g, i), bytes};
    }
    CU(cudaSetDevice(g->device));
    CU(cudaMemcpy(g->segment, s, sizeof s, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(g->stage_x, g->x_host, rows, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(g->stage_residual, p->residual_host, rows, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(g->delay, p->delay_ns[g->device], sizeof p->delay_ns[0], cudaMemcpyHostToDevice));
    if (p->late) {
        CU(cudaMemset(g->x, 0xff, rows));
        CU(cudaMemset(g->residual, 0xff, rows));
    } else {
        CU(cudaMemcpy(g->x, g->stage_x, rows, cudaMemcpyDeviceToDevice));
        CU(cudaMemcpy(g->residual, g->stage_residual, rows, cudaMemcpyDeviceToDevice));
    }
    CU(cudaMemset(g->out, PARTY_PATTERN, PARTY_CALLS * party_out_stride(p) + PARTY_BAND));
    CU(cudaDeviceSynchronize());
    return 0;
}

int party_fill(struct party *p, struct err *e)
{
    for (int i = 0; i < PARTY_CALLS; i++)
        draw_call(p, i);
    for (int32_t r = 0; r < p->world; r++)
        if (fill_gpu(p, &p->gpu[r], e))
            return -1;
    return 0;
}

int party_fill_areas(struct party *p, int value, struct err *e)
{
    for (int32_t r = 0; r < p->world; r++) {
        struct party_gpu *g = &p->gpu[r];
        CU(cudaSetDevice(r));
        CU(cudaMemset(g->area, PARTY_PATTERN, area_bytes(p) + 2 * PARTY_BAND));
        CU(cudaMemset(g->area + PARTY_BAND, value, area_bytes(p)));
        CU(cudaMemset(g->area + PARTY_BAND + words_at(p), 0xff, area_bytes(p) - words_at(p)));
        CU(cudaDeviceSynchronize());
    }
    return 0;
}

int party_count(struct party *p, uint32_t calls, struct err *e)
{
    uint32_t all[REDUCE_WAYS][REDUCE_COUNTS];
    for (int w = 0; w < REDUCE_WAYS; w++) {
        p->count[w] = calls + 7 * (uint32_t)w; /* of other parity, too: not one count for all */
        for (int i = 0; i < REDUCE_COUNTS; i++)
            all[w][i] = p->count[w];
    }
    for (int32_t r = 0; r < p->world; r++) {
        CU(cudaSetDevice(r));
        CU(cudaMemcpy(p->gpu[r].calls, all, sizeof all, cudaMemcpyHostToDevice));
        CU(cudaDeviceSynchronize());
    }
    return 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int produce(const struct party *p, const struct party_gpu *g, int i, struct err *e)
{
    struct probe_produce_args a = {.segment = g->segment + i * PARTY_SEGMENTS,
                                   .delay_ns = g->delay + i,
                                   .segments = PARTY_SEGMENTS};
    cudaLaunchConfig_t c = {.gridDim = {16, 1, 1}, .blockDim = {256, 1, 1}, .stream = g->stream};
    void *parameter[] = {&a};
    CU(cudaLaunchKernelExC(&c, (const void *)p->session->tool[TOOL_PRODUCE], parameter));
    return 0;
}

int party_launch(struct party *p, int32_t rank, int i, struct err *e)
{
    struct party_gpu *g = &p->gpu[rank];
    const struct cuda_launch *how = &p->loaded->info.launch[0];
    struct peer_reduce_args a = {.x = g->x + i * p->most,
                                 .residual = g->residual + i * p->most,
                                 .out = out_of(p, g, i),
                                 .m = p->m[i],
                                 .turn = party_turn(p, i),
                                 .area = g->view};
    cudaLaunchAttribute edge = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t c = {
        .gridDim = {(unsigned)how->grid[0], (unsigned)how->grid[1], (unsigned)how->grid[2]},
        .blockDim = {(unsigned)how->threads, 1, 1},
        .dynamicSmemBytes = (size_t)how->smem,
        .stream = g->stream,
        .attrs = &edge,
        .numAttrs = how->pdl && p->b->device.major >= 9};
    void *parameter[] = {&a};
    CU(cudaSetDevice(rank));
    if (p->late && produce(p, g, i, e))
        return -1;
    CU(cudaLaunchKernelExC(&c, (const void *)p->loaded->entry[0], parameter));
    p->runs++;
    return 0;
}

/* All at once: whether one is under way says nothing of the others. */
static cudaError_t ended(const struct party *p, int32_t from, int32_t to)
{
    for (int32_t r = from; r < to; r++) {
        cudaError_t code = cudaEventQuery(p->gpu[r].done);
        if (code)
            return code;
    }
    return cudaSuccess;
}

int party_wait(struct party *p, int32_t from, int32_t to, double limit_s, struct err *e)
{
    int64_t until = clock_ns() + (int64_t)(limit_s * 1e9), awake = clock_ns() + 3000000;
    struct timespec us50 = {0, 50000};
    cudaError_t code = cudaSuccess;
    for (int32_t r = from; r < to && !code; r++) {
        code = cudaSetDevice(r);
        code = code ? code : cudaEventRecord(p->gpu[r].done, p->gpu[r].stream);
    }
    while (!code && (code = ended(p, from, to)) == cudaErrorNotReady) {
        cudaGetLastError();
        if (clock_ns() > until)
            return 1;
        if (clock_ns() > awake)
            nanosleep(&us50, NULL);
        code = cudaSuccess;
    }
    if (!code)
        return 0;
    p->dead = true;
    return err_set(e, "device error: %s", cudaGetErrorString(code));
}

int party_fetch(struct party *p, uint32_t count[REDUCE_PEERS][REDUCE_WAYS][REDUCE_COUNTS],
                bool areas, struct err *e)
{
    for (int32_t r = 0; r < p->world; r++) {
        struct party_gpu *g = &p->gpu[r];
        CU(cudaSetDevice(r));
        CU(cudaMemcpy(g->out_host, g->out, PARTY_CALLS * party_out_stride(p) + PARTY_BAND,
                      cudaMemcpyDeviceToHost));
        CU(cudaMemcpy(count[r], g->calls, peer_area_counts(), cudaMemcpyDeviceToHost));
        if (areas)
            CU(cudaMemcpy(g->area_host, g->area, area_bytes(p) + 2 * PARTY_BAND,
                          cudaMemcpyDeviceToHost));
    }
    return 0;
}
