/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c - the CPU behind engine/backend.h: memory, opening and closing.
 *
 * Everything a step needs is allocated here, once. KV pages are one mapping that the kernel fills
 * in as pages are touched, so a generous engine.kv_mib costs nothing until it is used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/cgroup.h"
#include "config/cores.h"
#include "config/err.h"
#include "config/log.h"
#include "engine/cpu/backend_private.h"
#include "engine/cpu/blas.h"
#include "engine/cpu/collective_shm.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/machine.h"
#include "engine/memory.h"
#include "engine/numa.h"

char *backend_pages(const struct backend *b, int32_t layer, int v)
{
    int64_t pages = b->kv.bytes / (2 * b->model->shape.layers);
    return b->kv.at + (2 * (int64_t)layer + v) * pages;
}

static int page_memory_open(struct page_memory *p, int64_t bytes, bool shared)
{
    int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    *p = (struct page_memory){.bytes = bytes, .fd = -1};
    if (shared) {
        p->fd = memfd_create("whet-kv", MFD_CLOEXEC);
        if (p->fd < 0 || ftruncate(p->fd, (off_t)bytes) != 0)
            return -1;
    }
    p->at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, p->fd, 0);
    if (p->at == MAP_FAILED)
        p->at = NULL;
    if (p->at)
        numa_spread(p->at, (size_t)bytes);
    return p->at ? 0 : -1;
}

/* Keys and values in huge pages, a wish: long contexts are read as fast as memory allows then
 * (docs/lab/2026-11-30-cpu-long-contexts.md). What executors see is shared and stays in small
 * ones, but where the system gives huge pages to such memory, too. */
static void page_memory_huge(const struct page_memory *p)
{
    madvise(p->at, (size_t)p->bytes, MADV_HUGEPAGE);
}

static void page_memory_close(struct page_memory *p)
{
    if (p->at)
        munmap(p->at, (size_t)p->bytes);
    if (p->fd >= 0)
        close(p->fd);
}

/* Benches have as much as a bench copies at most, and one copy of all pages of a layer. */
static int open_kv(struct backend *b, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    int64_t layer = (int64_t)2 * b->options.kv_pages * KV_PAGE * s->kv_heads * s->head_dim *
                    kv_element_bytes(s);
    if (page_memory_open(&b->kv, s->layers * layer, b->options.texts) != 0 ||
        (b->options.texts && page_memory_open(&b->bench, BENCH_COPIES_BYTES + layer, true) != 0))
        return err_set(e, "no memory for %d KV pages (%lld MiB)", b->options.kv_pages,
                       (long long)(s->layers * layer >> 20));
    if (b->options.huge_pages)
        page_memory_huge(&b->kv);
    return 0;
}

static float *floats(int64_t rows, int64_t cols)
{
    return xaligned((size_t)(rows * cols) * sizeof(float));
}

static void open_buffers(struct backend *b)
{
    const struct model_shape *s = &b->model->shape;
    int64_t m = b->options.max_tokens, width = (int64_t)s->heads * s->head_dim;
    int64_t most = (int64_t)b->options.kv_pages * KV_PAGE;
    b->positions = s->max_context < most ? s->max_context : (int32_t)most;
    b->rope_cos = floats(b->positions, s->head_dim / 2);
    b->rope_sin = floats(b->positions, s->head_dim / 2);
    rope_tables(s, b->positions, b->rope_cos, b->rope_sin);
    b->x[0] = floats(m, s->hidden);
    b->x[1] = floats(m, s->hidden);
    b->q = floats(m, width);
    b->a = floats(m, width);
    b->h = floats(m, s->ffn);
    b->logits = floats(b->options.max_rows, s->vocab);
    b->sampling = xaligned((size_t)(sampler_scratch_bytes(s->vocab) * pool_size(b->pool)));
}

static bool alone(const struct backend *b)
{
    return !b->options.collective;
}

static void open_ranks(struct backend *b)
{
    int64_t rows = b->options.max_rows, own = b->model->head.rows;
    if (alone(b))
        return;
    b->own_logits = floats(rows, own);
    b->gathered = floats(b->options.collective->world * rows, own);
    b->zeros = floats(b->options.max_tokens, b->model->shape.hidden);
    b->partial = floats(b->options.max_tokens, b->model->shape.hidden);
}

static void name_eager(struct backend *b)
{
    for (int r = 0; r < REGION_NODES; r++) {
        const struct cpu_kernel *cpu = NULL;
        if (r < REGION_LOCAL)
            cpu = eager_cpu_of((enum region)r, b->model->shape.kv_bf16);
        b->eager[r] = (struct kernel){.id = "eager",
                                      .region = (enum region)r,
                                      .origin = ORIGIN_EAGER,
                                      .m_max = cpu ? cpu->m_max : INT32_MAX,
                                      .cpu = cpu};
        snprintf(b->eager[r].name, sizeof b->eager[r].name, "%s eager",
                 region_name((enum region)r));
    }
}

static void cpu_close(struct backend *b)
{
    if (!b)
        return;
    backend_hook(b, NULL);
    if (!b->options.beside)
        pool_close(b->pool);
    plan_free(b->plan);
    page_memory_close(&b->kv);
    page_memory_close(&b->bench);
    void *owned[] = {b->rope_cos,
                     b->rope_sin,
                     b->x[0],
                     b->x[1],
                     b->q,
                     b->a,
                     b->h,
                     b->logits,
                     b->sampling,
                     b->own_logits,
                     b->gathered,
                     b->zeros,
                     b->partial,
                     b->spare.output[0],
                     b->spare.output[1],
                     b->spare.output[2],
                     b->spare.kv_at};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(b);
}

/* A walk through weights in pages of 4 KiB misses the TLB at each; see filemap.c. */
static void settle_weights(const struct model *m, const struct backend_options *o)
{
    int64_t moved = o->huge_pages ? model_copy_weights(m, memory_available() / 4) : 0;
    if (moved > 0)
        log_info("cpu", "weights copied into huge pages: %.0f MiB", (double)moved / 1048576);
}

static void say_products(const struct machine *m)
{
    const struct blas *blas = openblas_open();
    char warning[256];
    log_info("cpu", "products: core %s, %.0f GFLOPS, %.0f %% of the peak (%s)", blas->core,
             m->product_flops * 1e-9, 100 * m->product_flops / m->peak_flops, blas->config);
    machine_products_warning(m, blas, warning, sizeof warning);
    if (warning[0])
        log_warn("cpu", "%s", warning);
}

static void say_threads(const struct backend *b)
{
    struct cgroup_limit quota;
    if (b->options.threads <= 0 && cores_usable() > CORES_THREADS_MOST)
        log_info("cpu", "threads: %d, which is the most, on %d CPUs", pool_size(b->pool),
                 cores_usable());
    else if (b->options.threads <= 0 && cores_usable() < cores_allowed() && cgroup_cpu("", &quota))
        log_info("cpu", "threads: %d, for %.2f CPUs of %s", pool_size(b->pool),
                 (double)quota.limit * 1e-3, quota.file);
}

static void say_memory(void)
{
    char words[NUMA_TEXT];
    numa_words(words);
    if (words[0])
        log_info("cpu", "memory: %s", words);
}

static struct backend *cpu_open(const struct model *m, const struct backend_options *o,
                                struct err *e)
{
    if (o->kv_pages < 1 || o->max_tokens < 1 || o->max_rows < 1) {
        err_set(e, "cpu backend: %d KV pages, %d tokens and %d rows a step: each must be positive",
                o->kv_pages, o->max_tokens, o->max_rows);
        return NULL;
    }
    struct backend *b = xcalloc(1, sizeof *b);
    b->model = m;
    b->options = *o;
    b->kv.fd = b->bench.fd = -1;
    b->plan = alone(b) ? plan_build(&m->shape) : plan_build_ranks(&m->shape, o->collective->world);
    b->pool = o->beside ? o->beside->pool : pool_open(cores_or(o->threads), 0);
    if (open_kv(b, e)) {
        cpu_close(b);
        return NULL;
    }
    if (!o->beside) {
        say_threads(b);
        say_memory();
    }
    open_buffers(b);
    open_ranks(b);
    settle_weights(m, o);
    name_eager(b);
    if (o->beside) {
        b->machine = o->beside->machine;
        b->machine.kv_element = m->shape.kv_bf16 ? 2 : 0;
        return b;
    }
    machine_measure(m, b->pool, &b->machine);
    b->machine.kv_element = m->shape.kv_bf16 ? 2 : 0;
    log_info("cpu", "%s: reads %.1f GB/s, %.0f GFLOPS, %.1f us between regions", b->machine.device,
             b->machine.read_bandwidth * 1e-9, b->machine.peak_flops * 1e-9,
             b->machine.boundary_s * 1e6);
    say_products(&b->machine);
    return b;
}

/* Where each core has one rank. With fewer ranks than cores any two programs could choose the same
 * ones, and the scheduler knows better. */
static void cpu_settle(struct backend *b)
{
    b->machine.pinned =
        b->options.pin_threads && pool_size(b->pool) > 1 && pool_size(b->pool) == cores_allowed();
    if (b->machine.pinned)
        pool_pin(b->pool);
}

static const struct machine *cpu_machine(struct backend *b)
{
    return &b->machine;
}

static const struct kernel *cpu_eager(struct backend *b, enum region r)
{
    return &b->eager[r];
}

static void cpu_set_dispatch(struct backend *b, struct dispatch *d)
{
    b->dispatch = d;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .usual_chunk = 512,
    .usual_batch = 64,
    .usual_itl_ms = 250,
    .usual_ttft_ms = 1000,
    .same_bits_tokens = EAGER_NARROW,
    .open = cpu_open,
    .close = cpu_close,
    .machine = cpu_machine,
    .eager = cpu_eager,
    .fused = cpu_eager,
    .settle = cpu_settle,
    .set_dispatch = cpu_set_dispatch,
    .step = backend_step,
    .load = backend_load,
    .unload = backend_unload,
    .broken = backend_check_broken,
    .hook = backend_hook,
    .trial = backend_trial,
    .time_reduce = backend_time_reduce,
    .bench_begin = backend_bench_begin,
    .bench = backend_bench,
    .bench_end = backend_bench_end,
    .ranks = &collective_shm_ranks,
};
