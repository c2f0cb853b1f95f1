/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - steps as graphs: one for each number of tokens, context bucket and set of kernels.
 *
 * A step of up to NARROW tokens, one of each sequence, is captured once and launched from then on.
 * A cell (M bucket x context bucket) keeps a few variants, least recently used out: the kernels in
 * the slots now, and those that a canary compares them with. When a slot got another kernel, the
 * engine thread goes on with the variant it has, and the builder thread captures the new one on a
 * stream of its own; from the boundary after that the step uses it. So a swap costs a step nothing.
 * The engine thread never captures: where no variant will do it launches the step uncaptured,
 * kernel by kernel. That is so in a cell that is new, and where a slot went back to eager or to the
 * kernel before its last, perhaps because that is wrong: such a kernel must not run once more, nor
 * may one that was unloaded since the cell's last step. For the same reason a variant that was made
 * for a canary runs in the canary's steps only, until its kernel is in the slot.
 *
 * Wide steps in which every sequence has one token have cells too, by their padded number and the
 * context bucket, and get a graph when they come for the second time. Others are of too many kinds
 * to have a graph each, but long prompts are read in steps that are all alike. One that comes again
 * and again gets a graph for exactly its padded numbers of tokens, rows and tiles of attention; any
 * other is launched uncaptured. Between two kernels of a stream lie 2 to 5 us more than between two
 * nodes of a graph.
 *
 * Making an executable takes the driver's lock for as long as a small model's step. Where the least
 * recently used variant has the same nodes, it is updated instead, which takes a fraction of that.
 * But an update leaves a node's cluster as it was, and says that all is well (seen with CUDA 13.0:
 * blocks that should have added their parts did not): so only among launches with equal clusters.
 *
 * The lock covers the cells and the request, never a capture. A variant in use is never evicted:
 * only the engine thread launches, and it evicts nothing that it just got.
 */
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

enum {
    WIDE_REPEATS = 3,
    FAILED_STEPS = 1000,
    DECODE_REPEATS = 2,
    NARROW_CELLS = NARROW_BUCKETS * CONTEXT_BUCKETS,
    DECODE_CELLS = DECODE_WIDTHS * CONTEXT_BUCKETS,
    CELLS = NARROW_CELLS + DECODE_CELLS + WIDE_CELLS
};
_Static_assert(DECODE_WIDTHS == DECODE_MOST / NARROW - 1, "each width has a row of cells");

/* Whether steps of the two choices launch with the same grids. */
static bool alike(const struct kernel_choice *a, const struct kernel_choice *b)
{
    return a->m == b->m && a->rows == b->rows && a->context == b->context && a->tiles == b->tiles &&
           a->singles == b->singles && walk_padded(a->lead) == walk_padded(b->lead) &&
           a->decode == b->decode;
}

static bool same(const struct kernel_choice *a, const struct kernel_choice *b)
{
    return memcmp(a->kernel, b->kernel, sizeof a->kernel) == 0 && alike(a, b);
}

struct cell *graph_cell(struct backend *b, const struct kernel_choice *c)
{
    if (c->m > NARROW && c->m <= DECODE_MOST && c->decode)
        return &b->decode_cell[c->m / NARROW - 2][context_bucket_of(c->context)];
    if (c->m > NARROW)
        return &b->wide_cell[(c->m / NARROW + c->tiles + c->singles + 3 * (c->rows > 0)) %
                             WIDE_CELLS];
    return &b->cell[m_bucket_of(c->m)][context_bucket_of(c->context)];
}

static struct cell *cell_at(struct backend *b, int i)
{
    if (i < WIDE_CELLS)
        return &b->wide_cell[i];
    i -= WIDE_CELLS;
    return i < DECODE_CELLS ? &b->decode_cell[0][0] + i : &b->cell[0][0] + i - DECODE_CELLS;
}

static struct variant *find(struct cell *cell, const struct kernel_choice *c)
{
    for (int i = 0; i < VARIANTS; i++)
        if (cell->variant[i].exec && same(&cell->variant[i].choice, c))
            return &cell->variant[i];
    return NULL;
}

static struct variant *newest(struct cell *cell, bool trials)
{
    struct variant *best = NULL;
    for (int i = 0; i < VARIANTS; i++) {
        struct variant *v = &cell->variant[i];
        if (v->exec && (trials || !v->choice.trial) && (!best || v->last_used > best->last_used))
            best = v;
    }
    return best;
}

/* ---- capturing ----------------------------------------------------------------------------- */

/* Whether launches of the two differ in nothing but functions, grids and arguments. Only of loaded
 * kernels is that known: the library chooses clusters for its own. */
static bool launched_alike(const struct kernel *k, const struct kernel *other)
{
    if (k == other)
        return true;
    const struct loaded *a = k ? k->backend : NULL, *b = other ? other->backend : NULL;
    if (!a || !b || a->lt || b->lt || a->info.launches != b->info.launches ||
        a->info.sums != b->info.sums) /* one may be launched and the other not (reduce.c) */
        return false;
    for (int i = 0; i < a->info.launches; i++)
        if (a->info.launch[i].cluster != b->info.launch[i].cluster ||
            a->info.launch[i].pdl != b->info.launch[i].pdl)
            return false;
    return true;
}

/* Whether an executable of `a` can become one of `b`: it has the same nodes, and products of the
 * same widths, because those of others are other kernels. */
static bool updatable(const struct kernel_choice *a, const struct kernel_choice *b)
{
    for (int p = 0; p < STEP_PLACES; p++)
        if (!launched_alike(a->kernel[p], b->kernel[p]))
            return false;
    return a->m == b->m && a->rows == b->rows && a->decode == b->decode && !a->tiles == !b->tiles &&
           !a->singles == !b->singles;
}

static int executable(cudaGraph_t graph, cudaGraphExec_t *exec, bool update, struct err *e)
{
    cudaGraphExecUpdateResultInfo info;
    if (*exec && update && cudaGraphExecUpdate(*exec, graph, &info) == cudaSuccess)
        return 0;
    cudaGetLastError();
    if (*exec)
        cudaGraphExecDestroy(*exec);
    *exec = NULL;
    CU(cudaGraphInstantiate(exec, graph, 0));
    return 0;
}

int graph_capture_end(cudaStream_t stream, int failed, cudaGraphExec_t *exec, bool update,
                      struct err *e)
{
    cudaGraph_t graph = NULL;
    cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (!failed && !code)
        failed = executable(graph, exec, update, e);
    if (graph)
        cudaGraphDestroy(graph);
    if (failed)
        return -1;
    CU(code);
    return 0;
}

/* Captures the whole step, with the transfer of its block and of its tokens. */
static int capture(struct walk *w, cudaGraphExec_t *exec, bool update, struct err *e)
{
    CU(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal));
    int failed =
        (!w->wide && transfer_open(w, e)) || walk_step(w, e) || (!w->wide && transfer_close(w, e));
    if (graph_capture_end(w->stream, failed, exec, update, e))
        return -1;
    CU(cudaGraphUpload(*exec, w->stream));
    CU(cudaStreamSynchronize(w->stream));
    return 0;
}

/* The cell's place for another variant: an empty one, or the one longest unused; under the lock. */
static struct variant *place(struct cell *cell)
{
    struct variant *v = &cell->variant[0];
    for (int i = 1; i < VARIANTS; i++)
        if (!cell->variant[i].exec || (v->exec && cell->variant[i].last_used < v->last_used))
            v = &cell->variant[i];
    return v;
}

/* Takes the executable out of that place while the new one is made of it: the engine thread cannot
 * launch what is not there. */
static int make(struct backend *b, const struct kernel_choice *c, struct err *e)
{
    struct cell *cell = graph_cell(b, c);
    struct walk w;
    int64_t t0 = clock_ns();
    pthread_mutex_lock(&b->builder.lock);
    struct variant *v = place(cell);
    cudaGraphExec_t exec = v->exec;
    bool update = exec && updatable(&v->choice, c); /* the executable keeps its kernels loaded */
    if (exec)
        b->builder.leaving = v->choice; /* and until it is another's */
    v->exec = NULL;
    pthread_mutex_unlock(&b->builder.lock);
    walk_init(&w, b, b->builder.stream, c->m > NARROW ? &b->wide : &b->narrow, c);
    if (w.wide) {
        w.tiles = c->tiles;
        w.singles = c->singles;
        w.decode = c->decode;
        walk_floats(&w, false);
    }
    if (capture(&w, &exec, update, e)) {
        if (exec)
            cudaGraphExecDestroy(exec);
        return -1;
    }
    pthread_mutex_lock(&b->builder.lock);
    *v = (struct variant){.choice = *c, .exec = exec, .last_used = b->steps};
    memcpy(v->launches, w.launches, sizeof v->launches);
    pthread_mutex_unlock(&b->builder.lock);
    log_debug("cuda", "graph of m %d, context %d in %.2f ms", c->m, c->context,
              (double)(clock_ns() - t0) * 1e-6);
    return 0;
}

/* ---- the builder --------------------------------------------------------------------------- */

/* What failed is likely to fail again: an attempt at each step would delay that step and fill the
 * log. Under the lock. */
static void after_request(const struct backend *b, struct cell *cell, bool failed)
{
    cell->asked = false;
    if (failed)
        cell->not_before = b->steps + FAILED_STEPS;
}

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
        struct kernel_choice c = g->request;
        g->busy = true;
        g->making = g->leaving = c; /* the next request may come before this one is done */
        g->cell = NULL;
        bool there = find(cell, &c) != NULL;
        pthread_mutex_unlock(&g->lock);
        bool failed = !there && make(b, &c, &e);
        if (failed)
            log_error("cuda", "a graph could not be captured: %s", e.msg);
        pthread_mutex_lock(&g->lock);
        after_request(b, cell, failed);
        g->busy = false;
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* Under the lock. */
static void ask(struct backend *b, struct cell *cell, const struct kernel_choice *c)
{
    struct builder *g = &b->builder;
    if (g->cell || cell->asked || b->steps < cell->not_before)
        return;
    g->cell = cell;
    g->request = *c;
    cell->asked = true;
    pthread_cond_signal(&g->wake);
}

/* A kernel runs in `v` where `c` wants eager, or one that was loaded before it: it was taken out of
 * its slot, and did not make room for a better one. Nor did, as far as is known here, one that was
 * unloaded: in a cell that had no steps since, its graph is still the newest when the slot has long
 * had eager and then another kernel. */
static bool outdated(const struct variant *v, const struct kernel_choice *c)
{
    for (int p = 0; p < STEP_PLACES; p++) {
        const struct kernel *k = v->choice.kernel[p], *other = c->kernel[p];
        const struct loaded *want = other ? other->backend : NULL, *have = k ? k->backend : NULL;
        if (have && (!want || have->number > want->number || atomic_load(&have->retired)))
            return true;
    }
    return false;
}

struct variant *graph_get(struct backend *b, const struct kernel_choice *c)
{
    struct builder *g = &b->builder;
    struct cell *cell = graph_cell(b, c);
    pthread_mutex_lock(&g->lock);
    struct variant *v = find(cell, c);
    if (!v) {
        ask(b, cell, c);
        v = newest(cell, false);
        if (v && (b->options.collective || outdated(v, c))) /* ranks run all the same kernels */
            v = NULL;
    } else if (!c->trial) {
        v->choice.trial = false; /* the canary's kernel is in its slot now */
    }
    if (v)
        v->last_used = b->steps;
    pthread_mutex_unlock(&g->lock);
    return v;
}

struct variant *graph_get_wide(struct backend *b, const struct kernel_choice *c)
{
    struct builder *g = &b->builder;
    struct cell *cell = graph_cell(b, c);
    bool decode = c->decode && c->m <= DECODE_MOST;
    cell->repeats = alike(&cell->last, c) ? cell->repeats + 1 : 1;
    cell->last = *c;
    pthread_mutex_lock(&g->lock);
    struct variant *v = find(cell, c);
    if (v)
        v->last_used = b->steps;
    else if (cell->repeats >= (decode ? DECODE_REPEATS : WIDE_REPEATS))
        ask(b, cell, c);
    pthread_mutex_unlock(&g->lock);
    return v;
}

bool graph_known(struct backend *b, const struct kernel_choice *c)
{
    pthread_mutex_lock(&b->builder.lock);
    bool there = find(graph_cell(b, c), c) != NULL;
    pthread_mutex_unlock(&b->builder.lock);
    return there;
}

bool graph_there(struct backend *b, const struct kernel_choice *c)
{
    struct builder *g = &b->builder;
    struct cell *cell = graph_cell(b, c);
    pthread_mutex_lock(&g->lock);
    bool there = find(cell, c) != NULL;
    if (!there)
        ask(b, cell, c);
    pthread_mutex_unlock(&g->lock);
    return there;
}

void graph_timed(struct backend *b, const struct kernel_choice *c, const double share[STEP_PLACES])
{
    struct cell *cell = graph_cell(b, c);
    memcpy(cell->share, share, sizeof cell->share);
    pthread_mutex_lock(&b->builder.lock);
    struct variant *v = find(cell, c);
    if (v) {
        memcpy(v->share, share, sizeof v->share);
        v->timed = true;
    }
    pthread_mutex_unlock(&b->builder.lock);
}

static bool choice_uses(const struct kernel_choice *c, const struct kernel *k)
{
    for (int p = (int)k->region; p < STEP_PLACES; p += REGION_NODES)
        if (c->kernel[p] == k)
            return true;
    return false;
}

/* Whether the builder works on this variant or has it queued. Under the lock. */
static bool builder_uses(const struct builder *g, const struct kernel *k)
{
    return (g->cell && choice_uses(&g->request, k)) ||
           (g->busy && (choice_uses(&g->making, k) || choice_uses(&g->leaving, k)));
}

bool graph_uses(struct backend *b, const struct kernel *k, bool drop)
{
    pthread_mutex_lock(&b->builder.lock);
    bool used = builder_uses(&b->builder, k);
    for (int i = 0; i < CELLS; i++) {
        struct cell *cell = cell_at(b, i);
        struct variant *current = newest(cell, true);
        for (int n = 0; n < VARIANTS; n++) {
            struct variant *v = &cell->variant[n];
            if (!v->exec || !choice_uses(&v->choice, k))
                continue;
            if (drop && (v != current || cell->variant[n].last_used + 1 < b->steps)) {
                cudaGraphExecDestroy(v->exec);
                v->exec = NULL;
            } else {
                used = true;
            }
        }
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
    for (int i = 0; i < CELLS; i++)
        for (int n = 0; n < VARIANTS; n++) {
            struct variant *v = &cell_at(b, i)->variant[n];
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
