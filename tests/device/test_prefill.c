/* SPDX-License-Identifier: Apache-2.0 */
/* test_prefill.c - attention of prompts: the kernel for every device against the one for Hopper,
 * right and how fast.
 *
 * Both run directly on queries, keys and values drawn on pages in reverse order. A few rows of the
 * first are compared with sums in double; every row of the second with the first. TFLOPS count the
 * products a causal prompt needs, 4 HD a pair of query and key.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/prefill.h"
#include "engine/cuda/walk.h"
#include "engine/quant.h"
#include "tests/device/device_test.h"
#include "tests/kernels/cuda_build.h"

enum { LONGEST = 16384, MOST_TILES = LONGEST / EAGER_TILE + 1, RUNS = 12, HEAD_MOST = 128 };

static const struct heads {
    const char *name;
    int32_t heads, kv_heads, head_dim;
} shape[] = {{"llama-3.2-1b", 32, 8, 64},  {"qwen3-1.7b", 16, 8, 128}, {"qwen3-4b", 32, 8, 128},
             {"llama-3.2-3b", 24, 8, 128}, {"group of 7", 28, 4, 64},  {"llama-2-7b", 32, 32, 128}};

/* `count` tokens that end a sequence of `context`. */
static const struct prompt {
    int32_t count, context;
} prompt[] = {{65, 65}, {300, 1000}, {512, 512}, {2048, 2048}, {8192, 8192}, {2048, 16384}};

struct run {
    struct rig *rig;
    const struct heads *h;
    struct prompt p;
    uint16_t *q, *k, *v, *a;    /* on the host: q and a are the sequence's last rows */
    void *device[4];            /* q, k, v, a */
    struct eager_tile *tile[2]; /* device: the plain kernel's, and those of this device's */
    int32_t tiles[2];
    int32_t *table;
};

static size_t row_of(const struct run *r)
{
    return (size_t)r->h->heads * (size_t)r->h->head_dim;
}

static size_t pages_of(const struct run *r)
{
    return (size_t)(r->p.context + KV_PAGE - 1) / KV_PAGE;
}

static size_t kv_elements(const struct run *r)
{
    return pages_of(r) * KV_PAGE * (size_t)r->h->kv_heads * (size_t)r->h->head_dim;
}

/* Element (position, kv head, 0) of the pages. */
static size_t kv_at(const struct run *r, int32_t position, int32_t kvh)
{
    size_t page = pages_of(r) - 1 - (size_t)position / KV_PAGE;
    return ((page * (size_t)r->h->kv_heads + (size_t)kvh) * KV_PAGE + (size_t)position % KV_PAGE) *
           (size_t)r->h->head_dim;
}

static uint16_t *draw(size_t n, uint64_t *state, float scale)
{
    uint16_t *p = xmalloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) /* uniform, cheaply: there are many */
        p[i] = f32_to_bf16(((float)(rng(state) >> 40) * 0x1p-23f - 1) * scale);
    return p;
}

/* No number in the positions of the last page that are not the sequence's. */
static void spoil(struct run *r)
{
    for (int32_t at = r->p.context; at % KV_PAGE; at++)
        for (int32_t kvh = 0; kvh < r->h->kv_heads; kvh++)
            for (int32_t d = 0; d < r->h->head_dim; d++)
                r->k[kv_at(r, at, kvh) + (size_t)d] = r->v[kv_at(r, at, kvh) + (size_t)d] = 0x7fc0;
}

static int send(struct run *r, struct err *e)
{
    size_t n = row_of(r) * (size_t)r->p.count;
    size_t bytes[] = {n * 2, kv_elements(r) * 2, kv_elements(r) * 2, n * 2};
    const void *from[] = {r->q, r->k, r->v, NULL};
    for (int i = 0; i < 4; i++) {
        CU(cudaMalloc(&r->device[i], bytes[i]));
        if (from[i])
            CU(cudaMemcpy(r->device[i], from[i], bytes[i], cudaMemcpyHostToDevice));
    }
    struct eager_tile *tile = xcalloc(MOST_TILES, sizeof *tile);
    const int32_t rows[] = {EAGER_TILE, prefill_rows(r->rig->b)};
    int32_t *table = xmalloc(pages_of(r) * sizeof *table);
    for (size_t i = 0; i < pages_of(r); i++)
        table[i] = (int32_t)(pages_of(r) - 1 - i);
    CU(cudaMalloc((void **)&r->table, pages_of(r) * sizeof *table));
    for (int i = 0; i < 2; i++) {
        r->tiles[i] = prefill_tiles(tile, rows[i], 0, r->p.count, r->p.context, 0);
        CU(cudaMalloc((void **)&r->tile[i], MOST_TILES * sizeof *tile));
        CU(cudaMemcpy(r->tile[i], tile, MOST_TILES * sizeof *tile, cudaMemcpyHostToDevice));
    }
    CU(cudaMemcpy(r->table, table, pages_of(r) * sizeof *table, cudaMemcpyHostToDevice));
    free(tile);
    free(table);
    return 0;
}

static void drop(struct run *r)
{
    for (int i = 0; i < 4; i++)
        cudaFree(r->device[i]);
    cudaFree(r->tile[0]);
    cudaFree(r->tile[1]);
    cudaFree(r->table);
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->a);
}

static struct prefill what(const struct run *r, bool hopper)
{
    const struct heads *h = r->h;
    return (struct prefill){{.tile = r->tile[hopper],
                             .q16 = r->device[0],
                             .k_pages = r->device[1],
                             .v_pages = r->device[2],
                             .page_table = r->table,
                             .a16 = r->device[3],
                             .heads = h->heads,
                             .kv_heads = h->kv_heads,
                             .scale = (float)(1 / sqrt((double)h->head_dim))},
                            h->head_dim,
                            r->tiles[hopper],
                            r->p.count};
}

/* One launch of the plain kernel (hopper NULL), or of that one in its place. */
static int go(struct run *r, cudaKernel_t hopper, struct err *e)
{
    struct backend *b = r->rig->b;
    struct walk w = {.b = b, .stream = b->stream};
    struct prefill p = what(r, hopper != NULL);
    if (!hopper)
        return prefill_launch_plain(&w, &p, e);
    enum primitive variant = prefill_variant(b, &p);
    cudaKernel_t own = b->primitive[variant];
    b->primitive[variant] = hopper;
    int bad = prefill_launch(&w, &p, e);
    b->primitive[variant] = own;
    return bad;
}

/* Runs and times it; leaves the outputs in r->a. */
static double timed(struct run *r, cudaKernel_t hopper, struct err *e)
{
    struct spare *spare = &r->rig->b->spare;
    size_t bytes = row_of(r) * (size_t)r->p.count * 2;
    float best = 1e9f, ms;
    cudaMemset(r->device[3], 0xff, bytes);
    for (int i = 0; i < RUNS; i++) {
        cudaEventRecord(spare->event[2], r->rig->b->stream);
        if (go(r, hopper, e))
            return -1;
        cudaEventRecord(spare->event[3], r->rig->b->stream);
        cudaError_t code = cudaEventSynchronize(spare->event[3]);
        if (code || cudaEventElapsedTime(&ms, spare->event[2], spare->event[3])) {
            err_set(e, "%s", cudaGetErrorString(code));
            return -1;
        }
        best = ms < best ? ms : best;
    }
    return cudaMemcpy(r->a, r->device[3], bytes, cudaMemcpyDeviceToHost) ? -1 : (double)best * 1e3;
}

/* Relative RMS error of row t, head h of r->a against sums in double. */
static double error_of(const struct run *r, int32_t t, int32_t head)
{
    int32_t hd = r->h->head_dim, kvh = head / (r->h->heads / r->h->kv_heads);
    int32_t end = r->p.context - r->p.count + t;
    const uint16_t *q = r->q + row_of(r) * (size_t)t + (size_t)(head * hd);
    const uint16_t *a = r->a + row_of(r) * (size_t)t + (size_t)(head * hd);
    double o[HEAD_MOST] = {0}, sum = 0, error = 0, square = 0;
    for (int32_t p = 0; p <= end; p++) {
        const uint16_t *k = r->k + kv_at(r, p, kvh), *v = r->v + kv_at(r, p, kvh);
        double s = 0;
        for (int32_t d = 0; d < hd; d++)
            s += (double)bf16_to_f32(q[d]) * (double)bf16_to_f32(k[d]);
        double weight = exp(s / sqrt((double)hd));
        sum += weight;
        for (int32_t d = 0; d < hd; d++)
            o[d] += weight * (double)bf16_to_f32(v[d]);
    }
    for (int32_t d = 0; d < hd; d++) {
        double want = o[d] / sum, got = (double)bf16_to_f32(a[d]);
        error += (got - want) * (got - want);
        square += want * want;
    }
    return sqrt(error / square);
}

/* The worst of rows at the tiles' borders and of a few in between. */
static double worst_row(const struct run *r)
{
    double worst = 0;
    for (int32_t i = 0; i < 12; i++) {
        int32_t t = i < 4 ? (int32_t[]){0, 1, 63, 64}[i] : (i * 1237 + 5) % r->p.count;
        t = i == 4 ? r->p.count - 1 : t % r->p.count;
        double e = error_of(r, t, (i * 11) % r->h->heads);
        worst = isfinite(e) ? fmax(worst, e) : HUGE_VAL;
    }
    return worst;
}

static double difference(const uint16_t *a, const uint16_t *b, size_t n)
{
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)bf16_to_f32(a[i]), y = (double)bf16_to_f32(b[i]);
        error += (x - y) * (x - y);
        square += y * y;
    }
    error = sqrt(error / square);
    return isfinite(error) ? error : HUGE_VAL;
}

static void compare(struct rig *rig, const struct heads *h, struct prompt p, cudaKernel_t wgmma,
                    cudaKernel_t no_turns)
{
    uint64_t state = (uint64_t)(p.context + h->heads);
    struct run r = {.rig = rig, .h = h, .p = p};
    struct err e = {""};
    size_t n = row_of(&r) * (size_t)p.count;
    double pairs = (double)p.count * (p.context - p.count + (p.count + 1) / 2.0);
    double flops = 4.0 * h->head_dim * h->heads * pairs, mma, other = 0, without = 0;
    r.q = draw(n, &state, 2);
    r.k = draw(kv_elements(&r), &state, 2);
    r.v = draw(kv_elements(&r), &state, 1);
    spoil(&r);
    r.a = xmalloc(n * 2);
    uint16_t *first = xmalloc(n * 2);
    if (send(&r, &e) == 0 && (mma = timed(&r, NULL, &e)) > 0) {
        double worst = worst_row(&r), apart = 0;
        memcpy(first, r.a, n * 2);
        if (wgmma && (other = timed(&r, wgmma, &e)) > 0)
            apart = fmax(difference(r.a, first, n), worst_row(&r));
        if (no_turns && (without = timed(&r, no_turns, &e)) > 0)
            apart = fmax(difference(r.a, first, n), apart);
        check(worst < 6e-3 && (!wgmma || (other > 0 && apart < 6e-3)), true,
              "%-12s %5d of %5d: mma %8.1f us %3.0f TFLOPS, rms %.1e; wgmma %8.1f us %3.0f TFLOPS, "
              "rms %.1e; %3.0f without ping-pong %s",
              h->name, p.count, p.context, mma, flops / mma * 1e-6, worst, other,
              other > 0 ? flops / other * 1e-6 : 0, apart, without > 0 ? flops / without * 1e-6 : 0,
              e.msg);
    } else {
        check(false, true, "%s: %s", h->name, e.msg);
    }
    free(first);
    drop(&r);
}

static enum primitive variant_of(const struct rig *r, const struct heads *h)
{
    struct run run = {.h = h};
    struct prefill p = what(&run, true);
    return prefill_variant(r->b, &p);
}

/* The Hopper kernel without its consumers taking turns at issuing products: what those are worth.
 */
static cudaKernel_t without_turns(const struct rig *r, cudaLibrary_t *library,
                                  const struct heads *h)
{
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    const char *option[] = {"-DPINGPONG=0"};
    char path[4096], why[WHY_SIZE];
    size_t size;
    cudaKernel_t k = NULL;
    enum primitive variant = variant_of(r, h);
    if (!r->b->primitive[variant])
        return NULL;
    snprintf(path, sizeof path, "%s/kernels/cuda/eager_wgmma.cu", root);
    char *cubin = cuda_build(root, path, rig_arch(r), option, 1, &size, why);
    bool ok = cubin && !cudaLibraryLoadData(library, cubin, NULL, NULL, 0, NULL, NULL, 0) &&
              !cudaLibraryGetKernel(&k, *library,
                                    variant == PRIM_WGMMA_64    ? "eager_wgmma_64"
                                    : variant == PRIM_WGMMA_128 ? "eager_wgmma_128"
                                                                : "eager_wgmma_128_2") &&
              !cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    EAGER_WGMMA_SMEM(h->head_dim));
    check(ok, false, "eager_wgmma.cu without ping-pong: %s", cubin ? "does not load" : why);
    free(cubin);
    return ok ? k : NULL;
}

void test_prefill(void)
{
    struct model *m = model_random(&device_shapes[0].shape, DTYPE_BF16, 3);
    struct rig rig;
    if (rig_open(&rig, &whet_backend_cuda, m, 64, 64, 8))
        for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
            cudaLibrary_t library = NULL;
            cudaKernel_t other = without_turns(&rig, &library, &shape[s]);
            for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
                compare(&rig, &shape[s], prompt[i], rig.b->primitive[variant_of(&rig, &shape[s])],
                        other);
            if (library)
                cudaLibraryUnload(library);
        }
    rig_close(&rig);
    model_close(m);
}
