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
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/device_weights.h"
#include "engine/engine_private.h"
#include "engine/ranks_loader.h"
#include "kernels/isa.h"

/* ---- both roles ------------------------------------------------------------------------------ */

static struct ranks_options ranks_options_of(const struct engine_options *o,
                                             const struct rank_place *place)
{
    return (struct ranks_options){.place = *place,
                                  .join_timeout_s = o->rank_join_s,
                                  .step_timeout_s = o->rank_step_s,
                                  .secret = getenv("WHET_RANKS_SECRET")};
}

/* Ranks of a machine share its cores, unless whoever started them has shared those out. */
static int32_t threads_of(const struct ranks *r, int32_t asked)
{
    cpu_set_t set;
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t local = ranks_local(r);
    if (asked > 0 || local < 2 || sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) < all)
        return asked;
    int32_t share = (int32_t)all / local;
    return share > 0 ? share : 1;
}

/* Whether kernels are searched for on this backend; if not, no memory is kept for them. */
static bool searched(const struct backend_ops *ops)
{
    return ops->ranks && ops->ranks->searched;
}

/* Makes the dispatch table. All ranks have the same slots, whatever part of the model they have. */
struct dispatch *engine_ranks_table(const struct backend_ops *ops, struct backend *b)
{
    bool reduces = ops->ranks->reduces;
    const struct kernel *eager[REGION_NODES];
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = ops->eager(b, (enum region)r);
    if (reduces)
        eager[REGION_REDUCE] = ops->eager(b, REGION_REDUCE);
    return reduces ? dispatch_open_ranks(eager) : dispatch_open(eager);
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

static struct wire_part part_of(const struct model *m, const struct backend_ops *ops,
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

static struct model *open_part(const char *path, const struct ranks *r, bool with_tokenizer,
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
    struct ranks_options o = ranks_options_of(&e->options, place);
    o.on_lost = on_lost;
    o.ctx = e;
    engine_say(e, 0, "waiting for %d ranks", place->world - 1);
    e->ranks = ranks_open(&o, err);
    if (e->ranks)
        e->options.threads = threads_of(e->ranks, e->options.threads);
    return e->ranks ? 0 : -1;
}

struct model *engine_ranks_model(struct engine *e, model_progress_fn *progress, struct err *err)
{
    return open_part(e->options.model, e->ranks, true, progress, e, err);
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

/* Steps of several ranks run no spans: a span's kernel would add the residual, which `reduce` adds.
 */
void engine_ranks_ops(struct engine *e, struct backend_options *o)
{
    o->texts = false;
    if (!searched(e->ops)) {
        o->pack_bytes = 0;
        o->probes = false;
    }
    e->one_ops = e->ops;
    e->own_ops = *e->ops;
    e->own_ops.step_start = NULL;
    e->own_ops.step_wait = NULL;
    e->own_ops.span = NULL;
    e->own_ops.load = load_on_all;
    e->own_ops.unload = unload_on_all;
    e->own_ops.broken = broken_anywhere;
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
    struct wire_part part = part_of(e->model, e->ops, o);
    struct wire_setup setup = {.kv_pages = o->kv_pages,
                               .max_tokens = o->max_tokens,
                               .max_rows = o->max_rows,
                               .own_formats = e->model->own_formats,
                               .bf16_copies = e->model->bf16_copies};
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

int engine_ranks_send(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err)
{
    struct wire_table t = {.trial_slot = -1};
    if (!e->changes)
        e->changes = xcalloc((size_t)dispatch_slots(e->dispatch), sizeof *e->changes);
    t.change = e->changes;
    dispatch_latch(e->dispatch, note_change, &t);
    if (o) { /* of one, as tuning.h says */
        t.trial_slot = (int32_t)(o->of[0].slot - dispatch_slot_at(e->dispatch, 0));
        t.trial = o->of[0].kernel->number;
    }
    return ranks_send_step(e->ranks, s, &t, err);
}

int engine_ranks_step(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err)
{
    if (engine_ranks_send(e, s, o, err))
        return STEP_LOST;
    int rc = e->ops->step(e->backend, s, o, err);
    ranks_step_ran(e->ranks);
    if (rc < 0) /* the other ranks ran the step or wait in it */
        rc = STEP_LOST;
    return rc;
}

/* ---- another rank ---------------------------------------------------------------------------- */

struct follower {
    const struct engine_options *options;
    struct ranks *ranks;
    const struct backend_ops *ops;
    struct model *model;
    struct backend *backend;
    struct dispatch *dispatch;
    struct loader *loader;
    struct wire_limits limits;
    struct ranks_order order[2];      /* of the next step and of the one before it */
    const struct ranks_order *flying; /* of the step under way; NULL: there is none */
};

static int follower_backend(struct follower *f, struct err *err)
{
    struct backend_options o = {.threads = threads_of(f->ranks, f->options->threads),
                                .kv_pages = 1,
                                .max_tokens = backend_chunk(f->ops, f->options->prefill_chunk),
                                .max_rows = f->options->limits.max_batch,
                                .pack_bytes = searched(f->ops) ? f->options->pack_bytes : 0};
    struct wire_setup setup;
    f->model->own_formats = strcmp(f->options->device_weights, "bf16") != 0;
    struct wire_part part = part_of(f->model, f->ops, &o);
    if (ranks_agree(f->ranks, f->ops, &part, &setup, err))
        return -1;
    f->model->own_formats = setup.own_formats;
    f->model->bf16_copies = setup.bf16_copies;
    o.kv_pages = setup.kv_pages;
    o.max_tokens = setup.max_tokens;
    o.max_rows = setup.max_rows;
    o.collective = ranks_collective(f->ranks, f->ops, &setup, err);
    if (!o.collective || !(f->backend = f->ops->open(f->model, &o, err)))
        return -1;
    f->dispatch = engine_ranks_table(f->ops, f->backend);
    f->ops->set_dispatch(f->backend, f->dispatch);
    f->limits = (struct wire_limits){.max_tokens = o.max_tokens,
                                     .max_rows = o.max_rows,
                                     .kv_pages = o.kv_pages,
                                     .vocab = f->model->shape.vocab,
                                     .max_context = f->model->shape.max_context,
                                     .slots = dispatch_slots(f->dispatch)};
    f->loader = loader_open(f->ranks, f->ops, f->backend, err);
    return f->loader ? 0 : -1;
}

/* NULL with a message: rank 0 names a kernel that is not here, or not one for this slot. */
static const struct kernel *kernel_for(struct follower *f, const struct slot *slot, int32_t number,
                                       struct err *err)
{
    const struct kernel *k = number ? loader_kernel(f->loader, number) : slot->eager;
    if (k && k->region == slot->region)
        return k;
    err_set(err, "rank 0 puts kernel %d into %s, which is not here", number, slot->name);
    return NULL;
}

/* Makes the dispatch table what the step is to run with; nothing else changes it. */
static int follow_table(struct follower *f, const struct wire_table *t, struct err *err)
{
    for (int32_t i = 0; i < t->changes; i++) {
        struct slot *slot = dispatch_slot_at(f->dispatch, t->change[i].slot);
        const struct kernel *k = kernel_for(f, slot, t->change[i].kernel, err);
        if (!k)
            return -1;
        dispatch_publish(f->dispatch, slot, k);
    }
    return 0;
}

/* The step under way is over. */
static int follow_land(struct follower *f, struct err *err)
{
    const struct ranks_order *o = f->flying;
    f->flying = NULL;
    if (o && f->ops->step_wait && f->ops->step_wait(f->backend, &o->step, err))
        return -1;
    if (o && o->table.changes)
        ranks_ran_with(f->ranks, &o->table);
    return 0;
}

/* Nobody here wants the step's tokens: where the backend can, it is started, and waited for when
 * the next one is, which rank 0 may send before this one is over. */
static int follow_step(struct follower *f, const struct ranks_order *o, struct err *err)
{
    const struct wire_table *t = &o->table;
    struct slot *slot = t->trial ? dispatch_slot_at(f->dispatch, t->trial_slot) : NULL;
    const struct kernel *trial = slot ? kernel_for(f, slot, t->trial, err) : NULL;
    if ((slot && !trial) || follow_table(f, t, err))
        return -1;
    const struct overrides one = {1, {{slot, trial}}}, *of = trial ? &one : NULL;
    int rc = f->ops->step_start ? f->ops->step_start(f->backend, &o->step, of, err)
                                : f->ops->step(f->backend, &o->step, of, err);
    if (rc < 0 || follow_land(f, err))
        return -1;
    f->flying = o;
    return f->ops->step_start ? 0 : follow_land(f, err);
}

/* Rank 0 may say so while its next step, which puts another kernel there, is on its way. */
static void follow_unload(struct follower *f, int32_t number)
{
    for (int i = 0; i < dispatch_slots(f->dispatch); i++) {
        struct slot *slot = dispatch_slot_at(f->dispatch, i);
        if (atomic_load(&slot->kernel)->number == number)
            dispatch_publish(f->dispatch, slot, slot->eager);
    }
    loader_unload(f->loader, number);
}

static int follow_orders(struct follower *f, struct err *err)
{
    int rc, turn = 0;
    while ((rc = ranks_next(f->ranks, &f->limits, &f->order[turn], err)) > ORDER_END) {
        struct ranks_order *o = &f->order[turn];
        if (rc == ORDER_STEP) {
            turn = !turn;
            if (follow_step(f, o, err))
                return -1;
            continue;
        }
        if (follow_land(f, err))
            return -1;
        if (rc == ORDER_LOAD)
            loader_load(f->loader, &o->kernel, o->bytes);
        else
            follow_unload(f, o->number);
        if (f->ops->idle)
            f->ops->idle(f->backend);
    }
    return rc < 0 ? rc : follow_land(f, err);
}

static int follow(struct follower *f, const struct rank_place *place, struct err *err)
{
    struct ranks_options o = ranks_options_of(f->options, place);
    if (!(f->ranks = ranks_open(&o, err)))
        return -1;
    int rc = -1;
    f->ops = engine_choose_backend(f->options->backend, err);
    f->model = f->ops ? open_part(f->options->model, f->ranks, false, NULL, NULL, err) : NULL;
    if (f->model && follower_backend(f, err) == 0 && ranks_begin(f->ranks, err) == 0) {
        log_info("engine", "rank %d of %d is ready", place->rank, place->world);
        /* Whoever stops all ranks at once means rank 0's drain first; its end is this one's. */
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        rc = follow_orders(f, err);
    }
    if (rc)
        ranks_give_up(f->ranks, err->msg);
    return rc;
}

int engine_follow(const struct config *c, const struct rank_place *place, struct err *err)
{
    struct engine_options o = {0};
    struct follower f = {.options = &o};
    engine_take_options(&o, c);
    int rc = follow(&f, place, err);
    loader_close(f.loader);
    if (f.backend)
        f.ops->close(f.backend);
    if (f.dispatch)
        dispatch_close(f.dispatch);
    ranks_close(f.ranks);
    model_close(f.model);
    engine_free_options(&o);
    return rc;
}
