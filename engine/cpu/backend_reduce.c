/* SPDX-License-Identifier: Apache-2.0 */
/* backend_reduce.c - the region that ranks compute together: run, on trial beside a step, and
 * timed.
 *
 * Eager is the collective, whatever the size; it sleeps where kernels would spin. Kernels meet in
 * areas of the collective (kernels/args.h): those of the steps in one, those on trial in another,
 * so that neither uses the other's turns. Whatever runs, all ranks run it: what is on trial in a
 * step comes with the step (engine/engine_ranks.c), what is timed with a message of its own.
 */
#include <stdatomic.h>

#include "config/clock.h"
#include "engine/cpu/backend_private.h"

const struct reduce_area *backend_area(const struct backend *b, enum reduce_use use)
{
    struct collective *c = b->options.collective;
    return c && c->ops->area ? c->ops->area(c, use) : NULL;
}

static int eager(struct collective *c, const struct reduce_args *a)
{
    int64_t n = (int64_t)a->m * a->n;
    struct err unused; /* the collective keeps it */
    if (c->ops->all_reduce(c, a->x, a->out, n, NULL, &unused))
        return -1;
    for (int64_t i = 0; i < n; i++)
        a->out[i] += a->residual[i];
    return 0;
}

/* A kernel leaves the flags of slices that it does not have where they are. After 2^30 calls they
 * would look as if they were ahead of a call (REDUCE_CAME), so all of them are set at times to what
 * this rank, which has ended the call, would have set last. */
static void set_idle_flags(const struct reduce_area *a)
{
    enum { OFTEN = 1 << 20 };
    if (*a->calls % OFTEN != 0)
        return;
    for (int i = 0; i < REDUCE_SLICES; i++)
        __atomic_store_n(a->flag[a->rank] + i * REDUCE_FLAG, REDUCE_MEETING(*a->calls, 1),
                         __ATOMIC_SEQ_CST);
}

int backend_run_reduce(struct backend *b, const struct kernel *k, const struct reduce_args *a)
{
    struct collective *c = b->options.collective;
    if (!k->backend)
        return eager(c, a);
    if (c->ops->broken(c))
        return -1;
    pool_run(b->pool, k->cpu->run, a, k->cpu->scratch_bytes(a->m, pool_size(b->pool)));
    ++*a->area->calls;
    set_idle_flags(a->area);
    return c->ops->broken(c) ? -1 : 0;
}

/* ---- beside a step -------------------------------------------------------------------------- */

bool backend_trial(struct backend *b, const struct step *s, struct step_trial *trial)
{
    if (!s) {
        b->on_trial = false;
        atomic_store(&b->hook_held, false);
    }
    if (!s || !atomic_load_explicit(&b->hook, memory_order_relaxed))
        return false;
    atomic_store(&b->hook_held, true);
    struct hook *t = atomic_load(&b->hook);
    if (hook_tries_reduce(t, b->dispatch, s->m, s->m, &b->matches)) {
        int32_t runs = region_runs(REGION_REDUCE, b->model->shape.layers);
        *trial = (struct step_trial){t->kernel, b->trial_run++ % runs};
        b->on_trial = true; /* until the step has ended */
        return true;
    }
    atomic_store(&b->hook_held, false);
    return false;
}

void backend_trial_run(struct backend *b, const struct step_trial *trial, int32_t layer,
                       const union region_args *args, int64_t served_ns)
{
    struct hook *t = b->options.collective->rank == 0 ? atomic_load(&b->hook) : NULL;
    union region_args own = *args;
    if (t) {
        backend_compare(b, t, REGION_REDUCE, layer, args, served_ns);
        atomic_fetch_sub(&t->left, 1);
        return;
    }
    own.reduce.out = backend_spare(b, (int64_t)own.reduce.m * own.reduce.n);
    own.reduce.area = backend_area(b, REDUCE_TRIALS);
    backend_run_reduce(b, trial->kernel, &own.reduce);
}

/* ---- timed ---------------------------------------------------------------------------------- */

/* On what the last step left in the buffers. All ranks begin at about the same time. */
int backend_time_reduce(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                        int64_t *ns, struct err *e)
{
    struct collective *c = b->options.collective;
    int32_t n = b->model->shape.hidden;
    if (m < 1 || m > b->options.max_tokens || m > k->m_max || calls < 1)
        return err_set(e, "cpu: reduce of %d tokens, %d times", m, calls);
    struct reduce_args a = {.m = m,
                            .n = n,
                            .x = b->partial,
                            .residual = b->x[0],
                            .out = backend_spare(b, (int64_t)m * n),
                            .area = backend_area(b, REDUCE_TRIALS)};
    if (c->ops->barrier(c, e))
        return -1;
    int64_t t0 = clock_ns();
    for (int32_t i = 0; i < calls; i++)
        if (backend_run_reduce(b, k, &a))
            return err_set(e, "%s", c->ops->broken(c));
    *ns = clock_ns() - t0;
    return 0;
}
