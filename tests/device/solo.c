/* SPDX-License-Identifier: Apache-2.0 */
/* solo.c - kernels: loading, launching, and what they left behind. Questions: solo_question.c. */
#include "tests/device/solo_args.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/quant.h"

static bool no(char *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool no(char *why, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, WHY_SIZE, fmt, args);
    va_end(args);
    return false;
}

#define TRY(call)                                                           \
    do {                                                                    \
        cudaError_t code_ = (call);                                         \
        if (code_ != cudaSuccess)                                           \
            return no(why, "%s (%.60s)", cudaGetErrorString(code_), #call); \
    } while (0)

/* ---- loading ------------------------------------------------------------------------------- */

static bool load_entries(struct solo_kernel *k, char *why)
{
    for (int i = 0; i < k->info.launches && i < CUDA_LAUNCHES; i++) {
        char name[64] = "whet_kernel";
        const struct cuda_launch *l = &k->info.launch[i];
        struct cudaFuncAttributes a;
        if (i > 0)
            snprintf(name, sizeof name, "whet_kernel_%d", i);
        TRY(cudaLibraryGetKernel(&k->entry[i], k->library, name));
        TRY(cudaFuncGetAttributes(&a, (const void *)k->entry[i]));
        if (l->threads > a.maxThreadsPerBlock)
            return no(why, "%d threads, but %d registers a thread", l->threads, a.numRegs);
        if (a.localSizeBytes > 0)
            return no(why, "spills %zu bytes", a.localSizeBytes);
        if (l->smem > 0)
            TRY(cudaFuncSetAttribute((const void *)k->entry[i],
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, l->smem));
    }
    return true;
}

bool solo_load(struct solo_kernel *k, const void *cubin, enum region r, char *why)
{
    void *at;
    size_t bytes;
    memset(k, 0, sizeof *k);
    TRY(cudaLibraryLoadData(&k->library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    TRY(cudaLibraryGetGlobal(&at, &bytes, k->library, "whet_info"));
    if (bytes != sizeof k->info)
        return no(why, "whet_info has %zu bytes", bytes);
    TRY(cudaMemcpy(&k->info, at, bytes, cudaMemcpyDeviceToHost));
    if (k->info.abi != WHET_CUDA_ABI || k->info.region != (int32_t)r)
        return no(why, "computes region %d by interface %d", k->info.region, k->info.abi);
    if (k->info.packed_bytes > 0)
        TRY(cudaLibraryGetKernel(&k->pack, k->library, "whet_pack"));
    return load_entries(k, why);
}

void solo_unload(struct solo_kernel *k)
{
    if (k->library)
        cudaLibraryUnload(k->library);
}

/* ---- launching ----------------------------------------------------------------------------- */

static bool launch(const struct solo_kernel *k, union any_args *a, char *why)
{
    for (int i = 0; i < k->info.launches; i++) {
        const struct cuda_launch *l = &k->info.launch[i];
        cudaLaunchAttribute attribute[2] = {0};
        cudaLaunchConfig_t c = {
            .gridDim = {(unsigned)l->grid[0], (unsigned)l->grid[1], (unsigned)l->grid[2]},
            .blockDim = {(unsigned)l->threads, 1, 1},
            .dynamicSmemBytes = (size_t)l->smem,
            .attrs = attribute};
        void *parameter[] = {a};
        if (l->pdl) {
            attribute[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attribute[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (l->cluster > 1) {
            attribute[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
            attribute[c.numAttrs].val.clusterDim.x = (unsigned)l->cluster;
            attribute[c.numAttrs].val.clusterDim.y = 1;
            attribute[c.numAttrs++].val.clusterDim.z = 1;
        }
        TRY(cudaLaunchKernelExC(&c, (const void *)k->entry[i], parameter));
    }
    return true;
}

/* ---- a slow previous kernel ---------------------------------------------------------------- */

static struct {
    cudaLibrary_t library;
    cudaKernel_t kernel;
} late;

struct late_args {
    void *to[4];
    const void *from[4];
    long long words[4], ns;
};

bool solo_late_open(const char *root, const char *arch, char *why)
{
    char path[4200];
    size_t size;
    snprintf(path, sizeof path, "%s/tests/device/late.cu", root);
    char *cubin = cuda_build(root, path, arch, NULL, 0, &size, why);
    if (!cubin)
        return false;
    cudaError_t code = cudaLibraryLoadData(&late.library, cubin, NULL, NULL, 0, NULL, NULL, 0);
    free(cubin);
    TRY(code);
    TRY(cudaLibraryGetKernel(&late.kernel, late.library, "late"));
    return true;
}

/* The newest position of every sequence, which the step itself wrote, is not there yet. */
static void unwrite_newest(const struct question *q, unsigned char *pages)
{
    const struct model_shape *s = &q->model->shape;
    const struct span *span = q->at[AT_SPAN].master;
    const int32_t *table = q->at[AT_TABLE].master;
    size_t row = (size_t)s->head_dim * 2;
    for (int32_t i = 0; i < q->m; i++) {
        int32_t p = span[i].context - 1;
        size_t page = (size_t)table[span[i].pages_at + p / KV_PAGE];
        for (int32_t h = 0; h < s->kv_heads; h++)
            memset(pages + ((page * (size_t)s->kv_heads + (size_t)h) * KV_PAGE +
                            (size_t)(p % KV_PAGE)) *
                               row,
                   0xff, row);
    }
}

/* Poisons the activations and launches the kernel that brings them after a while. `true_copy`
 * becomes device memory with what is right. */
static bool launch_late(const struct question *q, const struct own *own, void *true_copy[4],
                        char *why)
{
    static const enum operand which[4] = {AT_X, AT_IN, AT_K, AT_V};
    struct late_args a = {.ns = 300000};
    cudaLaunchConfig_t c = {.gridDim = {1, 1, 1}, .blockDim = {1024, 1, 1}};
    void *parameter[] = {&a};
    for (int i = 0; i < 4; i++) {
        const struct device_copy *d = &q->at[which[i]];
        if (!d->master || d->bytes == 0)
            continue;
        TRY(cudaMalloc(&true_copy[i], d->bytes));
        TRY(cudaMemcpy(true_copy[i], d->master, d->bytes, cudaMemcpyHostToDevice));
        a.to[i] = d->data;
        a.from[i] = true_copy[i];
        a.words[i] = (long long)d->bytes / 4;
        unsigned char *poison = xmalloc(d->bytes);
        if (i < 2)
            memset(poison, 0xff, d->bytes);
        else
            unwrite_newest(q, memcpy(poison, d->master, d->bytes));
        cudaError_t code = cudaMemcpy(d->data, poison, d->bytes, cudaMemcpyHostToDevice);
        free(poison);
        TRY(code);
    }
    if (own->in_bytes > 0) { /* a projection has no pages: there is a place for its bf16 rows */
        TRY(cudaMalloc(&true_copy[2], own->in_bytes));
        TRY(cudaMemcpy(true_copy[2], own->rounded, own->in_bytes, cudaMemcpyHostToDevice));
        a.to[2] = (void *)(uintptr_t)own->wide.in16;
        a.from[2] = true_copy[2];
        a.words[2] = (long long)own->in_bytes / 4;
        TRY(cudaMemset(a.to[2], 0xff, own->in_bytes));
    }
    TRY(cudaDeviceSynchronize());
    TRY(cudaLaunchKernelExC(&c, (const void *)late.kernel, parameter));
    return true;
}

/* ---- what is left behind ------------------------------------------------------------------- */

enum { POISON = 0xff, GUARD = 0xa5 };

static bool poison_outputs(const struct question *q, char *why)
{
    for (int i = AT_OUT_0; i < OPERANDS; i++) {
        const struct device_copy *d = &q->at[i];
        if (!d->data)
            continue;
        TRY(cudaMemset((char *)d->data - q->guard, GUARD, d->bytes + 2 * q->guard));
        TRY(cudaMemset(d->data, POISON, d->bytes));
    }
    return true;
}

static bool all_bytes(const unsigned char *p, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            return false;
    return true;
}

static bool guards_hold(const struct question *q, char *why)
{
    unsigned char *page = xmalloc(2 * q->guard + 1);
    bool before = true, after = true;
    for (int i = AT_OUT_0; i < OPERANDS && q->guard; i++) {
        const char *d = q->at[i].data;
        if (!d)
            continue;
        cudaMemcpy(page, d - q->guard, q->guard, cudaMemcpyDeviceToHost);
        cudaMemcpy(page + q->guard, d + q->at[i].bytes, q->guard, cudaMemcpyDeviceToHost);
        before &= all_bytes(page, q->guard, GUARD);
        after &= all_bytes(page + q->guard, q->guard, GUARD);
    }
    free(page);
    return before && after ? true : no(why, "wrote %s its output", before ? "after" : "before");
}

static bool inputs_hold(const struct question *q, char *why)
{
    static const char *const name[] = {"x", "in", "a key page", "a value page", "a weight"};
    for (int i = AT_X; i <= AT_W; i++) {
        const struct device_copy *d = &q->at[i];
        if (!d->master)
            continue;
        void *now = xmalloc(d->bytes + 1);
        cudaError_t code = cudaMemcpy(now, d->data, d->bytes, cudaMemcpyDeviceToHost);
        bool same = !code && memcmp(now, d->master, d->bytes) == 0;
        free(now);
        TRY(code);
        if (!same)
            return no(why, "changed its input: %s", name[i]);
    }
    return true;
}

static bool judge_rows(const char *name, const double *want, const float *got, int32_t rows,
                       int32_t cols, double bound, double *worst, char *why)
{
    for (int32_t r = 0; r < rows; r++) {
        double error = 0, square = 0, most = 0;
        for (int32_t i = 0; i < cols; i++) {
            double w = want[(int64_t)r * cols + i], g = (double)got[(int64_t)r * cols + i];
            if (!isfinite(g))
                return no(why, "%s: row %d of %d, value %d: not written or not finite", name, r,
                          rows, i);
            error += (g - w) * (g - w);
            square += w * w;
            most = fmax(most, fabs(g - w));
        }
        double rms = square > 0 ? sqrt(error / square) : most;
        *worst = fmax(*worst, rms);
        if (rms > bound)
            return no(why, "%s: row %d of %d: relative RMS error %.2e, at most %.1e", name, r, rows,
                      rms, bound);
    }
    return true;
}

/* k or v: the step's positions hold what they should, and nothing else was written. */
static bool judge_pages(const struct question *q, int output, double bound, double *worst,
                        char *why)
{
    const struct model_shape *s = &q->model->shape;
    const struct device_copy *d = &q->at[output == 1 ? AT_OUT_K : AT_OUT_V];
    const char *name = output == 1 ? "k" : "v";
    size_t hd = (size_t)s->head_dim, heads = (size_t)s->kv_heads;
    uint16_t *page = xmalloc(d->bytes);
    float *rows = xmalloc((size_t)q->m * heads * hd * sizeof *rows);
    bool ok = cudaMemcpy(page, d->data, d->bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
    for (size_t i = 0; i < (size_t)q->m; i++)
        for (size_t h = 0; h < heads; h++) {
            size_t at = (size_t)q->kv_at[i];
            uint16_t *from = page + ((at / KV_PAGE * heads + h) * KV_PAGE + at % KV_PAGE) * hd;
            for (size_t j = 0; j < hd; j++)
                rows[(i * heads + h) * hd + j] = bf16_to_f32(from[j]);
            memset(from, POISON, hd * 2);
        }
    ok = ok && judge_rows(name, q->want.output[output].value, rows, q->m, (int32_t)(heads * hd),
                          fmax(bound, 4e-3), worst, why);
    if (ok && !all_bytes((unsigned char *)page, d->bytes, POISON))
        ok = no(why, "wrote %s of a position that is not the step's", name);
    free(page);
    free(rows);
    return ok;
}

/* The token with the highest logit, the first of equals. */
static bool judge_best(const struct question *q, const float *logits, char *why)
{
    int32_t best[64], vocab = q->model->shape.vocab;
    TRY(cudaMemcpy(best, q->at[AT_BEST].data, (size_t)q->m * 4, cudaMemcpyDeviceToHost));
    for (int32_t i = 0; i < q->m; i++) {
        const float *l = logits + (int64_t)i * vocab;
        int32_t top = 0;
        for (int32_t v = 1; v < vocab; v++)
            top = l[v] > l[top] ? v : top;
        if (best[i] != top)
            return no(why, "row %d: best token %d, its logits say %d", i, best[i], top);
    }
    return true;
}

static bool judge(const struct question *q, double bound, double *worst, char *why)
{
    int32_t cols = q->want.output[0].cols;
    size_t bytes;
    float *got = solo_bits(q, &bytes);
    bool ok = judge_rows("output", q->want.output[0].value, got, q->m, cols, bound, worst, why) &&
              (q->region != REGION_HEAD || judge_best(q, got, why));
    free(got);
    for (int o = 1; ok && o < q->want.outputs; o++)
        ok = judge_pages(q, o, bound, worst, why);
    return ok && guards_hold(q, why) && inputs_hold(q, why);
}

void *solo_bits(const struct question *q, size_t *bytes)
{
    *bytes = (size_t)q->m * (size_t)q->want.output[0].cols * sizeof(float);
    void *p = xmalloc(*bytes);
    if (cudaMemcpy(p, q->at[AT_OUT_0].data, *bytes, cudaMemcpyDeviceToHost))
        memset(p, POISON, *bytes);
    return p;
}

/* ---- asking -------------------------------------------------------------------------------- */

static bool own_open(const struct solo_kernel *k, const struct question *q, struct own *own,
                     char *why)
{
    const struct cuda_kernel_info *i = &k->info;
    size_t counters = (size_t)i->counters * sizeof *own->work.counter;
    if (i->packed_bytes > 0) {
        const struct model_shape *s = &q->model->shape;
        int32_t out = s->hidden, in = s->hidden, width = s->heads * s->head_dim;
        if (q->region == REGION_ATTN_OUT || q->region == REGION_MLP_OUT)
            in = q->region == REGION_ATTN_OUT ? width : s->ffn;
        else
            out = (int32_t)(q->at[AT_W].bytes / 2 / (size_t)in);
        TRY(cudaMalloc(&own->packed, (size_t)i->packed_bytes));
        struct cuda_pack_args a = {q->at[AT_W].data, own->packed, out, in};
        void *parameter[] = {&a};
        TRY(cudaLaunchKernel((const void *)k->pack, (dim3){64, 1, 1}, (dim3){256, 1, 1}, parameter,
                             0, NULL));
    }
    if (i->work_bytes > 0)
        TRY(cudaMalloc(&own->work.work, (size_t)i->work_bytes));
    if (i->work_bytes > 0 && q->guard) /* a sanitizer wants to see that nobody wrote it */
        TRY(cudaMemset(own->work.work, POISON, (size_t)i->work_bytes));
    if (counters > 0) {
        TRY(cudaMalloc((void **)&own->work.counter, counters));
        TRY(cudaMemset(own->work.counter, 0, counters));
    }
    TRY(cudaDeviceSynchronize());
    if (i->leaves16 && !solo_half_open(q, own, why))
        return false;
    return i->box_rows == 0 || solo_wide_open(i, q, own, why);
}

static bool counters_are_zero(const struct solo_kernel *k, const struct own *own, char *why)
{
    size_t n = (size_t)k->info.counters * sizeof *own->work.counter;
    if (n == 0)
        return true;
    unsigned char *now = xmalloc(n);
    bool zero =
        !cudaMemcpy(now, own->work.counter, n, cudaMemcpyDeviceToHost) && all_bytes(now, n, 0);
    free(now);
    return zero ? true : no(why, "left a counter that is not zero");
}

bool solo_ask(const struct solo_kernel *k, const struct question *q, double bound, int how,
              double *worst, char *why)
{
    struct own own = {0};
    union any_args a;
    void *true_copy[4] = {0};
    *worst = 0;
    bool ok = own_open(k, q, &own, why) && poison_outputs(q, why);
    solo_args(q, &own, &a);
    ok = ok && (!(how & SOLO_LATE) || launch_late(q, &own, true_copy, why)) && launch(k, &a, why);
    cudaError_t code = cudaDeviceSynchronize();
    if (ok && code)
        ok = no(why, "%s", cudaGetErrorString(code));
    ok = ok && (own.out_bytes == 0 || solo_wide_take(q, &own, why));
    ok = ok && (!own.half || solo_half_agrees(q, &own, why));
    ok = ok && judge(q, bound, worst, why) && counters_are_zero(k, &own, why);
    for (int i = 0; i < 4; i++)
        cudaFree(true_copy[i]);
    cudaFree(own.packed);
    cudaFree(own.work.work);
    cudaFree(own.work.counter);
    solo_wide_close(&own);
    return ok;
}
