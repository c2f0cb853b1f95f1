/* bench.c - two kernels of a slot against each other, on the engine thread, in slices.
 *
 * One run of a side is a graph: the kernel on every layer's weights in turn (or on copies of the
 * captured keys and values), so the cache holds nothing that a step would not leave there, and
 * launches overlap as they do in a step. Runs go A B B A; a pair is the means of its two A and its
 * two B runs over the number of launches, so drift within a pair cancels. The first pair warms up.
 * Inputs are the captured ones, outputs the lab's.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_private.h"
#include "engine/quant.h"

struct bench {
    cudaGraphExec_t side[2];
    int32_t launches; /* in one graph */
    int32_t turn;
    bool warm;
    float ns[4]; /* A B B A */
};

/* ---- inputs -------------------------------------------------------------------------------- */

static int send_floats(float *to, const float *from, int64_t n, struct err *e)
{
    CU(cudaMemcpy(to, from, (size_t)n * sizeof *to, cudaMemcpyHostToDevice));
    return 0;
}

static int send_pages(void *to, const float *from, int64_t n, int32_t copies, struct err *e)
{
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    for (int64_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(from[i]);
    cudaError_t code = cudaSuccess;
    for (int32_t i = 0; i < copies && !code; i++)
        code = cudaMemcpy((char *)to + i * n * 2, half, (size_t)n * 2, cudaMemcpyHostToDevice);
    free(half);
    CU(code);
    return 0;
}

/* The captured step as a block. */
static int send_block(struct backend *b, const struct capture *c, struct err *e)
{
    const struct step_block *k = &b->lab.block;
    int32_t *position = block_twin(k, k->position), *kv_at = block_twin(k, k->kv_at);
    int32_t *pages_at = block_twin(k, k->pages_at), *row = block_twin(k, k->row);
    int32_t *table = block_twin(k, k->page_table), pages = 0;
    struct cuda_counts *counts = block_twin(k, k->counts);
    *counts = (struct cuda_counts){c->m, c->m, c->spans, c->context, {0}};
    for (int32_t i = 0; i < c->m; i++) {
        position[i] = c->position ? c->position[i] : 0;
        kv_at[i] = i;
        row[i] = i;
    }
    for (int32_t i = 0; c->span && i < c->spans; i++) {
        const struct span *s = &c->span[i];
        int32_t end = s->pages_at + (s->context + KV_PAGE - 1) / KV_PAGE;
        pages = end > pages ? end : pages;
        for (int32_t t = 0; t < s->count; t++) {
            position[s->first + t] = s->context - s->count + t;
            pages_at[s->first + t] = s->pages_at;
        }
    }
    if (pages > k->pages)
        return err_set(e, "cuda: a captured step with %d pages", pages);
    if (pages)
        memcpy(table, c->page_table, (size_t)pages * sizeof *table);
    size_t used = (size_t)((char *)(k->page_table + pages) - k->device);
    CU(cudaMemcpyAsync(k->device, k->host, used, cudaMemcpyHostToDevice, b->stream));
    CU(cudaStreamSynchronize(b->stream));
    return 0;
}

static int64_t captured_floats(const struct backend *b, const struct capture *c)
{
    const struct model_shape *s = &b->model->shape;
    return (int64_t)c->pages * KV_PAGE * s->kv_heads * s->head_dim;
}

/* Copies of the captured pages; launches rotate over them. */
static int32_t page_copies(const struct backend *b, const struct capture *c)
{
    int64_t bytes = captured_floats(b, c) * 2;
    int64_t n = bytes > 0 ? LAB_PAGES_BYTES / bytes : 1;
    return n > b->model->shape.layers ? b->model->shape.layers : (int32_t)n;
}

static int send_inputs(struct backend *b, const struct capture *c, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    int64_t q = (int64_t)s->heads * s->head_dim;
    int64_t width = c->region == REGION_MLP_OUT ? s->ffn : q;
    if (send_block(b, c, e) ||
        (c->x && send_floats(b->lab.x, c->x, (int64_t)c->m * s->hidden, e)) ||
        (c->in && send_floats(b->lab.in, c->in, c->m * width, e)))
        return -1;
    if (c->region != REGION_ATTN)
        return 0;
    int32_t copies = page_copies(b, c);
    if (copies < 1)
        return err_set(e, "cuda: %d captured pages are too many for a bench", c->pages);
    return send_pages(b->lab.k, c->k_pages, captured_floats(b, c), copies, e) ||
           send_pages(b->lab.v, c->v_pages, captured_floats(b, c), copies, e);
}

/* ---- graphs -------------------------------------------------------------------------------- */

static void aim(struct walk *w, const struct capture *c, int32_t turn)
{
    struct backend *b = w->b;
    int64_t bytes = captured_floats(b, c) * 2;
    w->x = b->lab.x;
    if (c->region == REGION_ATTN) {
        int32_t at = turn % page_copies(b, c);
        w->q = b->lab.in;
        w->k_pages = (char *)b->lab.k + at * bytes;
        w->v_pages = (char *)b->lab.v + at * bytes;
    } else if (c->region == REGION_ATTN_OUT) {
        w->a = b->lab.in;
    } else if (c->region == REGION_MLP_OUT) {
        w->h = b->lab.in;
    }
}

static int capture_side(struct backend *b, const struct capture *c, const struct kernel *k,
                        int32_t launches, cudaGraphExec_t *exec, struct err *e)
{
    struct choice choice = {.m = walk_padded(c->m), .rows = walk_padded(c->m)};
    struct walk w;
    cudaGraph_t graph = NULL;
    int failed = 0;
    choice.context = context_bucket[context_bucket_of(c->context)];
    walk_init(&w, b, b->stream, &b->lab.block, &choice);
    if (lab_redirect(&w, c->region, e))
        return -1;
    CU(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int32_t i = 0; i < launches && !failed; i++) {
        aim(&w, c, i);
        failed = walk_region(&w, k, c->region, i % b->model->shape.layers, e);
        memset(w.have16, 0, sizeof w.have16);
    }
    cudaError_t code = cudaStreamEndCapture(b->stream, &graph);
    if (!failed && !code)
        code = cudaGraphInstantiate(exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    if (failed)
        return -1;
    CU(code);
    return 0;
}

static int bench_start(struct backend *b, struct bench_job *job, struct err *e)
{
    const struct capture *c = job->inputs;
    if (!c || c->region != job->slot->region)
        return err_set(e, "bench of %s: its captured inputs are of another region",
                       job->slot->name);
    if (c->m < 1 || c->m > NARROW || walk_padded(c->m) > job->a->m_max ||
        walk_padded(c->m) > job->b->m_max)
        return err_set(e, "bench of %s: captured %d tokens, more than a kernel takes",
                       job->slot->name, c->m);
    struct bench *s = xcalloc(1, sizeof *s);
    job->state = s;
    s->launches = c->region == REGION_HEAD ? 2 : b->model->shape.layers;
    return send_inputs(b, c, e) ||
           capture_side(b, c, job->a, s->launches, &s->side[0], e) ||
           capture_side(b, c, job->b, s->launches, &s->side[1], e);
}

static int run_once(struct backend *b, struct bench *s, int side, float *ns, struct err *e)
{
    float ms;
    CU(cudaEventRecord(b->lab.event[2], b->stream));
    CU(cudaGraphLaunch(s->side[side], b->stream));
    CU(cudaEventRecord(b->lab.event[3], b->stream));
    CU(cudaEventSynchronize(b->lab.event[3]));
    CU(cudaEventElapsedTime(&ms, b->lab.event[2], b->lab.event[3]));
    *ns = ms * 1e6f / (float)s->launches;
    s->turn++;
    return 0;
}

int cuda_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e)
{
    int64_t until = clock_ns() + budget_ns;
    if (!job->state && bench_start(b, job, e))
        return -1;
    struct bench *s = job->state;
    while (job->have < job->want) {
        int at = s->turn % 4;
        if (run_once(b, s, at == 1 || at == 2, &s->ns[at], e))
            return -1;
        if (at == 3 && s->warm) {
            job->a_ns[job->have] = (s->ns[0] + s->ns[3]) / 2;
            job->b_ns[job->have] = (s->ns[1] + s->ns[2]) / 2;
            job->have++;
        }
        s->warm |= at == 3;
        if (clock_ns() >= until)
            break;
    }
    return job->have >= job->want;
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
