/* SPDX-License-Identifier: Apache-2.0 */
/* bench_job.c - two kernels of a slot against each other, on the engine thread, in slices.
 *
 * Sending inputs and making graphs takes milliseconds and is done by the specializer thread on a
 * stream of its own; only the launches that are timed are the engine thread's.
 *
 * One run of a side is a graph: the kernel on the weights of every layer of the slot in turn (or on
 * copies of the captured keys and values), so the cache holds nothing that a step would not leave
 * there, and launches overlap as they do in a step. Runs (pairs.h) take turns; what one took is
 * divided by its launches. Inputs are the captured ones, outputs spare ones.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/walk.h"
#include "engine/pairs.h"

struct bench {
    cudaGraphExec_t side[2];
    int32_t launches; /* in one graph */
    struct pairs pairs;
};

/* ---- graphs -------------------------------------------------------------------------------- */

/* bf16 that the region after reads and the kernel did not leave is made as in a step. */
static int leave16(struct walk *w, enum region r, struct err *e)
{
    const struct model_shape *s = &w->b->model->shape;
    bool attn = r == REGION_ATTN;
    if (!w->wants16)
        return 0;
    return need16(w, r, attn ? w->a : w->h, attn ? w->b->a16 : w->b->h16,
                  attn ? s->heads * s->head_dim : s->ffn, e);
}

/* `launches` of the kernel, on one layer after the other. What a region reads in bf16, as all of
 * wide steps do, is there once and not again for each launch, as in a step. */
static int launch_all(struct walk *w, const struct bench_job *job, const struct kernel *k,
                      int32_t launches, struct err *e)
{
    const struct capture *c = job->inputs;
    const struct format_class *formats = job->slot->formats;
    int32_t layers = class_layers(formats, REGION_ATTN_IN, w->b->model->shape.layers);
    bool spread = w->m > NARROW && c->region == REGION_ATTN;
    bool wide = w->m > NARROW && !spread;
    w->wide = wide;
    bool have16 = wide || job->before16;
    w->wants16 = !wide && job->after16;
    w->only16 = true;
    if (wide)
        w->q = w->a = w->h = NULL;
    if (have16 && inputs_widen(w, c, e))
        return -1;
    for (int32_t i = 0; i < launches; i++) {
        memset(w->have16, 0, sizeof w->have16);
        w->have16[REGION_ATTN] = w->have16[REGION_MLP_IN] = have16;
        if (!wide)
            inputs_aim(w, c, i);
        if (spread)
            w->k_pages = w->v_pages = NULL; /* the layer's */
        if (walk_region(w, k, c->region, class_layer(formats, i % layers), e) ||
            leave16(w, c->region, e))
            return -1;
    }
    return 0;
}

static int capture_side(struct backend *b, const struct bench_job *job, const struct kernel *k,
                        int32_t launches, cudaGraphExec_t *exec, struct err *e)
{
    const struct capture *c = job->inputs;
    int32_t m = inputs_width(b, c);
    struct kernel_choice choice = {.m = m, .rows = m};
    struct walk w;
    choice.context = context_bucket[context_bucket_of(c->context)];
    walk_init(&w, b, b->loader, &b->spare.block, &choice);
    spare_aim(&w, c->region);
    w.x = b->spare.x;
    CU(cudaStreamBeginCapture(b->loader, cudaStreamCaptureModeThreadLocal));
    int failed = launch_all(&w, job, k, launches, e);
    if (graph_capture_end(b->loader, failed, exec, false, e))
        return -1;
    CU(cudaGraphUpload(*exec, b->loader));
    CU(cudaStreamSynchronize(b->loader));
    return 0;
}

int cuda_bench_begin(struct backend *b, struct bench_job *job, struct err *e)
{
    const struct capture *c = job->inputs;
    if (!c || c->region != job->slot->region)
        return err_set(e, "bench of %s: its captured inputs are of another region",
                       job->slot->name);
    int32_t m = inputs_width(b, c);
    bool all_seen = c->region == REGION_ATTN || c->region == REGION_HEAD;
    if (c->m < 1 || (all_seen && m > rows_seen(c->region)) || m > job->a->m_max ||
        m > job->b->m_max)
        return err_set(e, "bench of %s: captured %d tokens, more than a kernel takes",
                       job->slot->name, m);
    struct bench *s = xcalloc(1, sizeof *s);
    job->state = s;
    int32_t layers = class_layers(job->slot->formats, c->region, b->model->shape.layers);
    s->launches = region_info(c->region)->once ? 2 : layers;
    return inputs_send(b, b->loader, c, e) ||
           (c->region == REGION_ATTN && m > NARROW && inputs_spread(b, b->loader, c, e)) ||
           capture_side(b, job, job->a, s->launches, &s->side[0], e) ||
           capture_side(b, job, job->b, s->launches, &s->side[1], e);
}

static int run_once(struct backend *b, struct bench_job *job, int side, float *ns, struct err *e)
{
    const struct bench *s = job->state;
    float ms;
    CU(cudaEventRecord(b->spare.event[2], b->stream));
    CU(cudaGraphLaunch(s->side[side], b->stream));
    CU(cudaEventRecord(b->spare.event[3], b->stream));
    CU(cudaEventSynchronize(b->spare.event[3]));
    CU(cudaEventElapsedTime(&ms, b->spare.event[2], b->spare.event[3]));
    *ns = ms * 1e6f / (float)s->launches;
    return 0;
}

int cuda_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e)
{
    int64_t until = clock_ns() + budget_ns;
    if (!job->state && cuda_bench_begin(b, job, e))
        return -1;
    struct bench *s = job->state;
    return pairs_run(&s->pairs, b, job, until, run_once, e);
}

void cuda_bench_end(struct backend *b, struct bench_job *job)
{
    struct bench *s = job->state;
    (void)b;
    if (!s)
        return;
    for (int i = 0; i < 2; i++)
        if (s->side[i])
            cudaGraphExecDestroy(s->side[i]);
    free(s);
    job->state = NULL;
}
