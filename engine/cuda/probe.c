/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c - the process that probes kernels on a device, and the probe of one of them.
 *
 * A session is a context with the kernels of eager, oracle and producer, and one piece of memory.
 * A probe takes that memory as if it were new: all of it gets one value, weights are sent again,
 * what the probe uses lies between bands of that value, and when its last case is done whatever was
 * nobody's must still have it. Nothing that a kernel left there can reach the next one. What a
 * kernel could still have spoilt is code: so each probe begins by showing that memory which differs
 * is counted, word for word, and check_device.c holds eager against the oracle. A process whose
 * kernel was refused for more than its numbers is not used again (specializer/admission/prober.c).
 *
 * Work on the device is done in slices (engine/device_probe.h). Outside of them there are only
 * large copies, which go past the server's steps.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/products.h"
#include "engine/cuda/walk.h"

enum { PINNED = 96 << 20 };

/* ---- slices and tools ------------------------------------------------------------------------ */

void slice_begin(const struct device_probe *p)
{
    const struct device_slices *t = &p->session->slices;
    if (t->begin)
        t->begin(t->ctx);
}

bool slice_over(const struct device_probe *p)
{
    const struct device_slices *t = &p->session->slices;
    return t->over && t->over(t->ctx);
}

void slice_end(const struct device_probe *p)
{
    const struct device_slices *t = &p->session->slices;
    if (t->end)
        t->end(t->ctx);
}

int64_t page_bytes(const struct device_probe *p)
{
    const struct model_shape *s = &p->b->model->shape;
    return 2L * KV_PAGE * s->kv_heads * s->head_dim;
}

unsigned *probe_delay(const struct device_probe *p)
{
    return (unsigned *)(void *)p->small.data;
}

unsigned long long *probe_tally(const struct device_probe *p, int i)
{
    return (unsigned long long *)(void *)(p->small.data + 256) + i;
}

int tool_launch(const struct device_probe *p, enum tool t, dim3 grid, int threads, const void *args,
                bool early, struct err *e)
{
    cudaLaunchAttribute edge = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t c = {.gridDim = grid,
                            .blockDim = {(unsigned)threads, 1, 1},
                            .stream = p->b->stream,
                            .attrs = &edge,
                            .numAttrs = early && p->b->device.major >= 9};
    void *parameter[] = {(void *)args};
    CU(cudaLaunchKernelExC(&c, (const void *)p->session->tool[t], parameter));
    return 0;
}

void differ(struct device_probe *p, enum tally t, const void *a, const void *b, int64_t bytes,
            unsigned value)
{
    if (!a || bytes < 4)
        return;
    if (p->job_n < PROBE_JOBS)
        p->jobs.job[p->job_n] = (struct probe_differ_job){a, b, bytes / 4, value, (int32_t)t};
    p->job_n++; /* differ_launch() refuses more than there is room for */
}

int differ_launch(struct device_probe *p, struct err *e)
{
    dim3 grid = {64, (unsigned)p->job_n, 1};
    p->jobs.count = probe_tally(p, 0);
    p->job_n = 0;
    if (grid.y > PROBE_JOBS) {
        err_set(e, "the probe compares %u buffers at once, and has room for %d", grid.y,
                PROBE_JOBS);
        return -1;
    }
    return grid.y ? tool_launch(p, TOOL_DIFFER, grid, 256, &p->jobs, false, e) : 0;
}

/* ---- the session ---------------------------------------------------------------------------- */

static int open_tools(struct device_session *s, struct err *e)
{
    static const struct {
        enum tool tool;
        int library;
        const char *name;
    } all[TOOLS] = {
        {TOOL_POISON, 0, "probe_poison"},   {TOOL_FILL, 0, "probe_fill"},
        {TOOL_BRICKS, 0, "probe_bricks"},   {TOOL_PAGES, 0, "probe_pages"},
        {TOOL_PRODUCE, 0, "probe_produce"}, {TOOL_DIFFER, 0, "probe_differ"},
        {TOOL_SUM, 0, "probe_sum"},         {TOOL_HALVES, 0, "probe_halves"},
        {TOOL_ROWS, 1, "oracle_rows"},      {TOOL_PRODUCT, 1, "oracle_product"},
        {TOOL_HEADS, 1, "oracle_heads"},    {TOOL_FINISH, 1, "oracle_finish"},
        {TOOL_ATTN, 1, "oracle_attn"},
    };
    if (device_image(&s->base.device, "probe.cu", &s->library[0], e) ||
        device_image(&s->base.device, "oracle.cu", &s->library[1], e))
        return -1;
    for (int i = 0; i < TOOLS; i++) {
        struct cudaFuncAttributes a; /* asking brings the code onto the device */
        CU(cudaLibraryGetKernel(&s->tool[all[i].tool], s->library[all[i].library], all[i].name));
        CU(cudaFuncGetAttributes(&a, (const void *)s->tool[all[i].tool]));
    }
    return 0;
}

static int open_session(struct device_session *s, struct err *e)
{
    if (device_open(&s->base, e) || device_kernels(&s->base, e) || open_tools(s, e))
        return -1;
    s->pinned.bytes = PINNED;
    CU(cudaHostAlloc((void **)&s->pinned.base, PINNED, cudaHostAllocMapped));
    CU(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    return 0;
}

static struct device_session *session_start(const struct device_slices *slices, struct err *e)
{
    struct device_session *s = xcalloc(1, sizeof *s);
    log_set_level(LOG_WARN);
    s->slices = *slices;
    if (open_session(s, e) == 0)
        return s;
    free(s); /* the process ends with the context */
    return NULL;
}

/* Memory for every region of the model, or where there is less for this one; once. */
static int session_memory(struct device_session *s, const struct device_probe_options *o,
                          struct err *e)
{
    int64_t want[] = {memory_probe_arena(o->whole ? o->whole : &o->model->shape),
                      memory_probe_arena(&o->model->shape)};
    for (int i = 0; i < 2 && s->memory.bytes < want[1]; i++) {
        if (s->memory.base)
            CU(cudaFree(s->memory.base));
        s->memory = (struct arena){0};
        if (cudaMalloc((void **)&s->memory.base, (size_t)want[i]) == cudaSuccess)
            s->memory.bytes = want[i];
        else
            cudaGetLastError();
    }
    if (s->memory.bytes < want[1])
        return err_set(e, "cuda: a probe needs %.2f GiB on the device",
                       (double)want[1] / (1 << 30));
    s->memory.used = s->pinned.used = 0;
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int hold(struct device_probe *p, struct held *h, int64_t bytes, struct err *e)
{
    struct arena *a = &p->session->memory;
    if (bytes <= 0)
        return 0;
    h->bytes = (bytes + 255) / 256 * 256;
    if (a->used + h->bytes + 2 * BAND > a->bytes)
        return err_set(e, "cuda: a probe has %.2f GiB, too little for its cases",
                       (double)a->bytes / (1 << 30));
    h->base = arena_take(a, h->bytes + 2 * BAND);
    h->data = h->base + BAND;
    CU(cudaMemsetAsync(h->data, 0, (size_t)h->bytes, p->b->stream));
    return 0;
}

/* Pages that the longest case and 32768 more positions need. */
static int32_t room_for_pages(const struct device_probe *p)
{
    int32_t each = (p->o.context + KV_PAGE - 1) / KV_PAGE;
    int32_t copies = p->o.m > NARROW ? p->o.m / KV_PAGE + 1 : 0;
    if (p->o.region == REGION_ATTN)
        return each + 32768 / KV_PAGE + 2 * (p->o.m > NARROW ? p->o.m : NARROW) + SPARE_PAGES;
    return p->o.region == REGION_ATTN_IN ? 8 * NARROW + SPARE_PAGES + copies : 0;
}

/* Matrix and vectors of drawn parameters, the copy in the kernel's own order. */
static int open_parameters(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    struct matrix m = matrix_of(p->b, p->o.region, 0, p->o.m);
    int64_t vectors = s->hidden + 2L * s->head_dim + (s->heads + 2L * s->kv_heads) * s->head_dim;
    p->real_head.wqkv = p->b->on.head;
    p->real_head.attn_norm = p->b->on.final_norm;
    p->b->on.layer = xrealloc(p->b->on.layer, (size_t)(p->layers + 1) * sizeof *p->b->on.layer);
    memset(&p->b->on.layer[p->layers], 0, sizeof *p->b->on.layer);
    if (hold(p, &p->drawn, m.bytes, e) || hold(p, &p->gains, vectors * 4, e) ||
        hold(p, &p->packed, p->loaded->info.packed_bytes, e))
        return -1;
    p->b->packs.base = p->packed.data; /* instead of the arena, which has none; at and each are 0 */
    p->loaded->pack = p->packed.data ? &p->pack : NULL;
    return 0;
}

static int open_memory(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    enum region r = p->o.region;
    int32_t q = s->heads * s->head_dim, all = walk_padded(p->o.m);
    int32_t rows = all < rows_seen(r) ? all : rows_seen(r);
    const int32_t cols[] = {[REGION_ATTN_IN] = q,          [REGION_ATTN] = q,
                            [REGION_ATTN_OUT] = s->hidden, [REGION_MLP_IN] = s->ffn,
                            [REGION_MLP_OUT] = s->hidden,  [REGION_HEAD] = p->b->model->head.rows};
    int32_t in = r == REGION_MLP_OUT ? s->ffn : r == REGION_ATTN || r == REGION_ATTN_OUT ? q : 0;
    struct matrix m = matrix_of(p->b, r, 0, p->o.m);
    int64_t most = m.rows > cols[r] ? m.rows : cols[r], widest = m.cols > q ? m.cols : q;
    p->y_cols = cols[r];
    p->room = all < NARROW ? NARROW : all;
    int32_t spare = r == REGION_HEAD ? SPARE_ROWS : 0; /* rows without logits */
    p->x_bytes = r == REGION_ATTN ? 0 : 4L * (p->room + spare) * s->hidden;
    p->in_bytes = 4L * p->room * in;
    p->page_room = room_for_pages(p);
    int64_t pages = p->page_room * page_bytes(p), y = (int64_t)all * cols[r] * 4;
    bool attn = r == REGION_ATTN, writes = r == REGION_ATTN_IN;
    return hold(p, &p->x, p->x_bytes, e) || hold(p, &p->stage_x, p->x_bytes, e) ||
           hold(p, &p->in, p->in_bytes, e) || hold(p, &p->stage_in, p->in_bytes, e) ||
           hold(p, &p->k, pages, e) || hold(p, &p->v, pages, e) ||
           hold(p, &p->stage_k, attn ? pages : 0, e) || hold(p, &p->stage_v, attn ? pages : 0, e) ||
           hold(p, &p->keep_k, writes ? pages : 0, e) ||
           hold(p, &p->keep_v, writes ? pages : 0, e) || hold(p, &p->y, y, e) ||
           hold(p, &p->y16, p->loaded->info.leaves16 ? y / 2 : 0, e) || hold(p, &p->keep_y, y, e) ||
           hold(p, &p->best, r == REGION_HEAD ? NARROW * 4 : 0, e) ||
           hold(p, &p->work, p->loaded->info.work_bytes, e) ||
           hold(p, &p->in64, rows * widest * 8L, e) || hold(p, &p->raw64, rows * most * 8L, e) ||
           hold(p, &p->out64, rows * most * 8L, e) ||
           hold(p, &p->segments, (64 + 4L * rows_seen(r) * s->kv_heads) * 32, e) ||
           hold(p, &p->small, 512, e);
}

/* Outputs of a batch; one case always fits. */
static int open_shelf(struct device_probe *p, struct err *e)
{
    struct held h = {0};
    int32_t most = rows_seen(p->o.region), m = walk_padded(p->o.m < most ? p->o.m : most);
    int64_t one = shelf_bytes(p, m, 2), batch = 192 << 20;
    if (hold(p, &h, one > batch ? one : batch, e))
        return -1;
    p->shelf = (struct arena){.base = h.data, .bytes = h.bytes};
    return memory_pinned(p->b, (void **)&p->tally_host, TALLY_ALL * 8, e);
}

/* Entries of a case's page table: of one drawn no more than there are pages; sequences that were
 * captured share pages, and each has a table as long as its context. */
static int64_t room_for_tables(const struct device_probe *p)
{
    int64_t captured = (int64_t)p->o.m * ((p->o.context + KV_PAGE - 1) / KV_PAGE);
    int64_t drawn = room_for_pages(p);
    return captured > drawn ? captured : drawn;
}

static struct backend *open_backend(struct device_probe *p)
{
    struct device_session *s = p->session;
    const struct device_probe_options *o = &p->o;
    struct backend *b = xmalloc(sizeof *b);
    *b = s->base;
    b->model = o->model;
    b->table_least = room_for_tables(p);
    b->options = (struct backend_options){.kv_pages = (o->positions + KV_PAGE - 1) / KV_PAGE + 1,
                                          .max_tokens = o->m < NARROW ? NARROW : walk_padded(o->m),
                                          .max_rows = NARROW};
    b->lent = &s->memory;
    b->lent_pinned = &s->pinned;
    pthread_mutex_init(&b->load_lock, NULL);
    return b;
}

/* What the cubin says and this device can give; its fault if not. */
static int check_facts(const struct device_probe *p, struct err *e)
{
    const struct cuda_kernel_info *i = &p->loaded->info;
    if (i->m_max < p->o.m)
        return err_set(e, "takes %d tokens at most where the slot has %d", i->m_max, p->o.m);
    if (i->context_max && p->o.region == REGION_ATTN && i->context_max < p->o.context)
        return err_set(e, "takes contexts up to %d where the slot has %d", i->context_max,
                       p->o.context);
    for (int l = 0; l < i->launches; l++) {
        struct cudaFuncAttributes a;
        CU(cudaFuncGetAttributes(&a, (const void *)p->loaded->entry[l]));
        if (a.localSizeBytes > 0)
            return err_set(e, "keeps %zu bytes of each thread in local memory", a.localSizeBytes);
    }
    return 0;
}

static int open_kernel(struct device_probe *p, struct err *e)
{
    struct kernel_object object = {p->o.object,     "whet_kernel", p->o.region,
                                   ORIGIN_TEMPLATE, "probe",       "probe"};
    p->kernel = loaded_open(p->b, &object, false, e);
    if (!p->kernel)
        return -1;
    p->loaded = p->kernel->backend;
    return check_facts(p, e);
}

/* That the kernel which counts differences counts them: none and all, where the answer is known. */
static int check_tools(struct device_probe *p, struct err *e)
{
    const struct arena *a = &p->session->memory;
    int64_t bytes = (a->bytes - a->used) / 4 * 4 < 1 << 20 ? (a->bytes - a->used) / 4 * 4 : 1 << 20;
    unsigned long long tally[2];
    differ(p, TALLY_BANDS, a->base + a->used, NULL, bytes, BAND_VALUE);
    differ(p, TALLY_BITS, a->base + a->used, NULL, bytes, BAND_VALUE + 1);
    if (differ_launch(p, e))
        return -1;
    CU(cudaStreamSynchronize(p->b->stream));
    CU(cudaMemcpy(tally, probe_tally(p, 0), sizeof tally, cudaMemcpyDeviceToHost));
    if (tally[0] != 0 || tally[1] != (unsigned long long)bytes / 4)
        return err_set(e, "the probe does not see what memory holds (%llu, %llu of %lld words)",
                       tally[0], tally[1], (long long)bytes / 4);
    return 0;
}

static int poison(struct device_probe *p, struct err *e)
{
    const struct arena *a = &p->session->memory;
    struct probe_poison_args all = {(unsigned *)(void *)a->base, a->bytes / 4, BAND_VALUE};
    if (tool_launch(p, TOOL_POISON, (dim3){1024, 1, 1}, 256, &all, false, e))
        return -1;
    CU(cudaStreamSynchronize(p->b->stream));
    return 0;
}

/* All that takes slices; the matrices, which do not, are in `upload` afterwards. */
static int open_parts(struct device_probe *p, struct upload **upload, enum device_verdict *verdict,
                      struct err *e)
{
    *verdict = DEVICE_ERROR;
    if (session_memory(p->session, &p->o, e) || poison(p, e) || memory_open(p->b, e))
        return -1;
    *upload = weights_begin(p->b, e);
    if (!*upload || blas_create(p->b, e))
        return -1;
    p->session->base.blas = p->b->blas;
    *verdict = DEVICE_FAULT;
    if (open_kernel(p, e))
        return -1;
    *verdict = DEVICE_ERROR;
    if (open_memory(p, e) || open_parameters(p, e) || open_shelf(p, e) || check_tools(p, e))
        return -1;
    CU(cudaDeviceSynchronize());
    return 0;
}

static void probe_close(struct device_probe *p, bool sound);

static struct device_probe *probe_open(struct device_session *s,
                                       const struct device_probe_options *o,
                                       enum device_verdict *verdict, struct err *e)
{
    struct device_probe *p = xcalloc(1, sizeof *p);
    struct upload *upload = NULL;
    *verdict = DEVICE_ERROR;
    p->session = s;
    p->o = *o;
    p->layers = o->model->shape.layers;
    p->b = open_backend(p);
    int rc = device_takes(&o->model->shape, e);
    if (!rc) {
        slice_begin(p);
        rc = open_parts(p, &upload, verdict, e);
        slice_end(p);
    }
    if (upload && rc)
        weights_drop(upload);
    else if (!rc)
        rc = weights_finish(upload, e);
    if (!rc) {
        *verdict = DEVICE_OK;
        return p;
    }
    probe_close(p, *verdict == DEVICE_FAULT); /* it has not run: the process is as it was */
    return NULL;
}

static void probe_close(struct device_probe *p, bool sound)
{
    if (!p || !sound) /* then the process ends, which may not wait for the device */
        return;
    for (int i = 0; i < 2; i++)
        if (p->graph[i])
            cudaGraphExecDestroy(p->graph[i]);
    if (p->kernel)
        cuda_unload(p->b, p->kernel);
    for (struct loaded *l = p->b->retired, *next; l; l = next) {
        next = l->next_retired;
        if (l->library)
            cudaLibraryUnload(l->library);
        free(l->lt);
        free(l->kernel);
        free(l);
    }
    free(p->b->on.layer);
    pthread_mutex_destroy(&p->b->load_lock);
    free(p->b);
    free(p->s.table);
    free(p);
}

const struct device_probe_ops cuda_probe = {session_start, probe_open,  probe_run,
                                            probe_finish,  probe_close, probe_reduce};
