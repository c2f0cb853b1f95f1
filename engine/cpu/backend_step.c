/* SPDX-License-Identifier: Apache-2.0 */
/* backend_step.c - one forward pass: the plan, walked once, then sampling.
 *
 * The residual stream alternates between two buffers (plan.h), so no region writes what it reads
 * and a compared kernel can run after it on the same inputs. Which kernel
 * fills a slot is read once, before the first region: a swap takes effect at the next step.
 */
#include <stdatomic.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/cpu/backend_private.h"
#include "engine/crash.h"

/* What the layers of one format class use of a region in this step (formats_place()). */
struct kernel_choice {
    struct slot *slot;
    const struct kernel *kernel;
    int64_t ns, runs;
    int64_t last_ns; /* of its last run */
};

/* The kernel of a place with these overrides; the eager one where it has no slot, or what is there
 * cannot take so many tokens or is broken. */
static struct kernel_choice choose_at(struct backend *b, int place, int32_t m, int32_t context,
                                      const struct overrides *o)
{
    enum region r = place_region(place);
    struct slot *slot = dispatch_slot_of_place(b->dispatch, place, m, context);
    struct kernel_choice c = {.slot = slot, .kernel = r < REGION_COUNT ? &b->eager[r] : NULL};
    if (!slot)
        return c;
    const struct kernel *k = slot_kernel_with(o, slot);
    c.kernel = k->m_max < m || backend_broken(k) ? &b->eager[r] : k;
    return c;
}

/* The kernels of this step. Returns the fused regions that have a kernel of their own. */
static uint32_t choose(struct backend *b, const struct step *s, const struct overrides *o,
                       struct kernel_choice choice[STEP_PLACES])
{
    uint32_t whole = 0;
    for (int p = 0; p < STEP_PLACES; p++) {
        enum region r = place_region(p);
        choice[p] = choose_at(b, p, region_m(r, s->m, s->rows), s->context, o);
        if (region_info(r)->parts && choice[p].slot && choice[p].kernel != &b->eager[r])
            whole |= 1u << r;
    }
    return whole;
}

static struct kernel_choice *choice_of(const struct backend *b, const struct plan_node *n,
                                       const struct step *s, struct kernel_choice *choice)
{
    int32_t m = region_m(n->region, s->m, s->rows);
    return &choice[formats_place(dispatch_formats(b->dispatch), n->region, n->layer, m)];
}

void backend_bind_packed(const struct kernel *k, enum region r, int32_t layer,
                         union region_args *args)
{
    const struct loaded *l = k->backend;
    struct weight *w[3];
    if (!l || !l->pack)
        return;
    for (int i = 0, n = bind_weights(args, r, w); i < n; i++)
        w[i]->packed = l->pack->data[3 * layer + i];
}

int64_t backend_run(struct backend *b, const struct kernel *k, int32_t layer,
                    const union region_args *args)
{
    const struct loaded *l = k->backend;
    int32_t m = bind_m(args, k->region);
    int64_t t0 = clock_ns();
    int rc = 0;
    if (l && l->executor) /* its faults are its process's */
        return executor_run(l->executor, b->pool, layer, args) == 0 ? clock_ns() - t0 : -1;
    crash_runs(k);
    if (k->region == REGION_REDUCE)
        rc = backend_run_reduce(b, k, &args->reduce);
    else
        pool_run(b->pool, k->cpu->run, args, k->cpu->scratch_bytes(m, pool_size(b->pool)));
    crash_runs(NULL);
    return rc == 0 ? clock_ns() - t0 : -1;
}

int64_t backend_run_parts(struct backend *b, enum region fused, int32_t layer,
                          const union region_args *args)
{
    int32_t m = bind_m(args, fused);
    int64_t sum = 0;
    for (int i = 0; i < region_info(fused)->parts; i++) {
        enum region r = region_info(fused)->part[i];
        const struct slot *slot = dispatch_slot(b->dispatch, r, layer, m, 0);
        const struct kernel *k = slot_kernel(slot);
        union region_args part;
        if (k->m_max < m || backend_broken(k))
            k = &b->eager[r];
        bind_part(fused, i, args, &part);
        backend_bind_packed(k, r, layer, &part);
        int64_t ns = backend_run(b, k, layer, &part);
        if (ns < 0)
            return -1;
        sum += ns;
    }
    return sum;
}

/* ---- the walk ------------------------------------------------------------------------------- */

struct sampling_job {
    const struct step *step;
    float *logits;
    char *scratch;
    int32_t vocab;
};

static void sample_rows(const void *args, const struct team *team)
{
    const struct sampling_job *j = args;
    void *scratch = j->scratch + team->rank * sampler_scratch_bytes(j->vocab);
    for (int32_t i = team->rank; i < j->step->rows; i += team->size)
        sampler_run(j->logits + (int64_t)i * j->vocab, j->vocab, &j->step->sample[i], scratch);
}

static void sample(struct backend *b, const struct step *s)
{
    struct sampling_job j = {s, b->logits, b->sampling, b->model->shape.vocab};
    if (!s->sample)
        return;
    if (s->rows > 1)
        pool_run(b->pool, sample_rows, &j, 0);
    else if (s->rows == 1)
        sampler_run(j.logits, j.vocab, &s->sample[0], j.scratch);
}

static void count(const struct kernel_choice *c, const struct step *s, int32_t m)
{
    struct slot_counters *k = &c->slot->counters;
    uint64_t runs = (uint64_t)c->runs;
    atomic_fetch_add_explicit(&k->steps, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->runs, runs, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->launches, runs, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->tokens, runs * (uint64_t)m, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->context, runs * (uint64_t)s->context, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->sequences, runs * (uint64_t)s->spans, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->ns, (uint64_t)c->ns, memory_order_relaxed);
}

static int check_step(const struct backend *b, const struct step *s, struct err *e)
{
    if (s->m < 1 || s->m > b->options.max_tokens)
        return err_set(e, "cpu: a step of %d tokens; the backend was opened for %d", s->m,
                       b->options.max_tokens);
    if (s->rows < 0 || s->rows > b->options.max_rows)
        return err_set(e, "cpu: a step with %d rows of logits; the backend was opened for %d",
                       s->rows, b->options.max_rows);
    for (int32_t i = 0; i < s->m; i++)
        if (s->position[i] < 0 || s->position[i] >= b->positions)
            return err_set(e, "cpu: position %d; the rope tables end at %d", s->position[i],
                           b->positions);
    return 0;
}

static struct step_memory memory_of(const struct backend *b, const struct step *s)
{
    return (struct step_memory){.m = s->m,
                                .rows = s->rows,
                                .spans = s->spans,
                                .tokens = s->tokens,
                                .position = s->position,
                                .kv_at = s->kv_at,
                                .row = s->row,
                                .page_table = s->page_table,
                                .span = s->span,
                                .rope_cos = b->rope_cos,
                                .rope_sin = b->rope_sin,
                                .x = {b->x[0], b->x[1]},
                                .zeros = b->zeros,
                                .partial = b->partial,
                                .area = backend_area(b, REDUCE_STEPS),
                                .q = b->q,
                                .a = b->a,
                                .h = b->h,
                                .logits = b->own_logits ? b->own_logits : b->logits,
                                .k_pages = backend_pages(b, 0, 0),
                                .v_pages = backend_pages(b, 0, 1),
                                .layer_bytes = backend_pages(b, 1, 0) - backend_pages(b, 0, 0)};
}

struct walk {
    struct backend *b;
    const struct step *step;
    struct step_memory memory;
    struct kernel_choice *choice;       /* [STEP_PLACES] */
    const struct kernel_choice *broken; /* whose kernel broke; NULL: none */
};

/* ---- ranks ---------------------------------------------------------------------------------- */

/* Each rank has the same number of the head's rows; where they overlap, the later rank's count, on
 * all ranks alike. */
int backend_gather(struct backend *b, int32_t rows, struct err *e)
{
    struct collective *c = b->options.collective;
    int32_t own = b->model->head.rows, vocab = b->model->shape.vocab;
    if (c->ops->all_gather(c, b->own_logits, b->gathered, (int64_t)rows * own, NULL, e))
        return -1;
    for (int32_t r = 0; r < c->world; r++) {
        int32_t from = shard_tokens(vocab, c->world, r).from;
        for (int32_t i = 0; i < rows; i++)
            memcpy(b->logits + (int64_t)i * vocab + from,
                   b->gathered + ((int64_t)r * rows + i) * own, (size_t)own * sizeof(float));
    }
    return 0;
}

/* ---- one node ------------------------------------------------------------------------------- */

/* A hook of a fused region sees its parts as one run: their inputs are still what they were, since
 * they lie in other buffers than what was written. */
static void observe_fused(const struct walk *w, const struct plan_node *n)
{
    for (int r = REGION_COUNT; r < REGION_LOCAL; r++) {
        const struct region_info *fused = region_info((enum region)r);
        const struct kernel_choice *c = &w->choice[r]; /* its layers are alike, if it has a slot */
        struct plan_node node = {.region = (enum region)r, .layer = n->layer};
        union region_args args;
        int64_t ns = 0;
        if (!c->slot || fused->part[fused->parts - 1] != n->region)
            continue;
        for (int i = 0; i < fused->parts; i++)
            ns += w->choice[fused->part[i]].last_ns;
        bind_node(w->b->model, &w->memory, &node, &args);
        backend_observe(w->b, c->slot, c->kernel, n->layer, w->step, &args, ns);
    }
}

static int lost(const struct backend *b, struct err *e)
{
    struct collective *c = b->options.collective;
    const char *why = c->ops->broken(c);
    return err_set(e, "%s", why ? why : "the ranks could not sum what they computed");
}

static int run(void *ctx, const struct plan_node *n, struct err *e)
{
    struct walk *w = ctx;
    union region_args args;
    if (n->region == (enum region)REGION_GATHER)
        return backend_gather(w->b, w->step->rows, e);
    struct kernel_choice *c = choice_of(w->b, n, w->step, w->choice);
    bind_node(w->b->model, &w->memory, n, &args);
    backend_bind_packed(c->kernel, n->region, n->layer, &args);
    int64_t ns = backend_run(w->b, c->kernel, n->layer, &args);
    if (ns < 0 && n->region == REGION_REDUCE)
        return lost(w->b, e);
    if (ns < 0) {
        w->broken = c;
        return -1;
    }
    c->ns += ns;
    c->last_ns = ns;
    c->runs++;
    if (w->step->progress_ns) /* a prompt's step may take minutes: it has not stalled */
        atomic_store_explicit(w->step->progress_ns, clock_ns(), memory_order_relaxed);
    if (c->slot)
        backend_observe(w->b, c->slot, c->kernel, n->layer, w->step, &args, ns);
    if (n->region == REGION_REDUCE && w->step->trial &&
        2 * n->layer + plan_node_turn(n) == w->step->trial->run)
        backend_trial_run(w->b, w->step->trial, n->layer, &args, ns);
    if (atomic_load_explicit(&w->b->hook, memory_order_relaxed))
        observe_fused(w, n);
    return 0;
}

/* 0, or -1: *broke is the choice whose kernel broke, or NULL, and then a rank is gone. */
static int walk(struct backend *b, const struct step *s, struct kernel_choice choice[STEP_PLACES],
                uint32_t whole, const struct kernel_choice **broke, struct err *e)
{
    struct walk w = {b, s, memory_of(b, s), choice, NULL};
    int rc = plan_walk(b->plan, s->rows, whole, run, &w, e);
    *broke = w.broken;
    return rc;
}

/* A kernel that breaks leaves its slot at once, and the step is walked again from its first region:
 * what the kernel computed before is not believed any more. Steps overwrite all that they wrote. */
int backend_step(struct backend *b, const struct step *s, const struct overrides *o, struct err *e)
{
    struct kernel_choice choice[STEP_PLACES];
    const struct kernel_choice *broke;
    if (check_step(b, s, e))
        return -1;
    do {
        uint32_t whole = choose(b, s, o, choice);
        if (walk(b, s, choice, whole, &broke, e) && !broke)
            return STEP_LOST;
        if (broke && b->options.collective) { /* the other ranks are behind some of the sums */
            err_set(e, "cpu: %s broke in a step of several ranks", broke->kernel->name);
            return STEP_LOST;
        }
        if (broke) {
            dispatch_withdraw(b->dispatch, broke->slot, broke->kernel);
            log_warn("cpu", "%s: %s broke: %s; eager serves from this step on", broke->slot->name,
                     broke->kernel->name, backend_broken(broke->kernel));
        }
    } while (broke);
    for (int p = 0; p < STEP_PLACES; p++)
        if (choice[p].runs && choice[p].slot)
            count(&choice[p], s, region_m(place_region(p), s->m, s->rows));
    sample(b, s);
    return 0;
}
