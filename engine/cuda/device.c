/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - the CUDA backend: opening the device, its eager kernels, what it can do; closing.
 *
 * Eager kernels come out of the module as images for several architectures: the one made for this
 * device is loaded, or one of an earlier minor version, or in the end the text that the driver
 * compiles itself. What the device can do is measured on it, never looked up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/collective_cuda.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/products.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/step.h"
#include "engine/cuda/tensor_map.h"
#include "engine/cuda/walk.h"
#include "engine/device_probe.h"
#include "kernels/images.h"

/* The three kernels of format t in eager_bricks.cu. */
#define BRICK(t, i, kernel)                                                           \
    {                                                                                 \
        .file = "eager_bricks.cu", .name = kernel,                                    \
        .p = PRIM_BRICKS + 3 * (t == DTYPE_F8 ? BRICK_KINDS - 1 : t - DTYPE_Q8_0) + i \
    }
#define BRICKS(t)                                                               \
    BRICK(t, 0, "eager_bricks_" #t "_1"), BRICK(t, 1, "eager_bricks_" #t "_2"), \
        BRICK(t, 2, "eager_expand_" #t)
_Static_assert((int)BRICK_KINDS == 9, "a format that is kept needs its row below");

int cuda_failed(struct err *e, cudaError_t code, const char *what, const char *file, int line)
{
    const char *name = strrchr(file, '/');
    cudaGetLastError(); /* an error that is not sticky must not show up elsewhere */
    return err_set(e, "cuda: %s (%.60s, %s:%d)", cudaGetErrorString(code), what,
                   name ? name + 1 : file, line);
}

/* ---- eager kernels ------------------------------------------------------------------------- */

static const struct {
    const char *file, *name;
    enum primitive p;
} entries[] = {
    {"eager.cu", "eager_copy", PRIM_COPY},
    {"eager.cu", "eager_open", PRIM_OPEN},
    {"eager.cu", "eager_close", PRIM_CLOSE},
    {"eager.cu", "eager_embed", PRIM_EMBED},
    {"eager.cu", "eager_norm", PRIM_NORM},
    {"eager.cu", "eager_round", PRIM_ROUND},
    {"eager.cu", "eager_add", PRIM_ADD},
    {"eager.cu", "eager_silu", PRIM_SILU},
    {"eager.cu", "eager_rope", PRIM_ROPE},
    {"eager.cu", "eager_best", PRIM_BEST},
    {"eager_bricks.cu", "eager_embed_bricks", PRIM_EMBED_BRICKS},
    BRICKS(3),
    BRICKS(4),
    BRICKS(5),
    BRICKS(6),
    BRICKS(7),
    BRICKS(8),
    BRICKS(9),
    BRICKS(10),
    BRICKS(16),
    {"eager_decode.cu", "eager_decode_64_1", PRIM_DECODE_64_1},
    {"eager_decode.cu", "eager_decode_64_2", PRIM_DECODE_64_2},
    {"eager_decode.cu", "eager_decode_64_4", PRIM_DECODE_64_4},
    {"eager_decode.cu", "eager_decode_64_8", PRIM_DECODE_64_8},
    {"eager_decode.cu", "eager_decode_128_1", PRIM_DECODE_128_1},
    {"eager_decode.cu", "eager_decode_128_2", PRIM_DECODE_128_2},
    {"eager_decode.cu", "eager_decode_128_4", PRIM_DECODE_128_4},
    {"eager_decode.cu", "eager_decode_128_8", PRIM_DECODE_128_8},
    {"eager_tools.cu", "eager_read", PRIM_READ},
    {"eager_tools.cu", "eager_compare", PRIM_COMPARE},
    {"eager_tools.cu", "eager_gather", PRIM_GATHER},
    {"eager_tools.cu", "eager_widen", PRIM_WIDEN},
    {"eager_prefill.cu", "eager_prefill_64", PRIM_PREFILL_64},
    {"eager_prefill.cu", "eager_prefill_128", PRIM_PREFILL_128},
    {"eager_sample.cu", "eager_sample", PRIM_SAMPLE},
    {"eager_wgmma.cu", "eager_wgmma_64", PRIM_WGMMA_64},
    {"eager_wgmma.cu", "eager_wgmma_128", PRIM_WGMMA_128},
    {"eager_wgmma.cu", "eager_wgmma_128_2", PRIM_WGMMA_128_2},
};
/* This file has kernels for one architecture only. */
static const char only_90[] = "eager_wgmma.cu";

/* How well an image suits: 0 not at all; exact architecture first, text last, newer before older.
 */
static int suits(const struct cuda_image *i, int arch)
{
    if (i->ptx)
        return i->arch <= arch ? 1 + i->arch : 0;
    if (i->arch == arch)
        return 2000;
    return !i->exact && i->arch / 10 == arch / 10 && i->arch < arch ? 1000 + i->arch : 0;
}

static const struct cuda_image *pick(const char *file, int arch)
{
    const struct cuda_image *best = NULL;
    for (int i = 0; i < cuda_image_count; i++) {
        const struct cuda_image *at = &cuda_images[i];
        if (strcmp(at->file, file) == 0 && suits(at, arch) > (best ? suits(best, arch) : 0))
            best = at;
    }
    return best;
}

int device_image(const struct cudaDeviceProp *d, const char *file, cudaLibrary_t *library,
                 struct err *e)
{
    const struct cuda_image *image = pick(file, d->major * 10 + d->minor);
    if (!image)
        return err_set(e, "cuda: no image of %s for compute capability %d.%d", file, d->major,
                       d->minor);
    if (image->ptx)
        log_info("cuda", "%s: compiled by the driver for compute capability %d.%d", file, d->major,
                 d->minor);
    CU(cudaLibraryLoadData(library, cuda_image_data + image->at, NULL, NULL, 0, NULL, NULL, 0));
    return 0;
}

static int more_shared(struct backend *b, enum primitive p, int bytes, struct err *e)
{
    if (b->primitive[p])
        CU(cudaFuncSetAttribute((const void *)b->primitive[p],
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return 0;
}

/* How many clusters of the kernel of prompts fit: its blocks deal out their work among those that
 * run. */
static int count_clusters(struct backend *b, struct err *e)
{
    cudaLaunchAttribute two = {.id = cudaLaunchAttributeClusterDimension,
                               .val.clusterDim = {2, 1, 1}};
    cudaLaunchConfig_t c = {.gridDim = {2, 1, 1},
                            .blockDim = {EAGER_WGMMA_THREADS, 1, 1},
                            .dynamicSmemBytes = EAGER_WGMMA_SMEM(128),
                            .attrs = &two,
                            .numAttrs = 1};
    int n = 0;
    if (b->primitive[PRIM_WGMMA_128_2])
        CU(cudaOccupancyMaxActiveClusters(&n, (const void *)b->primitive[PRIM_WGMMA_128_2], &c));
    b->prefill_clusters = n;
    return 0;
}

int device_kernels(struct backend *b, struct err *e)
{
    int arch = b->device.major * 10 + b->device.minor;
    const char *file = "";
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (arch != 90 && strcmp(entries[i].file, only_90) == 0)
            continue;
        if (strcmp(file, entries[i].file) != 0) {
            file = entries[i].file;
            if (b->libraries == EAGER_FILES)
                return err_set(e, "cuda: more than %d files of eager kernels", EAGER_FILES);
            if (device_image(&b->device, file, &b->library[b->libraries], e))
                return -1;
            b->libraries++;
        }
        CU(cudaLibraryGetKernel(&b->primitive[entries[i].p], b->library[b->libraries - 1],
                                entries[i].name));
        /* Code comes onto the device when it is asked about, or else at its first launch: then that
         * step would wait. */
        struct cudaFuncAttributes a;
        CU(cudaFuncGetAttributes(&a, (const void *)b->primitive[entries[i].p]));
    }
    return more_shared(b, PRIM_PREFILL_128, 4 * 64 * (128 + 8) * 2, e) ||
           more_shared(b, PRIM_WGMMA_64, EAGER_WGMMA_SMEM(64), e) ||
           more_shared(b, PRIM_WGMMA_128, EAGER_WGMMA_SMEM(128), e) ||
           more_shared(b, PRIM_WGMMA_128_2, EAGER_WGMMA_SMEM(128), e) || count_clusters(b, e);
}

/* ---- what the device can do ---------------------------------------------------------------- */

static int time_ms(struct backend *b, int (*run)(struct backend *, struct err *), int repeats,
                   float *best, struct err *e)
{
    cudaEvent_t from, to;
    CU(cudaEventCreate(&from));
    CU(cudaEventCreate(&to));
    *best = 1e9f;
    for (int i = 0; i < repeats; i++) {
        float ms;
        CU(cudaEventRecord(from, b->stream));
        if (run(b, e))
            return -1;
        CU(cudaEventRecord(to, b->stream));
        CU(cudaEventSynchronize(to));
        CU(cudaEventElapsedTime(&ms, from, to));
        *best = ms < *best ? ms : *best;
    }
    CU(cudaEventDestroy(from));
    CU(cudaEventDestroy(to));
    return 0;
}

static int read_weights(struct backend *b, struct err *e)
{
    struct walk w = {.b = b, .stream = b->stream};
    struct eager_read_args a = {b->weights.base, b->weights.bytes / 16, b->counter};
    return launch(&w, PRIM_READ, (dim3){(unsigned)b->device.multiProcessorCount * 8, 1, 1}, 512, 0,
                  &a, e);
}

enum { PEAK = 4096, BOUNDARIES = 50 };

static int multiply_weights(struct backend *b, struct err *e)
{
    struct product p = {b->weights.base, b->weights.base, NULL, b->work, true, 0, 0, 0};
    int64_t most =
        b->weights.bytes / 2 < b->work_bytes / 2 ? b->weights.bytes / 2 : b->work_bytes / 2;
    p.m = p.n = p.k = PEAK;
    while ((int64_t)p.m * p.m > most)
        p.m = p.n = p.k = p.m / 2;
    return blas_run(b, b->stream, &p, NULL, e);
}

static int small_kernels(struct backend *b, struct err *e)
{
    struct walk w = {.b = b, .stream = b->stream};
    struct eager_read_args a = {b->weights.base, 128, b->counter};
    for (int i = 0; i < BOUNDARIES; i++)
        if (launch(&w, PRIM_READ, (dim3){1, 1, 1}, 128, 0, &a, e))
            return -1;
    return 0;
}

/* "580.159.04" out of what the kernel module says of itself, or the driver's CUDA version. */
static void driver_version(char *to, size_t n)
{
    char line[256] = "";
    int version = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (f && !fgets(line, sizeof line, f))
        line[0] = 0;
    if (f)
        fclose(f);
    for (char *word = strtok(line, " \t\n"); word; word = strtok(NULL, " \t\n"))
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.')) {
            snprintf(to, n, "%s", word);
            return;
        }
    if (cudaDriverGetVersion(&version) == cudaSuccess)
        snprintf(to, n, "for CUDA %d.%d", version / 1000, version % 1000 / 10);
}

/* What kernels are compiled for: architecture-specific instructions from 9.0 on. */
static void describe_device(struct backend *b)
{
    struct machine *m = &b->machine;
    int khz = 0;
    m->kind = MACHINE_CUDA;
    m->sms = b->device.multiProcessorCount;
    m->sm_registers = b->device.regsPerMultiprocessor;
    m->sm_shared = (int32_t)b->device.sharedMemPerMultiprocessor;
    m->block_shared = (int32_t)b->device.sharedMemPerBlockOptin;
    m->l2_bytes = b->device.l2CacheSize;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0) == cudaSuccess)
        m->clock_mhz = khz / 1000;
    snprintf(m->target, sizeof m->target, "sm_%d%d%s", b->device.major, b->device.minor,
             b->device.major >= 9 ? "a" : "");
    driver_version(m->driver, sizeof m->driver);
    size_t n = strlen(m->driver);
    snprintf(m->driver + n, sizeof m->driver - n, ", cuBLASLt %zu", cublasLtGetVersion());
}

static int device_measure(struct backend *b, struct err *e)
{
    float read_ms = 0, multiply_ms = 0, small_ms = 0;
    int64_t side = PEAK, most = b->weights.bytes < b->work_bytes ? b->weights.bytes : b->work_bytes;
    while (2 * side * side > most)
        side /= 2;
    if (time_ms(b, read_weights, 8, &read_ms, e) ||
        time_ms(b, multiply_weights, 8, &multiply_ms, e) ||
        time_ms(b, small_kernels, 8, &small_ms, e))
        return -1;
    CU(cudaMemset(b->counter, 0, 4));
    b->machine.read_bandwidth = (double)b->weights.bytes / (read_ms * 1e-3);
    b->machine.peak_flops = 2.0 * (double)(side * side * side) / (multiply_ms * 1e-3);
    b->machine.boundary_s = small_ms * 1e-3 / BOUNDARIES;
    b->machine.kv_element = b->machine.weight_element = 2;
    describe_device(b);
    snprintf(b->machine.device, sizeof b->machine.device, "%s, compute capability %d.%d",
             b->device.name, b->device.major, b->device.minor);
    return 0;
}

static int measure(struct backend *b, struct err *e)
{
    if (!b->options.beside)
        return device_measure(b, e);
    b->machine = b->options.beside->machine;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

int device_takes(const struct model_shape *s, struct err *e)
{
    if (s->head_dim != 64 && s->head_dim != 128)
        return err_set(e, "cuda: heads of %d; the cuda backend runs 64 and 128", s->head_dim);
    if (s->hidden % 8 || s->ffn % 8 || s->vocab % 4)
        return err_set(e, "cuda: hidden %d, ffn %d, vocab %d: must be multiples of 8, 8 and 4",
                       s->hidden, s->ffn, s->vocab);
    return 0;
}

static int open_events(struct inflight *f, struct err *e)
{
    CU(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming));
    for (int p = 0; p < STEP_PLACES; p++)
        for (int end = 0; end < 2; end++)
            CU(cudaEventCreate(&f->region_event[p][end]));
    return 0;
}

static void close_events(struct inflight *f)
{
    if (f->done)
        cudaEventDestroy(f->done);
    for (int p = 0; p < STEP_PLACES; p++)
        for (int end = 0; end < 2; end++)
            if (f->region_event[p][end])
                cudaEventDestroy(f->region_event[p][end]);
}

int device_open(struct backend *b, struct err *e)
{
    int n = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code || n < 1)
        return err_set(e, "cuda: no usable GPU: %s",
                       code ? cudaGetErrorString(code) : "none is visible");
    CU(cudaSetDevice(0));
    CU(cudaGetDeviceProperties(&b->device, 0));
    if (b->device.major < 8)
        return err_set(e, "cuda: %s has compute capability %d.%d; 8.0 or newer is needed",
                       b->device.name, b->device.major, b->device.minor);
    CU(cudaDriverGetVersion(&driver));
    CU(cudaRuntimeGetVersion(&runtime));
    log_info("cuda", "%s, compute capability %d.%d, driver for CUDA %d.%d, runtime %d.%d",
             b->device.name, b->device.major, b->device.minor, driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10);
    int least = 0, greatest = 0;
    CU(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CU(cudaStreamCreateWithPriority(&b->stream, cudaStreamNonBlocking, greatest));
    CU(cudaStreamCreateWithPriority(&b->loader, cudaStreamNonBlocking, least));
    b->tensor_map = tensor_map_encoder();
    return open_events(&b->inflight[0], e) || open_events(&b->inflight[1], e);
}

static void name_eager(struct backend *b)
{
    for (int r = 0; r < REGION_NODES; r++) {
        struct kernel *k = &b->eager[r];
        *k = (struct kernel){.id = "eager",
                             .region = (enum region)r,
                             .origin = ORIGIN_EAGER,
                             .m_max = INT32_MAX,
                             .leaves16 = r == REGION_ATTN || r == REGION_MLP_IN,
                             .reads16 = r == REGION_ATTN_OUT || r == REGION_MLP_OUT};
        snprintf(k->name, sizeof k->name, "%s eager", region_name((enum region)r));
    }
}

static void cuda_close(struct backend *b)
{
    if (!b)
        return;
    if (b->stream)
        cudaStreamSynchronize(b->stream);
    graph_close(b);
    reduce_close(b);
    loaded_reap(b, true);
    hook_close(b);
    blas_close(b);
    memory_close(b);
    for (int i = 0; i < b->libraries; i++)
        cudaLibraryUnload(b->library[i]);
    close_events(&b->inflight[0]);
    close_events(&b->inflight[1]);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    if (b->loader)
        cudaStreamDestroy(b->loader);
    plan_free(b->plan);
    pthread_mutex_destroy(&b->load_lock);
    free(b);
}

static struct backend *cuda_open(const struct model *m, const struct backend_options *o,
                                 struct err *e)
{
    if (o->kv_pages < 1 || o->max_tokens < 1 || o->max_rows < 1) {
        err_set(e, "cuda: %d KV pages, %d tokens and %d rows a step: each must be positive",
                o->kv_pages, o->max_tokens, o->max_rows);
        return NULL;
    }
    struct backend *b = xcalloc(1, sizeof *b);
    b->model = m;
    b->options = *o;
    b->plan = plan_build_ranks(&m->shape, o->collective ? o->collective->world : 1);
    pthread_mutex_init(&b->load_lock, NULL);
    name_eager(b);
    if (device_takes(&m->shape, e) || device_open(b, e) || device_kernels(b, e) ||
        memory_open(b, e) || weights_upload(b, e) || bricks_copies(b, e) || blas_open(b, e) ||
        measure(b, e) || ranks_prepare(b, e) || hook_open(b, e) || graph_open(b, e)) {
        cuda_close(b);
        return NULL;
    }
    log_info("cuda", "%s: reads %.0f GB/s, %.0f TFLOPS in bf16, %.2f us a kernel",
             b->machine.device, b->machine.read_bandwidth * 1e-9, b->machine.peak_flops * 1e-12,
             b->machine.boundary_s * 1e6);
    return b;
}

static const struct machine *cuda_machine(struct backend *b)
{
    return &b->machine;
}

static const struct kernel *cuda_eager(struct backend *b, enum region r)
{
    return r != REGION_REDUCE || reduce_area(b, REDUCE_STEPS) ? &b->eager[r] : NULL;
}

static void cuda_idle(struct backend *b)
{
    loaded_reap(b, false);
}

static void cuda_set_dispatch(struct backend *b, struct dispatch *d)
{
    b->dispatch = d;
    b->formats = dispatch_formats(d);
}

/* brick_wide.cu can, which is for one compute capability. */
static bool cuda_e4m3(void)
{
    int major = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (code)
        cudaGetLastError();
    return !code && major == 9;
}

__attribute__((visibility("default"))) extern const struct backend_ops whet_backend_cuda;

/* A prompt alone goes in chunks that fill the device: 2048 tokens reach 65 to 71 % of its peak, 512
 * reach 51 to 62 %. Beside decodes a chunk is as long as their next token may be late. */
const struct backend_ops whet_backend_cuda = {
    .name = "cuda",
    .usual_chunk = 2048,
    .usual_batch = 256,
    .usual_itl_ms = 30,
    .usual_ttft_ms = 200,
    .short_steps = true,
    .open = cuda_open,
    .close = cuda_close,
    .machine = cuda_machine,
    .eager = cuda_eager,
    .set_dispatch = cuda_set_dispatch,
    .step = cuda_step,
    .step_start = cuda_step_start,
    .step_wait = cuda_step_wait,
    .load = cuda_load,
    .choose = cuda_choose,
    .unload = cuda_unload,
    .hook = cuda_hook,
    .bench_begin = cuda_bench_begin,
    .bench = cuda_bench,
    .bench_end = cuda_bench_end,
    .copies_weights = true,
    .kv_room = memory_kv_room,
    .e4m3 = cuda_e4m3,
    .fixed_bytes = memory_fixed,
    .idle = cuda_idle,
    .ready = cuda_ready,
    .check_model = cuda_check_model,
    .trial = cuda_trial,
    .time_reduce = cuda_time_reduce,
    .probe = &cuda_probe,
    .ranks = &cuda_ranks,
};
