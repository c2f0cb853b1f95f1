/* graph.c - decode steps as graphs: one for each M bucket, context bucket and set of kernels.
 *
 * A step of up to NARROW tokens, one of each sequence, is captured once and launched from then on.
 * A cell (M bucket x context bucket) keeps a few variants, least recently used out: the kernels in
 * the slots now, and those that a canary compares them with. When a slot got another kernel, the
 * engine thread goes on with the variant it has, and the builder thread captures the new one on a
 * stream of its own; from the boundary after that the step uses it. So a swap costs a step nothing.
 * Only two things are captured by the engine thread itself: the first variant of a cell and a
 * canary's candidate, which must be exactly what was asked for.
 *
 * The lock covers the cells and the request, never a capture. A variant in use is never evicted:
 * only the engine thread launches, and it evicts nothing that it just got.
 */
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/cuda_private.h"

static bool same(const struct choice *a, const struct choice *b)
{
    return memcmp(a->kernel, b->kernel, sizeof a->kernel) == 0 && a->m == b->m &&
           a->rows == b->rows && a->context == b->context;
}

struct cell *graph_cell(struct backend *b, const struct choice *c)
{
    return &b->cell[m_bucket_of(c->m)][context_bucket_of(c->context)];
}

static struct variant *find(struct cell *cell, const struct choice *c)
{
    for (int i = 0; i < VARIANTS; i++)
        if (cell->variant[i].exec && same(&cell->variant[i].choice, c))
            return &cell->variant[i];
    return NULL;
}

static struct variant *newest(struct cell *cell)
{
    struct variant *best = NULL;
    for (int i = 0; i < VARIANTS; i++) {
        struct variant *v = &cell->variant[i];
        if (v->exec && (!best || v->last_used > best->last_used))
            best = v;
    }
    return best;
}

/* ---- capturing ----------------------------------------------------------------------------- */

/* Captures a walk of the whole step. */
static int capture(struct walk *w, cudaGraphExec_t *exec, struct err *e)
{
    cudaStream_t stream = w->stream;
    cudaGraph_t graph = NULL;
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    int failed = walk_step(w, e);
    cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (!failed && !code)
        code = cudaGraphInstantiate(exec, graph, 0);
    if (!failed && !code)
        code = cudaGraphUpload(*exec, stream);
    if (graph)
        cudaGraphDestroy(graph);
    if (failed)
        return -1;
    CU(code);
    CU(cudaStreamSynchronize(stream));
    return 0;
}

/* Puts an executable into the cell, in place of the one longest unused; under the lock. Returns
 * what was there. */
static cudaGraphExec_t put(struct backend *b, struct cell *cell, const struct choice *c,
                           cudaGraphExec_t exec, struct variant **where)
{
    struct variant *v = &cell->variant[0];
    for (int i = 1; i < VARIANTS; i++)
        if (!cell->variant[i].exec || (v->exec && cell->variant[i].last_used < v->last_used))
            v = &cell->variant[i];
    cudaGraphExec_t old = v->exec;
    *v = (struct variant){.choice = *c, .exec = exec, .last_used = b->steps};
    *where = v;
    return old;
}

static struct variant *make(struct backend *b, const struct choice *c, cudaStream_t stream,
                            struct err *e)
{
    cudaGraphExec_t exec = NULL, old;
    struct variant *v;
    struct walk w;
    int64_t t0 = clock_ns();
    walk_init(&w, b, stream, &b->narrow, c);
    if (capture(&w, &exec, e)) {
        if (exec)
            cudaGraphExecDestroy(exec);
        return NULL;
    }
    pthread_mutex_lock(&b->builder.lock);
    old = put(b, graph_cell(b, c), c, exec, &v);
    memcpy(v->launches, w.launches, sizeof v->launches);
    pthread_mutex_unlock(&b->builder.lock);
    if (old)
        cudaGraphExecDestroy(old);
    log_debug("cuda", "graph of m %d, context %d in %.2f ms", c->m, c->context,
              (double)(clock_ns() - t0) * 1e-6);
    return v;
}

/* ---- the builder --------------------------------------------------------------------------- */

static void *builder_main(void *arg)
{
    struct backend *b = arg;
    struct builder *g = &b->builder;
    struct err e = {""};
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        if (!g->cell) {
            pthread_cond_wait(&g->wake, &g->lock);
            continue;
        }
        struct cell *cell = g->cell;
        struct choice c = g->request;
        g->busy = true;
        g->cell = NULL;
        bool there = find(cell, &c) != NULL;
        pthread_mutex_unlock(&g->lock);
        if (!there && !make(b, &c, g->stream, &e))
            log_error("cuda", "a graph could not be captured: %s", e.msg);
        pthread_mutex_lock(&g->lock);
        cell->asked = false;
        g->busy = false;
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

struct variant *graph_get(struct backend *b, const struct choice *c, bool must, struct err *e)
{
    struct builder *g = &b->builder;
    struct cell *cell = graph_cell(b, c);
    pthread_mutex_lock(&g->lock);
    struct variant *v = find(cell, c);
    if (!v && !must)
        v = newest(cell);
    if (v && !same(&v->choice, c) && !g->cell && !cell->asked) {
        g->cell = cell;
        g->request = *c;
        cell->asked = true;
        pthread_cond_signal(&g->wake);
    }
    if (v)
        v->last_used = b->steps;
    pthread_mutex_unlock(&g->lock);
    return v ? v : make(b, c, b->stream, e);
}

bool graph_uses(struct backend *b, const struct kernel *k, bool drop)
{
    bool used = false;
    pthread_mutex_lock(&b->builder.lock);
    for (int i = 0; i < NARROW_BUCKETS * CONTEXT_BUCKETS; i++) {
        struct cell *cell = &b->cell[0][0] + i;
        bool asked = cell->asked && b->builder.request.kernel[k->region] == k;
        struct variant *current = newest(cell);
        for (int n = 0; n < VARIANTS; n++) {
            struct variant *v = &cell->variant[n];
            if (!v->exec || v->choice.kernel[k->region] != k)
                continue;
            if (drop && (v != current || cell->variant[n].last_used + 1 < b->steps)) {
                cudaGraphExecDestroy(v->exec);
                v->exec = NULL;
            } else {
                used = true;
            }
        }
        used |= asked;
    }
    pthread_mutex_unlock(&b->builder.lock);
    return used;
}

/* ---- opening ------------------------------------------------------------------------------- */

int graph_open(struct backend *b, struct err *e)
{
    struct builder *g = &b->builder;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    CU(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    if (pthread_create(&g->thread, NULL, builder_main, b))
        return err_set(e, "cuda: no thread for capturing graphs");
    g->running = true;
    return 0;
}

void graph_close(struct backend *b)
{
    struct builder *g = &b->builder;
    if (g->running) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_signal(&g->wake);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
        g->running = false;
    }
    for (int i = 0; i < NARROW_BUCKETS * CONTEXT_BUCKETS; i++)
        for (int n = 0; n < VARIANTS; n++) {
            struct variant *v = &(&b->cell[0][0] + i)->variant[n];
            if (v->exec)
                cudaGraphExecDestroy(v->exec);
            v->exec = NULL;
        }
    if (g->stream) {
        cudaStreamDestroy(g->stream);
        pthread_cond_destroy(&g->wake);
        pthread_mutex_destroy(&g->lock);
        g->stream = NULL;
    }
}
