/* SPDX-License-Identifier: Apache-2.0 */
/* probe_runs.c - a case on the device: surrounded by bands, after a predecessor that is late.
 *
 * A case is a graph: inputs become NaN, the producer (kernels/cuda/probe.cu) starts, the kernel
 * under test is launched behind it with the edges it declares. The graph is replayed for every
 * run:
 *
 *   content 0, no delay          outputs kept
 *   content 1, 40 us late        the same pointers with other contents; outputs kept
 *   content 0, 40 us late        the bits of the first run
 *   content 0, full edges        the same bits without programmatic launch; of a kernel that may
 *                                be asked for bf16 alone, that alone
 *   content 0, odd delays        the same bits again (races need luck; they get four tries)
 *
 * Every run the producer spoils outputs when it ends, and working memory but in the run with
 * full edges, which finds there what the one before left, as in a server. So a kernel that does not
 * wait loses what it wrote. After every run: bands whole, inputs and parameters as they were,
 * counters zero. All runs are queued at once and waited for once, then eager and the oracle see
 * the same inputs (probe_truth.c). Outputs stay on the device until the slice is over.
 *
 * A kernel that breaks the context or does not end leaves a process that can only report and exit;
 * nothing here waits for it again.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"

enum { REPEATS = 4, RUNS = 4 + REPEATS, LATE_NS = 40000 };
double probe_hang_s = 0.5;
static const double reference_s = 20;
static const float copies_rms = 0.01f;

static int done(cudaError_t code, struct err *e)
{
    return code ? cuda_failed(e, code, "a copy or a wait", __FILE__, __LINE__) : 0;
}

/* ---- a run ---------------------------------------------------------------------------------- */

struct probe_run {
    int content;
    bool declared, keep, compare;
    unsigned late_ns;
};

/* work_fill 0: working memory stays as the run before left it. */
static int produce(struct device_probe *p, bool reset, unsigned work_fill, struct err *e)
{
    const struct probe_segment *all = (const struct probe_segment *)(void *)p->segments.data;
    struct probe_produce_args a = {.segment = reset ? all : all + p->resets_n,
                                   .delay_ns = reset ? probe_delay(p) + 1 : probe_delay(p),
                                   .segments = reset ? p->resets_n : p->segments_n};
    if (!reset && work_fill) {
        a.work = (unsigned *)(void *)p->work.data;
        a.work_words = p->work.bytes / 4;
        a.work_fill = work_fill;
    }
    return tool_launch(p, TOOL_PRODUCE, (dim3){64, 1, 1}, 256, &a, false, e);
}

static int record(struct device_probe *p, bool declared, struct err *e)
{
    struct walk w;
    struct kernel_choice choice;
    struct loaded *l = p->loaded;
    struct cuda_kernel_info as_declared = l->info;
    char *work = p->b->work;
    if (p->work.data)
        p->b->work = p->work.data;
    /* The run with full edges finds its working memory as the one before left it, as in a server:
     * a kernel that remembers something there answers from another launch. */
    case_walk(p, &w, &choice);
    w.next = p->drawn.data ? p->drawn.data : p->k.data;
    w.next_bytes = p->drawn.data ? p->drawn.bytes : p->k.bytes;
    w.wants16 = p->y16.data != NULL;
    w.out16 = p->y16.data;
    w.only16 = !declared;
    for (int i = 0; i < l->info.launches && !declared; i++)
        l->info.launch[i].pdl = 0;
    int rc =
        (p->x.data && done(cudaMemsetAsync(p->x.data, 0xff, (size_t)p->x_bytes, w.stream), e)) ||
        (p->in.data && done(cudaMemsetAsync(p->in.data, 0xff, (size_t)p->in_bytes, w.stream), e));
    rc = rc || (p->resets_n && produce(p, true, 0, e)) ||
         produce(p, false, declared ? 0x7149f2ca : 0, e) ||
         walk_region(&w, p->kernel, p->o.region, p->layer, e);
    l->info = as_declared;
    p->b->work = work;
    return rc ? -1 : 0;
}

static int capture_graph(struct device_probe *p, int declared, struct err *e)
{
    if (p->graph[declared])
        CU(cudaGraphExecDestroy(p->graph[declared]));
    p->graph[declared] = NULL;
    CU(cudaStreamBeginCapture(p->b->stream, cudaStreamCaptureModeThreadLocal));
    return graph_capture_end(p->b->stream, record(p, declared, e), &p->graph[declared], false, e);
}

static void count_bands(struct device_probe *p)
{
    const struct held *all[] = {&p->x,    &p->in,      &p->k,        &p->v,       &p->y,
                                &p->y16,  &p->best,    &p->packed,   &p->drawn,   &p->gains,
                                &p->work, &p->stage_x, &p->stage_in, &p->stage_k, &p->stage_v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->base) {
            differ(p, TALLY_BANDS, all[i]->base, NULL, BAND, BAND_VALUE);
            differ(p, TALLY_BANDS, all[i]->data + all[i]->bytes, NULL, BAND, BAND_VALUE);
        }
}

/* What was left in bf16 must be the floats, rounded: the run's own, or where it was asked for none
 * the first one's. */
static int count_halves(struct device_probe *p, bool floats, struct err *e)
{
    struct probe_halves_args a = {(const float *)(const void *)(floats ? &p->y : &p->keep_y)->data,
                                  p->y16.data, p->s.all * p->y_cols, probe_tally(p, TALLY_HALVES)};
    return a.y ? tool_launch(p, TOOL_HALVES, (dim3){256, 1, 1}, 256, &a, false, e) : 0;
}

/* Compares outputs with those kept, or keeps them. Rows beyond the step's may hold anything. */
static int keep_or_count(struct device_probe *p, bool keep, bool floats, struct err *e)
{
    struct held *live[] = {&p->y, &p->k, &p->v}, *kept[] = {&p->keep_y, &p->keep_k, &p->keep_v};
    int64_t pages = p->s.all_pages * page_bytes(p);
    int64_t bytes[] = {4 * p->s.all * p->y_cols, pages, pages};
    for (int i = 0; i < 3; i++) {
        if (!kept[i]->data || (i == 0 && !floats))
            continue;
        if (keep)
            CU(cudaMemcpyAsync(kept[i]->data, live[i]->data, (size_t)bytes[i],
                               cudaMemcpyDeviceToDevice, p->b->stream));
        else
            differ(p, TALLY_BITS, live[i]->data, kept[i]->data, bytes[i], 0);
    }
    return 0;
}

static int count_all(struct device_probe *p, const struct probe_run *r, struct err *e)
{
    bool floats = r->declared || !p->y16.data;
    bool attn = p->o.region == REGION_ATTN;
    int64_t pages = p->s.pages * page_bytes(p);
    count_bands(p);
    differ(p, TALLY_INPUTS, p->x.data, p->stage_x.data, p->x_bytes, 0);
    differ(p, TALLY_INPUTS, p->in.data, p->stage_in.data, p->in_bytes, 0);
    if (attn) {
        differ(p, TALLY_INPUTS, p->k.data, p->stage_k.data, pages, 0);
        differ(p, TALLY_INPUTS, p->v.data, p->stage_v.data, pages, 0);
    }
    differ(p, TALLY_COUNTERS, p->b->counter, NULL, CUDA_COUNTERS * 4L, 0);
    if ((r->keep || r->compare) && keep_or_count(p, r->keep, floats, e))
        return -1;
    return differ_launch(p, e) || count_halves(p, floats, e);
}

/* Copies of a row, wherever in the step they lie, may differ by the order of their sums and by what
 * rounding the product to bf16 makes of that. */
static bool copies_differ(const unsigned long long *tally)
{
    unsigned word[4];
    float rms;
    memcpy(word, tally + TALLY_COPIES, sizeof word);
    memcpy(&rms, &word[3], sizeof rms);
    return word[0] > 0 || rms > copies_rms;
}

static const char *complaint(const unsigned long long *tally)
{
    if (copies_differ(tally))
        return "made other numbers of the same row elsewhere in the step, or none";
    if (tally[TALLY_BANDS])
        return "wrote outside its outputs";
    if (tally[TALLY_INPUTS])
        return "changed its inputs";
    if (tally[TALLY_COUNTERS])
        return "left counters that are not zero";
    if (tally[TALLY_HALVES])
        return "left other numbers in bf16 than as floats";
    if (tally[TALLY_BITS])
        return "the same inputs gave other bits (a race, a missing wait, or state kept between "
               "calls)";
    return NULL;
}

static enum device_verdict of(int rc)
{
    return rc == 0 ? DEVICE_OK : rc > 0 ? DEVICE_FAULT : DEVICE_ERROR;
}

/* Queues one run; nothing waits for it. 1: the kernel does not launch. */
static int queue_run(struct device_probe *p, const struct probe_run *r, struct err *e)
{
    unsigned delays[2] = {r->late_ns, 0};
    cudaStream_t s = p->b->stream;
    if (case_stage(p, r->content, e) ||
        done(cudaMemcpyAsync(probe_delay(p), delays, sizeof delays, cudaMemcpyHostToDevice, s), e))
        return -1;
    if (done(cudaGraphLaunch(p->graph[r->declared], s), e))
        return 1;
    return count_all(p, r, e);
}

/* All runs of a case, waited for once. */
static enum device_verdict queue_runs(struct device_probe *p, struct kept *kept, int contents,
                                      struct err *e)
{
    struct probe_run all[RUNS] = {{0, true, true, false, 0},
                                  {contents - 1, true, false, contents == 1, LATE_NS},
                                  {0, true, false, true, LATE_NS},
                                  {0, false, false, true, LATE_NS}};
    int rc;
    for (int i = 0; i < REPEATS; i++)
        all[4 + i] = (struct probe_run){0, true, false, true, 1000u + 3700u * (unsigned)i};
    if (done(cudaMemsetAsync(probe_tally(p, 0), 0, TALLIES * 8, p->b->stream), e) ||
        done(cudaMemsetAsync(probe_tally(p, TALLY_COPIES), 0, 16, p->b->stream), e))
        return DEVICE_ERROR;
    for (int i = 0; i < RUNS; i++) {
        if ((rc = queue_run(p, &all[i], e)) != 0)
            return of(rc);
        if (i < contents && (case_copies(p, e) || outcome_keep(p, kept, i, false, e)))
            return DEVICE_ERROR;
    }
    return DEVICE_OK;
}

/* What the tallies and both checksums say once everything has run. */
static enum device_verdict read_tallies(struct device_probe *p, struct err *e)
{
    const unsigned long long *tally = p->tally_host, *sum = tally + TALLIES;
    if (case_checksum(p, 1, e) ||
        done(cudaMemcpyAsync(p->tally_host, probe_tally(p, 0), TALLY_ALL * 8,
                             cudaMemcpyDeviceToHost, p->b->stream),
             e))
        return DEVICE_ERROR;
    enum device_verdict v = probe_wait(p, probe_hang_s, "the kernel", e);
    if (v != DEVICE_OK)
        return v;
    const char *wrong = complaint(tally);
    if (!wrong && sum[0] != sum[1])
        wrong = "changed its weights";
    if (wrong)
        err_set(e, "%s", wrong);
    return wrong ? DEVICE_FAULT : DEVICE_OK;
}

/* ---- a case --------------------------------------------------------------------------------- */

static enum device_verdict run_case(struct device_probe *p, const struct device_case *c,
                                    struct kept *kept, struct err *e)
{
    int contents = c->capture ? 1 : 2;
    p->c = *c;
    if (case_sequences(p, e) || case_params(p, e) || case_segments(p, e) ||
        capture_graph(p, 0, e) || capture_graph(p, 1, e) || case_checksum(p, 0, e))
        return DEVICE_ERROR;
    enum device_verdict v = queue_runs(p, kept, contents, e);
    if (v == DEVICE_OK)
        v = read_tallies(p, e);
    if (v != DEVICE_OK)
        return v;
    slice_begin(p);
    for (int i = 0; i < contents; i++)
        if (outcome_reference(p, kept, i, e))
            return DEVICE_ERROR;
    v = probe_wait(p, reference_s, "eager and the oracle", e);
    kept->c = p->c;
    kept->s = p->s;
    p->s.table = NULL; /* it is kept's now */
    return v == DEVICE_OK ? v : DEVICE_ERROR;
}

/* ---- a batch -------------------------------------------------------------------------------- */

int64_t shelf_bytes(const struct device_probe *p, int32_t m, int contents)
{
    const struct model_shape *s = &p->b->model->shape;
    int64_t kv = p->o.region == REGION_ATTN_IN ? 2L * s->kv_heads * s->head_dim : 0;
    int64_t pages = kv ? 2 * p->page_room * page_bytes(p) : 0;
    int64_t scores = p->o.region == REGION_ATTN ? 8L * s->heads : 0;
    return contents * (m * (p->y_cols * 16 + kv * 8 + scores) + 2 * pages + 4096 + NARROW * 4);
}

static enum device_verdict fetch(struct device_probe *p, struct kept *kept, int n,
                                 struct device_outcome *out, int *done_n, struct err *e)
{
    enum device_verdict v = DEVICE_OK;
    for (*done_n = 0; *done_n < n && v == DEVICE_OK; (*done_n)++) {
        struct kept *k = &kept[*done_n];
        free(p->s.table);
        p->s = k->s;
        k->s.table = NULL;
        p->c = k->c;
        v = outcome_fetch(p, k, &out[*done_n], e);
        out[*done_n].runs = RUNS;
        if (v != DEVICE_OK)
            break;
    }
    for (int i = 0; i < n; i++)
        free(kept[i].s.table);
    return v;
}

enum device_verdict probe_run(struct device_probe *p, const struct device_case *c, int n,
                              struct device_outcome *out, int *done_n, int *failed, struct err *e)
{
    struct kept *kept = xcalloc(BATCH_MOST, sizeof *kept);
    enum device_verdict v = DEVICE_OK;
    struct err why = {""};
    int ran = 0;
    memset(out, 0, (size_t)n * sizeof *out);
    p->shelf.used = 0;
    slice_begin(p);
    while (ran < n && ran < BATCH_MOST && v == DEVICE_OK) {
        int32_t most = rows_seen(p->o.region), m = c[ran].shape.m < most ? c[ran].shape.m : most;
        int64_t need = shelf_bytes(p, m, c[ran].capture ? 1 : 2);
        if (ran > 0 && (p->shelf.used + need > p->shelf.bytes || slice_over(p)))
            break;
        v = run_case(p, &c[ran], &kept[ran], &why);
        ran += v == DEVICE_OK;
    }
    slice_end(p);
    *failed = ran;
    *done_n = 0;
    /* Of a device that answers no more nothing can be fetched. */
    bool fetched = p->dead || fetch(p, kept, ran, out, done_n, e) == DEVICE_OK;
    free(kept);
    if (!fetched) {
        *failed = *done_n;
        return p->dead ? DEVICE_ERROR : DEVICE_FAULT;
    }
    if (v != DEVICE_OK)
        *e = why;
    return v;
}

/* What is nobody's lies behind the shelf, which is the last piece that was dealt out. */
enum device_verdict probe_finish(struct device_probe *p, struct err *e)
{
    const struct arena *a = &p->session->memory;
    slice_begin(p);
    cudaError_t code = cudaMemsetAsync(probe_tally(p, 0), 0, TALLIES * 8, p->b->stream);
    differ(p, TALLY_BANDS, a->base + a->used, NULL, (a->bytes - a->used) / 4 * 4, BAND_VALUE);
    int rc = done(code, e) || differ_launch(p, e) ||
             done(cudaMemcpyAsync(p->tally_host, probe_tally(p, 0), TALLIES * 8,
                                  cudaMemcpyDeviceToHost, p->b->stream),
                  e);
    enum device_verdict v = rc ? DEVICE_ERROR : probe_wait(p, reference_s, "looking at memory", e);
    if (v == DEVICE_OK && p->tally_host[TALLY_BANDS]) {
        err_set(e, "wrote far outside its outputs");
        v = DEVICE_FAULT;
    }
    if (v == DEVICE_OK)
        v = probe_sums(p, e);
    slice_end(p);
    return v;
}
