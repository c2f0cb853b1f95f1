/* SPDX-License-Identifier: Apache-2.0 */
/* engine_ranks.c - an engine whose model is computed by several processes.
 *
 * Rank 0 is the engine as ever, on its part of the model: it schedules and samples, and before it
 * runs a step it sends that step's inputs to the others, who do nothing but run what comes. Tokens
 * are drawn by rank 0 alone, out of logits that all ranks put together, so a step is started only
 * when the tokens before it are known on the host: nothing runs ahead here.
 *
 * The specializer is rank 0's: it proves and times kernels on that part of the model. What it loads
 * is loaded by all (the functions of the backend are wrapped for that), and the engine thread
 * latches the table between two steps and sends what changed with the step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/cores.h"
#include "config/log.h"
#include "engine/device_weights.h"
#include "engine/engine_private.h"
#include "engine/pairs.h"
#include "kernels/isa.h"

/* ---- both roles ------------------------------------------------------------------------------ */

struct ranks_options engine_ranks_options(const struct engine_options *o,
                                          const struct rank_place *place)
{
    return (struct ranks_options){.place = *place,
                                  .join_timeout_s = o->rank_join_s,
                                  .step_timeout_s = o->rank_step_s,
                                  .secret = getenv("WHET_RANKS_SECRET")};
}

/* Ranks that may run on the same CPUs share those; whoever has given each its own, as a launcher
 * does, has shared them out already. */
int32_t engine_ranks_threads(const struct ranks *r, int32_t asked)
{
    int32_t same = ranks_same_cpus(r), all = cores_usable();
    if (asked > 0 || same < 2)
        return asked;
    return cores_threads(0, all > same ? all / same : 1);
}

/* Whether kernels are searched for on this backend; if not, no memory is kept for them. */
bool engine_ranks_searched(const struct backend_ops *ops)
{
    return ops->ranks && ops->ranks->searched;
}

/* Makes the dispatch table. All ranks have the same slots, whatever part of the model they have. */
struct dispatch *engine_ranks_table(const struct backend_ops *ops, struct backend *b,
                                    const struct model *m)
{
    const struct kernel *eager[REGION_NODES];
    bool reduces = ops->ranks->reduces && ops->eager(b, REGION_REDUCE);
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = ops->eager(b, (enum region)r);
    if (reduces)
        eager[REGION_REDUCE] = ops->eager(b, REGION_REDUCE);
    struct formats *formats = formats_open(m, ops->machine(b)->kind);
    return reduces ? dispatch_open_ranks(eager, formats) : dispatch_open(eager, formats);
}

static uint64_t mix(uint64_t h, int64_t v)
{
    for (int i = 0; i < 8; i++)
        h = (h ^ (uint64_t)(v >> 8 * i & 255)) * 0x100000001b3u;
    return h;
}

static uint64_t mix_weight(uint64_t h, const struct weight *w)
{
    return mix(mix(mix(h, w->type), w->rows), w->cols);
}

/* A hash of everything that a kernel of the region is compiled for and proved with, instruction
 * sets included. */
static uint64_t shape_of(const struct model *m, enum region r)
{
    const struct model_shape *s = &m->shape;
    const struct isa_facts *isa = isa_facts();
    const int64_t fact[] = {r,
                            s->layers,
                            s->hidden,
                            s->head_dim,
                            s->heads,
                            s->kv_heads,
                            s->kv_bf16,
                            isa->HAS_AVX2,
                            isa->HAS_AVX512,
                            isa->HAS_VNNI,
                            isa->HAS_AMX,
                            isa->HAS_NEON,
                            isa->HAS_DOTPROD,
                            isa->HAS_I8MM};
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++)
        h = mix(h, fact[i]);
    if (r == REGION_EMBED)
        return mix_weight(h, &m->embed);
    if (r == REGION_HEAD)
        return mix_weight(h, &m->head);
    for (int32_t i = 0; i < s->layers; i++) {
        const struct layer *l = &m->layer[i];
        const struct weight *w[REGION_NODES][3] = {
            [REGION_ATTN_IN] = {&l->wq, &l->wk, &l->wv},
            [REGION_ATTN_OUT] = {&l->wo},
            [REGION_MLP_IN] = {&l->gate, &l->up},
            [REGION_MLP_OUT] = {&l->down},
        };
        for (int k = 0; k < 3 && w[r][k]; k++)
            h = mix_weight(h, w[r][k]);
    }
    return h;
}

struct wire_part engine_ranks_part(const struct model *m, const struct backend_ops *ops,
                                   const struct backend_options *o)
{
    struct wire_part p = {.kv_room = 0};
    snprintf(p.hash, sizeof p.hash, "%s", m->hash);
    snprintf(p.backend, sizeof p.backend, "%s", ops->name);
    if (ops->ranks && ops->ranks->device)
        ops->ranks->device(p.device, sizeof p.device);
    if (ops->kv_room)
        p.kv_room = ops->kv_room(m, o, &p.page_bytes);
    for (int r = 0; r < REGION_NODES; r++)
        p.shape[r] = shape_of(m, (enum region)r);
    return p;
}

struct model *engine_ranks_open_part(const char *path, const struct ranks *r, bool with_tokenizer,
                                     model_progress_fn *progress, void *ctx, struct err *err)
{
    int64_t read = 0;
    int32_t rank = ranks_rank(r), world = ranks_world(r);
    struct model *m = model_open_part(path, world, rank, with_tokenizer, progress, ctx, &read, err);
    if (m)
        log_info("engine",
                 "rank %d of %d: heads %d to %d, KV heads %d to %d, feed-forward columns %d to %d, "
                 "tokens %d to %d; %.0f MiB read",
                 rank, world, m->shard.heads.from, m->shard.heads.from + m->shard.heads.count - 1,
                 m->shard.kv_heads.from, m->shard.kv_heads.from + m->shard.kv_heads.count - 1,
                 m->shard.ffn.from, m->shard.ffn.from + m->shard.ffn.count - 1, m->shard.vocab.from,
                 m->shard.vocab.from + m->shard.vocab.count - 1, (double)read / 1048576);
    return m;
}

/* A part was read into memory of this process, which the system cannot take back as it could the
 * pages of a mapped file. */
void engine_ranks_drop(struct model *m, const struct backend_ops *ops)
{
    if (ops->copies_weights)
        model_drop_matrices(m);
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Called on the watching thread or on the engine thread. */
static void on_lost(void *ctx, const char *why)
{
    struct engine *e = ctx;
    (void)why;
    pthread_mutex_lock(&e->lock);
    atomic_store(&e->rank_lost, true);
    atomic_store(&e->inbox, true);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

int engine_ranks_open(struct engine *e, const struct rank_place *place, struct err *err)
{
    struct ranks_options o = engine_ranks_options(&e->options, place);
    o.on_lost = on_lost;
    o.ctx = e;
    engine_say(e, 0, "waiting for %d ranks", place->world - 1);
    e->ranks = ranks_open(&o, err);
    if (e->ranks)
        e->options.threads = engine_ranks_threads(e->ranks, e->options.threads);
    return e->ranks ? 0 : -1;
}

struct model *engine_ranks_model(struct engine *e, model_progress_fn *progress, struct err *err)
{
    return engine_ranks_open_part(e->options.model, e->ranks, true, progress, e, err);
}

/* ---- kernels on all ranks -------------------------------------------------------------------- */

/* A process is rank 0 of one model at most; the specializer knows its backend alone. */
static _Atomic(struct engine *) leader;

/* The other ranks load the kernel first: if one of them cannot, none keeps it. */
static struct kernel *load_on_all(struct backend *b, const struct kernel_object *o, struct err *err)
{
    struct engine *e = atomic_load(&leader);
    int32_t number;
    if (o->text) {
        err_set(err, "%s: several ranks take no kernels that a language model wrote", o->path);
        return NULL;
    }
    struct kernel *k = e->one_ops->load(b, o, err);
    if (k && ranks_load(e->ranks, o, &number, err) != 0) {
        e->one_ops->unload(b, k);
        return NULL;
    }
    if (k)
        k->number = number;
    return k;
}

static void unload_on_all(struct backend *b, struct kernel *k)
{
    struct engine *e = atomic_load(&leader);
    if (k)
        ranks_unload(e->ranks, k->number);
    e->one_ops->unload(b, k);
}

static const char *broken_anywhere(struct backend *b, const struct kernel *k)
{
    struct engine *e = atomic_load(&leader);
    const char *here = e->one_ops->broken ? e->one_ops->broken(b, k) : NULL;
    return here ? here : ranks_broke(e->ranks, k->number);
}

/* ---- kernels of reduce, which all ranks run at once ----------------------------------------- */

/* A slice is rank 0's alone but for these: the others are told to run with it. */
static int timed_run(struct backend *b, struct bench_job *job, int side, float *ns, struct err *err)
{
    enum { CALLS = 16 }; /* back to back: one takes a few microseconds */
    struct engine *e = atomic_load(&leader);
    const struct kernel *k = side ? job->b : job->a;
    struct wire_timing t = {k->number, job->inputs->m, CALLS};
    int64_t took = 0;
    if (ranks_send_timing(e->ranks, &t, err))
        return -1;
    int rc = e->one_ops->time_reduce(b, k, t.m, CALLS, &took, err);
    ranks_step_ran(e->ranks);
    *ns = (float)took / CALLS;
    return rc;
}

static int bench_begin_on_all(struct backend *b, struct bench_job *job, struct err *err)
{
    struct engine *e = atomic_load(&leader);
    if (job->slot->region != REGION_REDUCE)
        return e->one_ops->bench_begin(b, job, err);
    if (!job->inputs || job->inputs->m > job->a->m_max || job->inputs->m > job->b->m_max)
        return err_set(err, "bench of %s: no inputs, or more than a kernel takes", job->slot->name);
    job->state = xcalloc(1, sizeof(struct pairs));
    return 0;
}

static int bench_on_all(struct backend *b, struct bench_job *job, int64_t budget_ns,
                        struct err *err)
{
    struct engine *e = atomic_load(&leader);
    int64_t until = clock_ns() + budget_ns;
    if (job->slot->region != REGION_REDUCE)
        return e->one_ops->bench(b, job, budget_ns, err);
    if (!job->state && bench_begin_on_all(b, job, err))
        return -1;
    return pairs_run(job->state, b, job, until, timed_run, err);
}

static void bench_end_on_all(struct backend *b, struct bench_job *job)
{
    struct engine *e = atomic_load(&leader);
    if (job->slot->region != REGION_REDUCE) {
        e->one_ops->bench_end(b, job);
        return;
    }
    free(job->state);
    job->state = NULL;
}

/* Steps of several ranks run no fused regions: their kernels would add the residual, which `reduce`
 * adds.
 */
void engine_ranks_ops(struct engine *e, struct backend_options *o)
{
    o->texts = false;
    if (!engine_ranks_searched(e->ops)) {
        o->pack_bytes = 0;
        o->probes = false;
    }
    e->one_ops = e->ops;
    e->own_ops = *e->ops;
    e->own_ops.step_start = NULL;
    e->own_ops.step_wait = NULL;
    e->own_ops.fused = NULL;
    e->own_ops.load = load_on_all;
    e->own_ops.unload = unload_on_all;
    e->own_ops.broken = broken_anywhere;
    if (e->one_ops->time_reduce) {
        e->own_ops.bench_begin = bench_begin_on_all;
        e->own_ops.bench = bench_on_all;
        e->own_ops.bench_end = bench_end_on_all;
    }
    e->ops = &e->own_ops;
    atomic_store(&leader, e);
}

int32_t engine_ranks(const struct engine *e)
{
    return e->ranks ? ranks_world(e->ranks) : 1;
}

int64_t engine_rank_table(const struct engine *e, int32_t rank)
{
    return ranks_version(e->ranks, rank);
}

int32_t engine_rank_unequal(const struct engine *e, enum region r)
{
    return e->ranks ? ranks_unequal(e->ranks, r) : 0;
}

int engine_ranks_agree(struct engine *e, struct backend_options *o, struct err *err)
{
    struct wire_part part = engine_ranks_part(e->model, e->ops, o);
    struct wire_setup setup = {.kv_pages = o->kv_pages,
                               .max_tokens = o->max_tokens,
                               .max_rows = o->max_rows,
                               .own_formats = e->model->own_formats,
                               .bf16_copies = e->model->bf16_copies,
                               .e4m3_products = e->model->e4m3_products,
                               .kv_bf16 = e->model->shape.kv_bf16};
    engine_say(e, 0.95, "waiting for the other ranks to load the model");
    if (ranks_agree(e->ranks, e->ops, &part, &setup, err))
        return -1;
    o->kv_pages = setup.kv_pages;
    o->collective = ranks_collective(e->ranks, e->ops, &setup, err);
    return o->collective ? 0 : -1;
}

static void note_change(void *ctx, int slot, const struct kernel *k)
{
    struct wire_table *t = ctx;
    struct wire_change *change = (struct wire_change *)t->change;
    change[t->changes++] = (struct wire_change){slot, k->number};
}

/* With `trial`, if it is not NULL, beside the step. */
static int send_step(struct engine *e, const struct step *s, const struct overrides *o,
                     const struct step_trial *trial, struct err *err)
{
    struct wire_table t = {.trial_slot = -1, .beside_run = -1};
    if (!e->changes)
        e->changes = xcalloc((size_t)dispatch_slots(e->dispatch), sizeof *e->changes);
    t.change = e->changes;
    dispatch_latch(e->dispatch, note_change, &t);
    if (o) { /* of one, as tuning.h says */
        t.trial_slot = (int32_t)(o->of[0].slot - dispatch_slot_at(e->dispatch, 0));
        t.trial = o->of[0].kernel->number;
    }
    if (trial) {
        t.beside_run = trial->run;
        t.beside = trial->kernel->number;
    }
    return ranks_send_step(e->ranks, s, &t, err);
}

int engine_ranks_send(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err)
{
    return send_step(e, s, o, NULL, err);
}

int engine_ranks_step(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err)
{
    struct step_trial trial;
    struct step own = *s;
    int rc = STEP_LOST;
    if (e->ops->trial && e->ops->trial(e->backend, s, &trial))
        own.trial = &trial;
    if (send_step(e, &own, o, own.trial, err) == 0) {
        rc = e->ops->step(e->backend, &own, o, err);
        ranks_step_ran(e->ranks);
    }
    if (own.trial)
        e->ops->trial(e->backend, NULL, NULL);
    if (rc < 0) /* the other ranks ran the step or wait in it */
        rc = STEP_LOST;
    return rc;
}
