/* probe.c - a kernel's first runs: surrounded by bands, after a predecessor that is late.
 *
 * A case is a graph: inputs become NaN, the producer (kernels/probe.cu) starts, the kernel under
 * test is launched behind it with the edges it declares. The graph is replayed for every round:
 *
 *   content 0, no delay          outputs kept
 *   content 1, 40 us late        the same pointers with other contents; outputs kept
 *   content 0, 40 us late        the bits of the first round
 *   content 0, full edges        the same bits without programmatic launch
 *   content 0, odd delays        the same bits again (races need luck; they get four tries)
 *
 * The first two are waited for, the others run in one go.
 * Every round the producer spoils outputs and working memory when it ends, so a kernel that does
 * not wait loses what it wrote. After every round: bands whole, inputs and parameters as they were,
 * counters zero. Then eager and the oracle see the same inputs (probe_truth.c).
 *
 * A kernel that breaks the context or does not end leaves a process that can only report and exit;
 * nothing here waits for it again.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/probe_private.h"

enum { REPEATS = 4, LATE_NS = 40000 };
static const double hang_s = 2;

/* ---- memory and tools ----------------------------------------------------------------------- */

static int hold(struct held *h, int64_t bytes, struct err *e)
{
    if (bytes <= 0)
        return 0;
    h->bytes = (bytes + 255) / 256 * 256;
    CU(cudaMalloc((void **)&h->base, (size_t)h->bytes + 2 * BAND));
    h->data = h->base + BAND;
    CU(cudaMemset(h->data, 0, (size_t)h->bytes));
    const unsigned value = BAND_VALUE;
    unsigned band[BAND / 4];
    for (int i = 0; i < BAND / 4; i++)
        band[i] = value;
    CU(cudaMemcpy(h->base, band, BAND, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(h->data + h->bytes, band, BAND, cudaMemcpyHostToDevice));
    return 0;
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
    CU(cudaLaunchKernelExC(&c, (const void *)p->tool[t], parameter));
    return 0;
}

static int open_tools(struct device_probe *p, struct err *e)
{
    static const struct {
        enum tool tool;
        int library;
        const char *name;
    } all[TOOLS] = {
        {TOOL_FILL, 0, "probe_fill"},        {TOOL_PAGES, 0, "probe_pages"},
        {TOOL_PRODUCE, 0, "probe_produce"},  {TOOL_DIFFER, 0, "probe_differ"},
        {TOOL_SUM, 0, "probe_sum"},          {TOOL_ROWS, 1, "oracle_rows"},
        {TOOL_PRODUCT, 1, "oracle_product"}, {TOOL_HEADS, 1, "oracle_heads"},
        {TOOL_FINISH, 1, "oracle_finish"},   {TOOL_ATTN, 1, "oracle_attn"},
    };
    if (device_image(p->b, "probe.cu", &p->library[0], e) ||
        device_image(p->b, "oracle.cu", &p->library[1], e))
        return -1;
    for (int i = 0; i < TOOLS; i++)
        CU(cudaLibraryGetKernel(&p->tool[all[i].tool], p->library[all[i].library], all[i].name));
    return 0;
}

static int done(cudaError_t code, struct err *e)
{
    return code ? cuda_failed(e, code, "a copy or a wait", __FILE__, __LINE__) : 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Pages that the longest case and 32768 more positions need. */
static int32_t room_for_pages(const struct device_probe *p)
{
    int32_t each = (p->o.context + KV_PAGE - 1) / KV_PAGE;
    if (p->o.region == REGION_ATTN)
        return each + 32768 / KV_PAGE + 2 * NARROW + SPARE_PAGES;
    return p->o.region == REGION_ATTN_IN ? 8 * NARROW + SPARE_PAGES : 0;
}

/* Matrix and vectors of drawn parameters, the copy in the kernel's own order. */
static int open_parameters(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    struct matrix m = matrix_of(p->b, p->o.region, 0);
    int64_t vectors = s->hidden + 2L * s->head_dim + (s->heads + 2L * s->kv_heads) * s->head_dim;
    p->real_head.wqkv = p->b->on.head;
    p->real_head.attn_norm = p->b->on.final_norm;
    p->b->on.layer = xrealloc(p->b->on.layer, (size_t)(p->layers + 1) * sizeof *p->b->on.layer);
    memset(&p->b->on.layer[p->layers], 0, sizeof *p->b->on.layer);
    if (hold(&p->drawn, 2LL * m.rows * m.cols, e) || hold(&p->gains, vectors * 4, e) ||
        hold(&p->packed, p->loaded->info.packed_bytes, e))
        return -1;
    p->b->packs.base = p->packed.data; /* instead of the arena, which has none; at and each are 0 */
    p->loaded->pack = p->packed.data ? &p->pack : NULL;
    return 0;
}

static int open_memory(struct device_probe *p, struct err *e)
{
    const struct model_shape *s = &p->b->model->shape;
    enum region r = p->o.region;
    int32_t q = s->heads * s->head_dim, rows = walk_padded(p->o.m);
    const int32_t cols[] = {[REGION_ATTN_IN] = q,          [REGION_ATTN] = q,
                            [REGION_ATTN_OUT] = s->hidden, [REGION_MLP_IN] = s->ffn,
                            [REGION_MLP_OUT] = s->hidden,  [REGION_HEAD] = s->vocab};
    int32_t in = r == REGION_MLP_OUT ? s->ffn : r == REGION_ATTN || r == REGION_ATTN_OUT ? q : 0;
    struct matrix m = matrix_of(p->b, r, 0);
    int64_t most = m.rows > cols[r] ? m.rows : cols[r], widest = m.cols > q ? m.cols : q;
    p->y_cols = cols[r];
    p->x_bytes = r == REGION_ATTN ? 0 : 4L * NARROW * s->hidden;
    p->in_bytes = 4L * NARROW * in;
    p->page_room = room_for_pages(p);
    int64_t pages = p->page_room * page_bytes(p), y = (int64_t)rows * cols[r] * 4;
    bool attn = r == REGION_ATTN, writes = r == REGION_ATTN_IN;
    return hold(&p->x, p->x_bytes, e) || hold(&p->stage_x, p->x_bytes, e) ||
           hold(&p->in, p->in_bytes, e) || hold(&p->stage_in, p->in_bytes, e) ||
           hold(&p->k, pages, e) || hold(&p->v, pages, e) ||
           hold(&p->stage_k, attn ? pages : 0, e) || hold(&p->stage_v, attn ? pages : 0, e) ||
           hold(&p->keep_k, writes ? pages : 0, e) || hold(&p->keep_v, writes ? pages : 0, e) ||
           hold(&p->y, y, e) || hold(&p->keep_y, y, e) ||
           hold(&p->best, r == REGION_HEAD ? NARROW * 4 : 0, e) ||
           hold(&p->work, p->loaded->info.work_bytes, e) || hold(&p->in64, rows * widest * 8L, e) ||
           hold(&p->raw64, rows * most * 8L, e) || hold(&p->out64, rows * most * 8L, e) ||
           hold(&p->segments, (64 + 4L * NARROW * s->kv_heads) * 32, e) || hold(&p->small, 512, e);
}

static struct backend *open_backend(const struct device_probe_options *o, struct err *e)
{
    struct backend *b = xcalloc(1, sizeof *b);
    b->model = o->model;
    b->options = (struct backend_options){.kv_pages = (o->positions + KV_PAGE - 1) / KV_PAGE + 1,
                                          .max_tokens = NARROW,
                                          .max_rows = NARROW};
    pthread_mutex_init(&b->load_lock, NULL);
    if (device_open(b, e) || device_kernels(b, e) || memory_open(b, e) || weights_upload(b, e) ||
        blas_create(b, e)) {
        free(b); /* the process ends with the context */
        return NULL;
    }
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

static struct device_probe *probe_open(const struct device_probe_options *o,
                                       enum device_verdict *verdict, struct err *e)
{
    struct device_probe *p = xcalloc(1, sizeof *p);
    log_set_level(LOG_WARN);
    p->o = *o;
    p->layers = o->model->shape.layers;
    *verdict = DEVICE_ERROR;
    p->b = open_backend(o, e);
    if (!p->b || open_tools(p, e) ||
        cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming) != cudaSuccess) {
        free(p);
        return NULL;
    }
    *verdict = DEVICE_FAULT;
    if (open_kernel(p, e) == 0) {
        *verdict = DEVICE_ERROR;
        if (open_memory(p, e) == 0 && open_parameters(p, e) == 0 &&
            done(cudaDeviceSynchronize(), e) == 0) {
            *verdict = DEVICE_OK;
            return p;
        }
    }
    free(p);
    return NULL;
}

static void probe_close(struct device_probe *p)
{
    if (!p)
        return;
    free(p->s.table);
    free(p); /* device memory goes with the process, which may not wait for the device */
}

/* ---- a round -------------------------------------------------------------------------------- */

static int produce(struct device_probe *p, bool reset, unsigned work_fill, struct err *e)
{
    const struct probe_segment *all = (const struct probe_segment *)(void *)p->segments.data;
    struct probe_produce_args a = {.segment = reset ? all : all + p->resets_n,
                                   .delay_ns = reset ? probe_delay(p) + 1 : probe_delay(p),
                                   .segments = reset ? p->resets_n : p->segments_n};
    if (!reset) {
        a.work = (unsigned *)(void *)p->work.data;
        a.work_words = p->work.bytes / 4;
        a.work_fill = work_fill;
    }
    return tool_launch(p, TOOL_PRODUCE, (dim3){64, 1, 1}, 256, &a, false, e);
}

static int record(struct device_probe *p, bool declared, struct err *e)
{
    struct walk w;
    struct choice choice;
    struct loaded *l = p->loaded;
    struct cuda_kernel_info as_declared = l->info;
    char *work = p->b->work;
    if (p->work.data)
        p->b->work = p->work.data;
    case_walk(p, &w, &choice);
    w.next = p->drawn.data ? p->drawn.data : p->k.data;
    w.next_bytes = p->drawn.data ? p->drawn.bytes : p->k.bytes;
    for (int i = 0; i < l->info.launches && !declared; i++)
        l->info.launch[i].pdl = 0;
    int rc =
        (p->x.data && done(cudaMemsetAsync(p->x.data, 0xff, (size_t)p->x_bytes, w.stream), e)) ||
        (p->in.data && done(cudaMemsetAsync(p->in.data, 0xff, (size_t)p->in_bytes, w.stream), e));
    rc = rc || (p->resets_n && produce(p, true, 0, e)) ||
         produce(p, false, declared ? 0x7149f2ca : 0xffffffff, e) ||
         loaded_region(&w, p->kernel, p->o.region, p->layer, e);
    l->info = as_declared;
    p->b->work = work;
    return rc ? -1 : 0;
}

static int capture_graph(struct device_probe *p, int declared, struct err *e)
{
    cudaGraph_t graph = NULL;
    if (p->graph[declared])
        CU(cudaGraphExecDestroy(p->graph[declared]));
    p->graph[declared] = NULL;
    CU(cudaStreamBeginCapture(p->b->stream, cudaStreamCaptureModeThreadLocal));
    int failed = record(p, declared, e);
    cudaError_t code = cudaStreamEndCapture(p->b->stream, &graph);
    if (!failed && !code)
        code = cudaGraphInstantiate(&p->graph[declared], graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (failed)
        return -1;
    CU(code);
    return 0;
}

static int differ(struct device_probe *p, enum tally t, const void *a, const void *b, int64_t bytes,
                  unsigned value, struct err *e)
{
    struct probe_differ_args d = {a, b, bytes / 4, probe_tally(p, t), value};
    if (!a || bytes < 4)
        return 0;
    return tool_launch(p, TOOL_DIFFER, (dim3){256, 1, 1}, 256, &d, false, e);
}

static int count_bands(struct device_probe *p, struct err *e)
{
    const struct held *all[] = {&p->x,       &p->in,       &p->k,       &p->v,      &p->y,
                                &p->best,    &p->packed,   &p->drawn,   &p->gains,  &p->work,
                                &p->stage_x, &p->stage_in, &p->stage_k, &p->stage_v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->base &&
            (differ(p, TALLY_BANDS, all[i]->base, NULL, BAND, BAND_VALUE, e) ||
             differ(p, TALLY_BANDS, all[i]->data + all[i]->bytes, NULL, BAND, BAND_VALUE, e)))
            return -1;
    return 0;
}

/* Compares outputs with those kept, or keeps them. Rows beyond the step's may hold anything. */
static int keep_or_count(struct device_probe *p, bool keep, struct err *e)
{
    struct held *live[] = {&p->y, &p->k, &p->v}, *kept[] = {&p->keep_y, &p->keep_k, &p->keep_v};
    int64_t pages = p->s.pages * page_bytes(p);
    int64_t bytes[] = {4 * p->s.m * p->y_cols, pages, pages};
    for (int i = 0; i < 3; i++) {
        if (!kept[i]->data)
            continue;
        if (keep)
            CU(cudaMemcpyAsync(kept[i]->data, live[i]->data, (size_t)bytes[i],
                               cudaMemcpyDeviceToDevice, p->b->stream));
        else if (differ(p, TALLY_BITS, live[i]->data, kept[i]->data, bytes[i], 0, e))
            return -1;
    }
    return 0;
}

static int count_all(struct device_probe *p, bool keep, bool compare, struct err *e)
{
    bool attn = p->o.region == REGION_ATTN;
    int64_t pages = p->s.pages * page_bytes(p);
    if (count_bands(p, e) ||
        differ(p, TALLY_INPUTS, p->x.data, p->stage_x.data, p->x_bytes, 0, e) ||
        differ(p, TALLY_INPUTS, p->in.data, p->stage_in.data, p->in_bytes, 0, e) ||
        (attn && differ(p, TALLY_INPUTS, p->k.data, p->stage_k.data, pages, 0, e)) ||
        (attn && differ(p, TALLY_INPUTS, p->v.data, p->stage_v.data, pages, 0, e)) ||
        differ(p, TALLY_COUNTERS, p->b->counter, NULL, CUDA_COUNTERS * 4L, 0, e))
        return -1;
    return keep || compare ? keep_or_count(p, keep, e) : 0;
}

static const char *complaint(const unsigned long long *tally)
{
    if (tally[TALLY_BANDS])
        return "wrote outside its outputs";
    if (tally[TALLY_INPUTS])
        return "changed its inputs";
    if (tally[TALLY_COUNTERS])
        return "left counters that are not zero";
    if (tally[TALLY_BITS])
        return "the same inputs gave other bits (a race, a missing wait, or state kept between "
               "calls)";
    return NULL;
}

struct round {
    int content;
    bool declared, keep, compare;
    unsigned late_ns;
};

static enum device_verdict of(int rc)
{
    return rc == 0 ? DEVICE_OK : rc > 0 ? DEVICE_FAULT : DEVICE_ERROR;
}

/* Queues one round; nothing waits for it. 1: the kernel does not launch. */
static int queue_round(struct device_probe *p, const struct round *r, struct err *e)
{
    unsigned delays[2] = {r->late_ns, 0};
    cudaStream_t s = p->b->stream;
    if (case_stage(p, r->content, e) ||
        done(cudaMemcpyAsync(probe_delay(p), delays, sizeof delays, cudaMemcpyHostToDevice, s), e))
        return -1;
    if (done(cudaGraphLaunch(p->graph[r->declared], s), e))
        return 1;
    return count_all(p, r->keep, r->compare, e);
}

/* Runs `n` rounds in one go: the server's steps are interrupted whenever this context has work, so
 * it has it in few large pieces. */
static enum device_verdict run_together(struct device_probe *p, const struct round *r, int n,
                                        struct err *e)
{
    unsigned long long tally[TALLIES];
    int rc;
    if (done(cudaMemsetAsync(probe_tally(p, 0), 0, sizeof tally, p->b->stream), e))
        return DEVICE_ERROR;
    for (int i = 0; i < n; i++)
        if ((rc = queue_round(p, &r[i], e)) != 0)
            return of(rc);
    enum device_verdict v = probe_wait(p, hang_s, "the kernel", e);
    if (v != DEVICE_OK)
        return v;
    if (done(cudaMemcpy(tally, probe_tally(p, 0), sizeof tally, cudaMemcpyDeviceToHost), e))
        return DEVICE_ERROR;
    const char *wrong = complaint(tally);
    if (wrong)
        err_set(e, "%s", wrong);
    return wrong ? DEVICE_FAULT : DEVICE_OK;
}

static enum device_verdict run_rounds(struct device_probe *p, struct device_outcome *out,
                                      struct err *e)
{
    struct round all[4 + REPEATS] = {{0, true, true, false, 0},
                                     {out->contents - 1, true, false, out->contents == 1, LATE_NS},
                                     {0, true, false, true, LATE_NS},
                                     {0, false, false, true, LATE_NS}};
    for (int i = 0; i < REPEATS; i++)
        all[4 + i] = (struct round){0, true, false, true, 1000u + 3700u * (unsigned)i};
    enum device_verdict v = DEVICE_OK;
    for (int i = 0; i < out->contents && v == DEVICE_OK; i++) {
        v = run_together(p, &all[i], 1, e);
        if (v == DEVICE_OK)
            v = of(outcome_fetch(p, all[i].content, false, out, e));
    }
    if (v == DEVICE_OK)
        v = run_together(p, &all[out->contents], 4 + REPEATS - out->contents, e);
    out->runs = 4 + REPEATS;
    return v;
}

/* ---- a case --------------------------------------------------------------------------------- */

static enum device_verdict run_case(struct device_probe *p, struct device_outcome *out,
                                    struct err *e)
{
    unsigned long long sum[2];
    if (case_params(p, e) || case_segments(p, e) || capture_graph(p, 0, e) ||
        capture_graph(p, 1, e) || case_checksum(p, 0, e))
        return DEVICE_ERROR;
    enum device_verdict v = probe_wait(p, hang_s, "packing weights", e);
    if (v == DEVICE_OK)
        v = run_rounds(p, out, e);
    if (v != DEVICE_OK)
        return v;
    if (case_checksum(p, 1, e) || probe_wait(p, 20, "looking at memory", e) != DEVICE_OK ||
        done(cudaMemcpy(sum, probe_tally(p, TALLIES), sizeof sum, cudaMemcpyDeviceToHost), e))
        return DEVICE_ERROR;
    if (sum[0] != sum[1]) {
        err_set(e, "changed its weights");
        return DEVICE_FAULT;
    }
    for (int c = 0; c < out->contents && v == DEVICE_OK; c++)
        v = of(outcome_reference(p, c, out, e));
    return v;
}

static enum device_verdict probe_run(struct device_probe *p, const struct device_case *c,
                                     struct device_outcome *out, struct err *e)
{
    p->c = *c;
    memset(out, 0, sizeof *out);
    if (case_sequences(p, e))
        return DEVICE_ERROR;
    outcome_shape(p, out);
    return run_case(p, out, e);
}

const struct device_probe_ops cuda_probe = {probe_open, probe_run, probe_close};
