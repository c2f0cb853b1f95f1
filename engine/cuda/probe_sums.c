/* SPDX-License-Identifier: Apache-2.0 */
/* probe_sums.c - that a projection which adds other ranks' numbers itself (kernels/peer.h,
 * REDUCE_WORDS) makes of its own what a kernel of `reduce` would make of them.
 *
 * No other GPU is needed: a rank is what it writes and what it has taken, so the probe plays the
 * others. It puts their numbers into this rank's memory, runs the kernel once as each of three
 * ranks, and looks at everything: y must have the bits of the sum in the order of ranks, the
 * residual last; each of the others' memory must hold the kernel's own numbers, once, in the call's
 * turn; in its own all places must be empty again; and around all that nothing may have changed.
 * What its own numbers are is known from a run without others. Then a number is missing: the
 * kernel must wait for it, and end when it comes, in one run, and when the world is over, in
 * another.
 *
 * Only for a server of several ranks: it keeps the device waiting for milliseconds. The contents
 * are those of the probe's last case. Slices are the caller's.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/err.h"
#include "engine/cuda/device.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/peer_area.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"
#include "kernels/peer.h"

enum { SUMS_WORLD = 3, SUMS_BAND = 4096, SUMS_PATTERN = 0xa5 };
enum { SUMS_LONELY_NS = 2000000 }; /* for which a number is missing */

struct sums {
    struct device_probe *p;
    int64_t n;                        /* numbers of a call */
    int32_t numbers;                  /* of an area */
    size_t words;                     /* bytes of a rank's places */
    char *memory[SUMS_WORLD];         /* device: a band, places of both turns, a band */
    float *zeros, *residual;          /* device [n] */
    char *out;                        /* device: a band, [n], a band */
    float *own, *got;                 /* host: [n] without others, bands and [n] with them */
    float *theirs[SUMS_WORLD], *more; /* host [n]: what the others send, the residual */
    char *seen;                       /* host: a rank's memory */
    uint32_t *over;
    struct cuda_sum sum;
};

/* ---- memory --------------------------------------------------------------------------------- */

static float drawn(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(*state >> 40) - 8388608.0f) / 4194304.0f + 1e-6f;
}

static void draw(struct sums *s)
{
    uint64_t state = s->p->c.seed + 77;
    for (int64_t i = 0; i < s->n; i++) {
        for (int r = 0; r < SUMS_WORLD; r++)
            s->theirs[r][i] = drawn(&state);
        s->more[i] = drawn(&state);
    }
}

static int open_sums(struct sums *s, struct err *e)
{
    size_t n = (size_t)s->n * sizeof(float);
    void *over = NULL;
    s->words = peer_area_bytes(SUMS_WORLD, s->numbers) - peer_words_at(SUMS_WORLD, s->numbers);
    for (int r = 0; r < SUMS_WORLD; r++) {
        CU(cudaMalloc((void **)&s->memory[r], s->words + 2 * SUMS_BAND));
        s->theirs[r] = xmalloc(n);
    }
    CU(cudaMalloc((void **)&s->zeros, n));
    CU(cudaMalloc((void **)&s->residual, n));
    CU(cudaMalloc((void **)&s->out, n + 2 * SUMS_BAND));
    CU(cudaHostAlloc((void **)&s->over, sizeof *s->over, cudaHostAllocMapped));
    CU(cudaHostGetDevicePointer(&over, s->over, 0));
    s->own = xmalloc(n);
    s->more = xmalloc(n);
    s->got = xmalloc(n + 2 * SUMS_BAND);
    s->seen = xmalloc(s->words + 2 * SUMS_BAND);
    draw(s);
    CU(cudaMemset(s->zeros, 0, n));
    CU(cudaMemcpy(s->residual, s->more, n, cudaMemcpyHostToDevice));
    s->sum.area = (struct peer_area){.over = over, .numbers = s->numbers};
    /* Only the places are there: what a kernel writes to another way's memory is a fault. */
    for (int r = 0; r < SUMS_WORLD; r++)
        s->sum.area.memory[r] = s->memory[r] + SUMS_BAND - peer_words_at(SUMS_WORLD, s->numbers);
    return 0;
}

static void close_sums(struct sums *s)
{
    if (!s->p->dead) { /* freeing waits for the device */
        for (int r = 0; r < SUMS_WORLD; r++)
            cudaFree(s->memory[r]);
        cudaFree(s->zeros);
        cudaFree(s->residual);
        cudaFree(s->out);
        cudaFreeHost(s->over);
    }
    for (int r = 0; r < SUMS_WORLD; r++)
        free(s->theirs[r]);
    free(s->own);
    free(s->more);
    free(s->got);
    free(s->seen);
}

/* Bytes from a rank's memory to what rank `of` sends it in a turn. */
static size_t place(const struct sums *s, int turn, int of)
{
    return SUMS_BAND + (size_t)REDUCE_SLOT(REDUCE_WORDS, SUMS_WORLD, s->numbers, turn, of) * 16 -
           peer_words_at(SUMS_WORLD, s->numbers);
}

/* All places empty, and those of `rank` filled but for the last `missing` numbers of the others. */
static int fill(struct sums *s, int rank, int turn, int64_t missing, struct err *e)
{
    for (int r = 0; r < SUMS_WORLD; r++) {
        CU(cudaMemset(s->memory[r], SUMS_PATTERN, s->words + 2 * SUMS_BAND));
        CU(cudaMemset(s->memory[r] + SUMS_BAND, 0xff, s->words));
    }
    for (int r = 0; r < SUMS_WORLD; r++)
        if (r != rank)
            CU(cudaMemcpy(s->memory[rank] + place(s, turn, r), s->theirs[r],
                          (size_t)(s->n - missing) * sizeof(float), cudaMemcpyHostToDevice));
    CU(cudaMemset(s->out, SUMS_PATTERN, (size_t)s->n * sizeof(float) + 2 * SUMS_BAND));
    *(volatile uint32_t *)s->over = 0;
    CU(cudaDeviceSynchronize());
    return 0;
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* As rank `rank` of SUMS_WORLD, or alone (-1). */
static int run(struct sums *s, int rank, int turn, struct err *e)
{
    struct device_probe *p = s->p;
    struct kernel_choice choice;
    struct walk w;
    case_walk(p, &w, &choice);
    w.x = rank < 0 ? s->zeros : s->residual;
    w.y = (float *)(void *)(s->out + SUMS_BAND);
    w.next = p->drawn.data;
    w.next_bytes = p->drawn.bytes;
    if (rank >= 0) {
        w.fused = s->sum;
        w.fused.area.rank = rank;
        w.fused.area.world = SUMS_WORLD;
        w.fused.turn = turn;
    }
    return walk_region(&w, p->kernel, p->o.region, p->layer, e);
}

static enum device_verdict fetch(struct sums *s, struct err *e)
{
    enum device_verdict v = probe_wait(s->p, probe_hang_s, "the kernel with other ranks", e);
    if (v != DEVICE_OK)
        return v;
    cudaError_t code = cudaMemcpy(s->got, s->out, (size_t)s->n * sizeof(float) + 2 * SUMS_BAND,
                                  cudaMemcpyDeviceToHost);
    return code ? err_set(e, "%s", cudaGetErrorString(code)), DEVICE_ERROR : DEVICE_OK;
}

/* ---- what must hold ------------------------------------------------------------------------- */

static bool is_all(const char *at, int byte, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != (char)byte)
            return false;
    return true;
}

/* Equal bits, or zero of either sign: x = 0 was added to what is known. */
static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0);
}

static int check_y(const struct sums *s, int rank, struct err *e)
{
    const char *base = (const char *)s->got;
    const float *y = (const float *)(const void *)(base + SUMS_BAND);
    for (int64_t i = 0; i < s->n; i++) {
        float sum = rank == 0 ? s->own[i] : s->theirs[0][i];
        for (int r = 1; r < SUMS_WORLD; r++)
            sum += r == rank ? s->own[i] : s->theirs[r][i];
        sum += s->more[i];
        if (!same(y[i], sum))
            return err_set(e,
                           "as rank %d of %d: element %lld is %.9g, the sum in the order of ranks "
                           "and the residual are %.9g",
                           rank, SUMS_WORLD, (long long)i, (double)y[i], (double)sum);
    }
    if (!is_all(base, SUMS_PATTERN, SUMS_BAND) ||
        !is_all((const char *)(y + s->n), SUMS_PATTERN, SUMS_BAND))
        return err_set(e, "as rank %d of %d: wrote outside of its output", rank, SUMS_WORLD);
    return 0;
}

/* What rank `on` has been sent by `rank`, and nothing else. */
static int check_memory(struct sums *s, int on, int rank, int turn, struct err *e)
{
    CU(cudaMemcpy(s->seen, s->memory[on], s->words + 2 * SUMS_BAND, cudaMemcpyDeviceToHost));
    if (!is_all(s->seen, SUMS_PATTERN, SUMS_BAND) ||
        !is_all(s->seen + SUMS_BAND + s->words, SUMS_PATTERN, SUMS_BAND))
        return err_set(e, "as rank %d of %d: wrote outside of rank %d's area", rank, SUMS_WORLD,
                       on);
    float *sent = (float *)(void *)(s->seen + place(s, turn, rank));
    for (int64_t i = 0; i < s->n && on != rank; i++) {
        if (!same(sent[i], s->own[i]))
            return err_set(e, "as rank %d of %d: sent %.9g as number %lld, which is %.9g", rank,
                           SUMS_WORLD, (double)sent[i], (long long)i, (double)s->own[i]);
        memset(&sent[i], 0xff, sizeof *sent);
    }
    return is_all(s->seen + SUMS_BAND, 0xff, s->words)
               ? 0
               : err_set(e, "as rank %d of %d: left words on rank %d that are nobody's", rank,
                         SUMS_WORLD, on);
}

static enum device_verdict check_run(struct sums *s, int rank, int turn, struct err *e)
{
    enum device_verdict v = fetch(s, e);
    if (v != DEVICE_OK)
        return v;
    if (check_y(s, rank, e))
        return DEVICE_FAULT;
    for (int on = 0; on < SUMS_WORLD; on++)
        if (check_memory(s, on, rank, turn, e))
            return DEVICE_FAULT;
    return DEVICE_OK;
}

/* ---- a number that is missing --------------------------------------------------------------- */

static int send_missing(struct sums *s, int rank, int turn, cudaStream_t beside, struct err *e)
{
    size_t last = (size_t)(s->n - 1) * sizeof(float);
    for (int r = 0; r < SUMS_WORLD; r++)
        if (r != rank)
            CU(cudaMemcpyAsync(s->memory[rank] + place(s, turn, r) + last, &s->theirs[r][s->n - 1],
                               sizeof(float), cudaMemcpyHostToDevice, beside));
    CU(cudaStreamSynchronize(beside));
    return 0;
}

/* The kernel runs without the last number of the others, which come late or never. */
static enum device_verdict missing(struct sums *s, bool comes, cudaStream_t beside, struct err *e)
{
    struct timespec t = {0, SUMS_LONELY_NS};
    int rank = 1, turn = 0;
    if (fill(s, rank, turn, 1, e) || run(s, rank, turn, e))
        return DEVICE_ERROR;
    nanosleep(&t, NULL);
    bool waits = cudaStreamQuery(s->p->b->stream) == cudaErrorNotReady;
    cudaGetLastError();
    if (comes && send_missing(s, rank, turn, beside, e))
        return DEVICE_ERROR;
    if (!comes)
        *(volatile uint32_t *)s->over = 1;
    if (!waits) {
        err_set(e, "as rank %d of %d: it did not wait for a number that had not come", rank,
                SUMS_WORLD);
        return DEVICE_FAULT;
    }
    return comes ? check_run(s, rank, turn, e)
                 : probe_wait(s->p, probe_hang_s, "the kernel, when the world is over,", e);
}

static enum device_verdict both_missing(struct sums *s, struct err *e)
{
    cudaStream_t beside;
    if (cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking))
        return err_set(e, "no stream"), DEVICE_ERROR;
    enum device_verdict v = missing(s, true, beside, e);
    if (v == DEVICE_OK)
        v = missing(s, false, beside, e);
    if (!s->p->dead)
        cudaStreamDestroy(beside);
    return v;
}

/* ---- all ------------------------------------------------------------------------------------ */

static enum device_verdict all_runs(struct sums *s, struct err *e)
{
    if (fill(s, 0, 0, 0, e) || run(s, -1, 0, e))
        return DEVICE_ERROR;
    enum device_verdict v = fetch(s, e);
    memcpy(s->own, (const char *)s->got + SUMS_BAND, (size_t)s->n * sizeof(float));
    for (int rank = 0; rank < SUMS_WORLD && v == DEVICE_OK; rank++) {
        int turn = (rank + 1) & 1;
        if (fill(s, rank, turn, 0, e) || run(s, rank, turn, e))
            return DEVICE_ERROR;
        v = check_run(s, rank, turn, e);
    }
    return v == DEVICE_OK ? both_missing(s, e) : v;
}

enum device_verdict probe_sums(struct device_probe *p, struct err *e)
{
    struct sums s = {.p = p, .n = (int64_t)p->loaded->info.m_max * p->y_cols};
    bool out = p->o.region == REGION_ATTN_OUT || p->o.region == REGION_MLP_OUT;
    if (!out || !p->loaded->info.sums || s.n > REDUCE_PEER_NUMBERS || !peer_gpus_known(2))
        return DEVICE_OK;
    s.numbers = (int32_t)((s.n + 63) / 64 * 64);
    enum device_verdict v = open_sums(&s, e) ? DEVICE_ERROR : all_runs(&s, e);
    close_sums(&s);
    return v;
}
