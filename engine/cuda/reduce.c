/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - sums over ranks: eager is the collective's own call, a loaded kernel meets those of
 * the other ranks in an area of the collective's (kernels/peer.h).
 *
 * Whatever runs, all ranks run it, in the same order: a step's kernels are those of its table, what
 * is on trial beside one comes with the step, what is timed with a message of its own
 * (engine/engine_ranks.c). Steps meet in one area and trials in another, so neither uses the
 * other's turns; in each area all ranks make the same calls.
 *
 * A kernel of REDUCE_WORDS may not have to run: where the projection before it is a template that
 * can, that adds the ranks' numbers at its own end, which saves a kernel (reduce_aim). Both do the
 * same to the ranks' memory, so it is each rank's own affair: a step that a hook observes, or that
 * is timed, has them apart.
 *
 * A timed run is a graph of calls, launched twice: the first time the ranks meet, and when the
 * second one begins it lies ready on all of them, so no host's delay is in its time.
 */
#include "engine/cuda/reduce.h"

#include <stdatomic.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

const struct peer_area *reduce_area(const struct backend *b, enum reduce_use use)
{
    struct collective *c = b->options.collective;
    struct reduce_area *a = c && c->ops->area ? c->ops->area(c, use) : NULL;
    return a ? a->host : NULL;
}

void reduce_fill(const struct walk *w, struct peer_reduce_args *a)
{
    *a = (struct peer_reduce_args){.x = w->sum.x,
                                   .residual = w->sum.residual,
                                   .out = w->sum.out,
                                   .m = w->m,
                                   .turn = w->sum.turn,
                                   .area = *reduce_area(w->b, w->sum.use)};
}

static bool sums(const struct kernel *k)
{
    const struct loaded *l = k ? k->backend : NULL;
    return l && !l->lt && l->info.sums;
}

/* Whether the projection of region `of` makes the sum behind it. */
static bool fused(const struct walk *w, enum region of, int32_t layer)
{
    bool out = of == REGION_ATTN_OUT || of == REGION_MLP_OUT;
    const struct kernel *k = out ? walk_kernel(w, of, layer) : NULL;
    return w->b->partial && !w->live && !w->timed && sums(k) && k->m_max == w->m &&
           sums(w->choice->kernel[REGION_REDUCE]);
}

/* Steps have attn_out's sums in turn 0 and mlp_out's in turn 1, so calls take turns. */
void reduce_aim(struct walk *w, const struct plan_node *n)
{
    w->fused = (struct cuda_sum){.area = {.world = 0}};
    if (!fused(w, n->region, n->layer))
        return;
    w->fused.area = *reduce_area(w->b, REDUCE_STEPS);
    w->fused.turn = n->region == REGION_MLP_OUT;
    w->y = w->b->x[region_info(n->region)->y];
}

/* The sum of all ranks, then the residual, in one kernel or in two. */
int reduce_eager(struct walk *w, struct err *e)
{
    struct collective *c = w->b->options.collective;
    const struct summed *s = &w->sum;
    int32_t hidden = w->b->model->shape.hidden;
    int64_t n = (int64_t)w->m * hidden;
    int rc = c->ops->reduce ? c->ops->reduce(c, s->x, s->residual, s->out, n, w->stream, e) : 1;
    struct eager_add_args a = {&w->block->counts->m, s->residual, s->out, hidden};
    w->launches[REGION_REDUCE]++;
    if (rc <= 0)
        return rc;
    return c->ops->all_reduce(c, s->x, s->out, n, w->stream, e) ||
                   launch(w, PRIM_ADD, (dim3){(unsigned)(hidden + 1023) / 1024, (unsigned)w->m, 1},
                          256, 0, &a, e)
               ? -1
               : 0;
}

/* Beside the run that just was, on the same inputs: compared where the hook is, run elsewhere. */
static int run_trial(struct walk *w, const struct plan_node *n, const struct step_trial *t,
                     struct err *e)
{
    struct walk other = *w;
    if (w->b->options.collective->rank == 0)
        return hook_compare(w, t->kernel, REGION_REDUCE, n->layer, e);
    spare_aim(&other, REGION_REDUCE);
    return walk_region(&other, t->kernel, REGION_REDUCE, n->layer, e);
}

static int mark(const struct walk *w, const struct plan_node *n, int end, struct err *e)
{
    if (w->choice->slot[REGION_REDUCE] && plan_node_turn(n) == 0 &&
        walk_times(w, REGION_REDUCE, n->layer))
        CU(cudaEventRecord(w->timed->region_event[REGION_REDUCE][end], w->stream));
    return 0;
}

int reduce_run(struct walk *w, const struct plan_node *n, struct err *e)
{
    struct backend *b = w->b;
    const struct region_info *of = region_info(n->of);
    const struct kernel *k = w->choice->kernel[REGION_REDUCE];
    const struct step_trial *t = w->live ? w->live->trial : NULL;
    bool tried = t && t->run == 2 * n->layer + plan_node_turn(n);
    bool watched = w->live && !t && plan_node_turn(n) == 0;
    if (fused(w, n->of, n->layer))
        return 0;
    w->sum = (struct summed){b->partial, b->x[of->x], b->x[of->y], REDUCE_STEPS, plan_node_turn(n)};
    if (mark(w, n, 0, e) || (watched && hook_before(w, REGION_REDUCE, n->layer, e)))
        return -1;
    if (tried)
        CU(cudaEventRecord(b->spare.event[0], w->stream));
    if (walk_region(w, k ? k : &b->eager[REGION_REDUCE], REGION_REDUCE, n->layer, e) ||
        mark(w, n, 1, e))
        return -1;
    if (tried)
        CU(cudaEventRecord(b->spare.event[1], w->stream));
    if (tried && run_trial(w, n, t, e))
        return -1;
    return watched ? hook_after(w, REGION_REDUCE, n->layer, e) : 0;
}

/* ---- on trial ------------------------------------------------------------------------------- */

bool cuda_trial(struct backend *b, const struct step *s, struct step_trial *trial)
{
    if (!s)
        atomic_store(&b->hook_held, false);
    if (!s || !atomic_load_explicit(&b->hook, memory_order_relaxed))
        return false;
    atomic_store(&b->hook_held, true);
    struct hook *t = atomic_load(&b->hook);
    if (hook_tries_reduce(t, b->dispatch, s->m, walk_padded(s->m), &b->matches)) {
        int32_t runs = region_runs(REGION_REDUCE, b->model->shape.layers);
        *trial = (struct step_trial){t->kernel, b->trials.run++ % runs};
        return true; /* the hook is held until the step has ended */
    }
    atomic_store(&b->hook_held, false);
    return false;
}

/* ---- timed ---------------------------------------------------------------------------------- */

static int capture_calls(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                         cudaGraphExec_t *exec, struct err *e)
{
    struct kernel_choice choice = {.m = walk_padded(m)};
    struct walk w;
    int failed = 0;
    walk_init(&w, b, b->stream, &b->narrow, &choice);
    w.sum = (struct summed){b->partial, b->x[0], b->spare.y, REDUCE_TRIALS, 0};
    CU(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int32_t i = 0; i < calls && !failed; i++) {
        w.sum.turn = i & 1;
        failed = walk_region(&w, k, REGION_REDUCE, 0, e);
    }
    return graph_capture_end(b->stream, failed, exec, false, e);
}

/* The graph of so many calls: two kernels take turns. */
static struct timed_sum *timed(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                               struct err *e)
{
    struct reduce_trials *r = &b->trials;
    for (int i = 0; i < REDUCE_TIMED; i++) {
        struct timed_sum *t = &r->timed[i];
        if (t->exec && t->kernel == k && t->m == m && t->calls == calls)
            return t;
    }
    struct timed_sum *t = &r->timed[r->next];
    r->next = (r->next + 1) % REDUCE_TIMED;
    if (t->exec)
        cudaGraphExecDestroy(t->exec);
    *t = (struct timed_sum){k, m, calls, NULL};
    return capture_calls(b, k, m, calls, &t->exec, e) ? NULL : t;
}

/* On what the last step left in the buffers. */
int cuda_time_reduce(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                     int64_t *ns, struct err *e)
{
    float ms = 0;
    if (m < 1 || m > NARROW || m > b->options.max_tokens || walk_padded(m) > k->m_max ||
        calls < 1 || calls % 2) /* the graph is launched again, and turns alternate */
        return err_set(e, "cuda: reduce of %d tokens, %d times", m, calls);
    const struct timed_sum *t = timed(b, k, m, calls, e);
    if (!t)
        return -1;
    CU(cudaGraphLaunch(t->exec, b->stream));
    CU(cudaEventRecord(b->spare.event[2], b->stream));
    CU(cudaGraphLaunch(t->exec, b->stream));
    CU(cudaEventRecord(b->spare.event[3], b->stream));
    CU(cudaEventSynchronize(b->spare.event[3]));
    CU(cudaEventElapsedTime(&ms, b->spare.event[2], b->spare.event[3]));
    const char *why = b->options.collective->ops->broken(b->options.collective);
    if (why)
        return err_set(e, "%s", why);
    *ns = (int64_t)((double)ms * 1e6);
    return 0;
}

void reduce_forget(struct backend *b, const struct kernel *k)
{
    for (int i = 0; i < REDUCE_TIMED; i++) {
        struct timed_sum *t = &b->trials.timed[i];
        if (t->exec && (!k || t->kernel == k)) {
            cudaGraphExecDestroy(t->exec);
            t->exec = NULL;
        }
    }
}

void reduce_close(struct backend *b)
{
    reduce_forget(b, NULL);
}
