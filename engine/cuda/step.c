/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - what the engine calls: one step, from the arrays of the batch to sampled tokens.
 *
 * - start: choose kernels -> fill the block -> graph, or copy it and launch its kernels -> sample,
 *   copy back
 * - wait: for the copy; read the tokens out of it
 *
 * Everything of a start is queued on one stream, so the next step can be started before this one is
 * waited for: it reads what this one drew where it lies, in b->best. What the host writes for a
 * step and reads of it is in one of two struct inflight; the device has one of each, since it runs
 * one step at a time.
 *
 * A step in which every sequence has one token, up to NARROW of them, runs as a graph, and so does
 * a wide step that came several times just like this. Everything else is launched uncaptured: other
 * prompts, prompts mixed with decodes, steps that a hook observes, and those that have no graph
 * yet. The block (memory.h) is the only thing that differs between two launches of a graph.
 *
 * A graph is timed as a whole. One step in TIMED_EVERY of its own is launched uncaptured, with
 * events around the regions of one layer, and says how the time of the others is to be split.
 */
#include <stdatomic.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/hook.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/prefill.h"
#include "engine/cuda/ranks.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

enum { TIMED_EVERY = 1024, TIMED_AT = 4 /* not the first step, whose caches are cold */ };

/* ---- what runs ----------------------------------------------------------------------------- */

static bool one_token_each(const struct step *s)
{
    return s->m == s->spans;
}

/* The number of sequences with one token each, which batch.c puts in front. */
static int32_t leading(const struct step *s)
{
    int32_t n = 0;
    while (n < s->spans && n < DECODE_MOST && s->span[n].count == 1)
        n++;
    return n;
}

/* Longest context of the first n sequences. */
static int32_t longest(const struct step *s, int32_t n)
{
    int32_t context = 0;
    for (int32_t i = 0; i < n; i++)
        context = s->span[i].context > context ? s->span[i].context : context;
    return context;
}

/* What is in the slot of the first n tokens of a step with prompts, if it is a template; or NULL.
 */
static const struct kernel *kernel_beside(const struct backend *b, const struct step *s, int32_t n)
{
    int32_t context = longest(s, n);
    if (n == 0)
        return NULL;
    const struct slot *slot = dispatch_slot(b->dispatch, REGION_ATTN, 0, n, context);
    const struct kernel *k = slot_kernel(slot);
    const struct loaded *l = k->backend;
    bool fits =
        l && k->m_max >= walk_padded(n) && !(l->info.context_max && l->info.context_max < context);
    return fits ? k : NULL;
}

/* Whether a step of m tokens has layers in a place without a slot. */
static bool has_layers(const struct backend *b, int place, int32_t m)
{
    bool last = place / REGION_NODES == FORMAT_CLASSES;
    return place < REGION_NODES || (last && formats_beyond(b->formats, place_region(place), m) > 0);
}

/* Attention of prompts is eager's at any width: it is another kernel than that of decodes, with
 * probabilities in bf16, and a template is measured and compared as one for decodes. It takes
 * decodes beside prompts, too. */
static void choose_at(const struct backend *b, const struct step *s, bool wide,
                      const struct overrides *o, int place, struct kernel_choice *c)
{
    enum region r = place_region(place);
    int32_t m = region_m(r, s->m, s->rows);
    struct slot *slot = dispatch_slot_of_place(b->dispatch, place, m, s->context);
    if (slot || has_layers(b, place, m))
        c->kernel[place] = &b->eager[r];
    if (!slot)
        return;
    const struct kernel *k = slot_kernel_with(o, slot);
    const struct loaded *l = k->backend;
    bool prompt = r == REGION_ATTN && !one_token_each(s);
    if (k->m_max >= walk_padded(m) && !prompt && loaded_takes(k, wide) &&
        !(l && l->info.context_max && l->info.context_max < s->context))
        c->kernel[place] = k;
    c->slot[place] = slot;
}

static void choose(struct backend *b, const struct step *s, bool wide, const struct overrides *o,
                   struct kernel_choice *c)
{
    memset(c, 0, sizeof *c);
    for (int p = 0; p < STEP_PLACES; p++)
        choose_at(b, s, wide, o, p, c);
    c->decode = one_token_each(s);
    c->trial = o != NULL;
    c->lead = c->decode ? 0 : leading(s);
    const struct kernel *beside = kernel_beside(b, s, c->lead);
    if (beside)
        c->kernel[REGION_ATTN] = beside;
    else
        c->lead = 0;
    c->m = walk_padded(s->m);
    c->rows = s->rows > 0 ? walk_padded(s->rows) : 0;
    c->context = context_bucket[context_bucket_of(s->context)];
}

/* ---- the block ----------------------------------------------------------------------------- */

/* Whether token `i` is that of a row of the step under way. */
static bool names_row(const struct backend *b, const struct step *s, int32_t i)
{
    const struct inflight *before = &b->inflight[!b->parity];
    return before->step && before->drawn_there && STEP_TOKEN_OF_ROW(s->tokens[i]) < before->rows;
}

static int check_step(const struct backend *b, const struct step *s, const struct step_block *block,
                      struct err *e)
{
    if (s->m < 1 || s->m > b->options.max_tokens)
        return err_set(e, "cuda: a step of %d tokens; the backend was opened for %d", s->m,
                       b->options.max_tokens);
    if (s->rows < 0 || s->rows > b->options.max_rows || s->rows > block->rows)
        return err_set(e, "cuda: a step with %d rows of logits; the backend was opened for %d",
                       s->rows, b->options.max_rows);
    if (s->spans < 1 || s->spans > block->spans || s->pages > block->pages)
        return err_set(e,
                       "cuda: a step of %d sequences with %d pages; there is room for %d and "
                       "%lld",
                       s->spans, s->pages, block->spans, (long long)block->pages);
    for (int32_t i = 0; i < s->m; i++) {
        if (s->position[i] < 0 || s->position[i] >= b->positions)
            return err_set(e, "cuda: position %d; the rope tables end at %d", s->position[i],
                           b->positions);
        if (s->tokens[i] >= b->model->shape.vocab || (s->tokens[i] < 0 && !names_row(b, s, i)))
            return err_set(e, "cuda: token %d; the vocabulary has %d", s->tokens[i],
                           b->model->shape.vocab);
        if (s->kv_at[i] < 0 || s->kv_at[i] / KV_PAGE >= b->options.kv_pages)
            return err_set(e, "cuda: cache position %d is beyond the %d pages", s->kv_at[i],
                           b->options.kv_pages);
    }
    return 0;
}

/* Runs of tokens as tiles, single tokens as a list, without those in front that a template takes.
 */
static void fill_attention(const struct step *s, const struct step_block *block, struct walk *w)
{
    struct eager_tile *tile = block_mirror(block, block->tile);
    int32_t *single = block_mirror(block, block->single);
    for (int32_t i = s->spans - 1; i >= w->lead; i--) {
        const struct span *p = &s->span[i];
        if (p->count == 1) {
            single[w->singles++] = p->first;
            continue;
        }
        w->tiles += prefill_tiles(tile + w->tiles, prefill_rows(w->b), p->first, p->count,
                                  p->context, p->pages_at);
    }
    prefill_order(tile, w->tiles);
}

/* The block's host mirror; returns how many bytes of it are used. */
static size_t fill_block(const struct step *s, const struct step_block *block, struct walk *w)
{
    struct cuda_counts *counts = block_mirror(block, block->counts);
    int32_t *pages_at = block_mirror(block, block->pages_at);
    struct cuda_counts *lead = block_mirror(block, block->lead);
    *counts = (struct cuda_counts){s->m, s->rows, s->spans, s->context, {0}};
    *lead = (struct cuda_counts){w->lead, 0, w->lead, longest(s, w->lead), {0}};
    memcpy(block_mirror(block, block->token), s->tokens, (size_t)s->m * 4);
    memcpy(block_mirror(block, block->position), s->position, (size_t)s->m * 4);
    memcpy(block_mirror(block, block->kv_at), s->kv_at, (size_t)s->m * 4);
    memcpy(block_mirror(block, block->row), s->row, (size_t)s->rows * 4);
    memcpy(block_mirror(block, block->span), s->span, (size_t)s->spans * sizeof *s->span);
    memcpy(block_mirror(block, block->page_table), s->page_table, (size_t)s->pages * 4);
    for (int32_t i = 0; i < s->spans; i++)
        for (int32_t t = 0; t < s->span[i].count; t++)
            pages_at[s->span[i].first + t] = s->span[i].pages_at;
    if (!w->decode)
        fill_attention(s, block, w);
    return (size_t)((char *)(block->page_table + s->pages) - block->device);
}

/* ---- running ------------------------------------------------------------------------------- */

/* Attention of prompts is eager's, whatever is in the slot: a slot of decodes does not count it,
 * and where decodes lie in front of it they are part of no slot's time. */
static bool unslotted(const struct inflight *f, const struct step *s, const struct slot *slot)
{
    return slot->region == REGION_ATTN && !one_token_each(s) &&
           (slot->m <= DECODE_MOST || f->choice.lead > 0);
}

static void count(struct backend *b, const struct inflight *f, const struct step *s,
                  const double share[STEP_PLACES], int64_t ns)
{
    for (int p = 0; p < STEP_PLACES; p++) {
        struct slot *slot = f->choice.slot[p];
        enum region r = place_region(p);
        uint64_t m = (uint64_t)region_m(r, s->m, s->rows);
        if (!slot || m == 0 || unslotted(f, s, slot))
            continue;
        struct slot_counters *k = &slot->counters;
        uint64_t runs = (uint64_t)slot_runs(slot, b->model->shape.layers);
        atomic_fetch_add_explicit(&k->steps, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&k->runs, runs, memory_order_relaxed);
        atomic_fetch_add_explicit(&k->launches, (uint64_t)f->launches[p], memory_order_relaxed);
        atomic_fetch_add_explicit(&k->tokens, runs * m, memory_order_relaxed);
        atomic_fetch_add_explicit(&k->context, runs * (uint64_t)s->context, memory_order_relaxed);
        atomic_fetch_add_explicit(&k->sequences, runs * (uint64_t)s->spans, memory_order_relaxed);
        atomic_fetch_add_explicit(&k->ns, (uint64_t)((double)ns * share[p]), memory_order_relaxed);
    }
}

/* How many runs an uncaptured step has in a place, of which one was timed. */
static int32_t runs_timed(const struct backend *b, const struct inflight *f, int place)
{
    const struct slot *slot = f->choice.slot[place];
    if (slot)
        return region_m(slot->region, 1, f->rows) > 0 ? slot_runs(slot, b->model->shape.layers) : 0;
    bool beyond = place >= REGION_NODES && f->choice.kernel[place];
    return beyond ? formats_beyond(b->formats, place_region(place), f->choice.m) : 0;
}

/* An uncaptured step's time by place: one layer was timed, and the others are like it. */
static void measured_shares(const struct backend *b, const struct inflight *f,
                            double share[STEP_PLACES])
{
    double sum = 0;
    for (int p = 0; p < STEP_PLACES; p++) {
        int32_t runs = runs_timed(b, f, p);
        float ms = 0;
        if (runs > 0 && cudaEventElapsedTime(&ms, f->region_event[p][0], f->region_event[p][1]))
            ms = 0;
        share[p] = (double)ms * runs;
        sum += share[p];
    }
    for (int p = 0; p < STEP_PLACES; p++)
        share[p] = sum > 0 ? share[p] / sum : 0;
}

static bool other_kernels(const struct variant *v, const struct kernel_choice *c)
{
    return memcmp(v->choice.kernel, c->kernel, sizeof c->kernel) != 0;
}

/* The graph that this step runs as, with its launches and how its time is split; NULL: uncaptured.
 * Now and then that is a step that has a graph, to time its regions: each graph's own kernels,
 * soon after it is there. `must`: a canary's, which is not. */
static struct variant *graph_for(struct backend *b, const struct step *s, struct inflight *f,
                                 bool must)
{
    if (f->hooked || (!f->wide && (!one_token_each(s) || f->choice.rows != f->choice.m)))
        return NULL;
    struct variant *v = f->wide ? graph_get_wide(b, &f->choice) : graph_get(b, &f->choice);
    if (!v || (!must && !other_kernels(v, &f->choice) && v->steps++ % TIMED_EVERY == TIMED_AT))
        return NULL;
    memcpy(f->launches, v->launches, sizeof f->launches);
    memcpy(f->share, v->timed ? v->share : graph_cell(b, &f->choice)->share, sizeof f->share);
    return v;
}

/* What attention of a wide step is launched for. Only that of single tokens cares for contexts. */
static void choose_tiles(const struct backend *b, const struct step *s, struct kernel_choice *c)
{
    int32_t rows = prefill_rows(b);
    for (int32_t i = c->lead; i < s->spans && !c->decode; i++)
        if (s->span[i].count == 1)
            c->singles++;
        else
            c->tiles += (s->span[i].count + rows - 1) / rows;
    if (!c->decode && !c->singles)
        c->context = context_bucket[0];
}

/* A wide step is compared with others like it: where those run as a graph, this one waits for its
 * own. */
static bool ready_wide(struct backend *b, const struct step *s, struct kernel_choice *c)
{
    struct kernel_choice now;
    choose(b, s, true, NULL, &now);
    choose_tiles(b, s, &now);
    choose_tiles(b, s, c);
    return !graph_known(b, &now) || graph_there(b, c);
}

bool cuda_ready(struct backend *b, const struct step *s, const struct overrides *o)
{
    struct kernel_choice c;
    bool wide = s->m > NARROW || s->rows > NARROW;
    choose(b, s, wide, o, &c);
    if (wide)
        return ready_wide(b, s, &c);
    return !one_token_each(s) || c.rows != c.m || graph_there(b, &c);
}

/* Whether the cell's graph has other kernels than the one before it. */
static bool swapped(struct cell *cell, const struct variant *v)
{
    bool other = cell->served[0] && memcmp(cell->served, v->choice.kernel, sizeof cell->served);
    memcpy(cell->served, v->choice.kernel, sizeof cell->served);
    return other;
}

static void report(struct backend *b, const struct step *s, const struct inflight *f,
                   const struct variant *v, bool canary)
{
    bool could = !f->wide && one_token_each(s);
    if (s->report)
        *s->report = (struct step_report){.uncaptured = could && !v,
                                          .hooked = f->hooked,
                                          .stood_in = v && other_kernels(v, &f->choice),
                                          .swapped = v && !f->wide && !canary &&
                                                     swapped(graph_cell(b, &f->choice), v)};
}

static int run(struct backend *b, const struct step *s, struct inflight *f, bool must,
               struct err *e)
{
    struct step_block *block = f->wide ? &b->wide : &b->narrow;
    struct walk w;
    block->host = f->wide ? f->wide_host : f->narrow_host;
    walk_init(&w, b, b->stream, block, &f->choice);
    w.decode = one_token_each(s);
    walk_floats(&w, f->hooked);
    if (check_step(b, s, block, e))
        return -1;
    size_t used = fill_block(s, block, &w);
    struct variant *v = graph_for(b, s, f, must);
    report(b, s, f, v, must);
    f->graph = v != NULL;
    if (v && !f->wide)
        return transfer_launch(b, &f->choice, v->exec, used, e);
    if (transfer(b, block->device, block->host, used, true, e))
        return -1;
    if (v) {
        CU(cudaGraphLaunch(v->exec, b->stream));
        return 0;
    }
    w.live = f->hooked ? s : NULL;
    w.timed = f;
    int failed = walk_step(&w, e);
    memcpy(f->launches, w.launches, sizeof f->launches);
    return failed;
}

static int fetch(struct backend *b, const struct step *s, struct inflight *f, struct err *e)
{
    f->drawn_there = true;
    if (s->rows > 0 && f->plain && (f->wide || !f->graph) &&
        transfer(b, f->best, b->best, (size_t)s->rows * 4, false, e))
        return -1;
    if (s->rows > 0 && !f->plain && sample_launch(b, f, s, e))
        return -1;
    CU(cudaEventRecord(f->done, b->stream));
    return 0;
}

/* Whether the error is what code on the device did, and not a device or a driver that failed. */
static bool device_fault(cudaError_t code)
{
    static const cudaError_t all[] = {
        cudaErrorIllegalAddress,      cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,
        cudaErrorIllegalInstruction,  cudaErrorHardwareStackError,
        cudaErrorLaunchFailure,       cudaErrorAssert,
        cudaErrorLaunchTimeout,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (code == all[i])
            return true;
    return false;
}

/* What to report of a step that failed: whether the device answers at all any more. An error that
 * a kernel caused stays with the context for good. Nothing of the step is left on the stream. Only
 * that is asked: the device as a whole answers with an error for as long as some other thread's
 * stream is being captured, and that capture fails. */
static int failed_for(struct backend *b, const struct step *s, struct err *e)
{
    cudaError_t code = cudaStreamSynchronize(b->stream);
    b->told = -1;
    if (code == cudaSuccess)
        return -1;
    if (s->report)
        s->report->fault = device_fault(code);
    struct err why = *e;
    return err_set(e, "%s; the device answers no more: %s", why.msg, cudaGetErrorString(code)),
           STEP_LOST;
}

int cuda_step_start(struct backend *b, const struct step *s, const struct overrides *o,
                    struct err *e)
{
    struct inflight *f = &b->inflight[b->parity];
    if (f->step)
        return err_set(e, "cuda: two steps are under way already");
    b->steps++;
    f->start_ns = clock_ns();
    f->rows = s->rows;
    f->plain = sample_plain(s);
    f->wide = s->m > NARROW || s->rows > NARROW;
    choose(b, s, f->wide, o, &f->choice);
    if (f->wide)
        choose_tiles(b, s, &f->choice);
    /* there is room for one observed step at a time. */
    f->hooked = s->trial || (!b->inflight[!b->parity].hooked && hook_wants(b, &f->choice));
    if (run(b, s, f, o != NULL, e) || fetch(b, s, f, e)) {
        int rc = failed_for(b, s, e);
        if (f->hooked)
            hook_done(b, true);
        f->hooked = false;
        return rc;
    }
    f->step = s;
    b->parity = !b->parity;
    return f->drawn_there ? 0 : 1;
}

/* Adds the step to its slots' counters: the time since it could begin. */
static void account(struct backend *b, const struct step *s, const struct inflight *f)
{
    double share[STEP_PLACES];
    int64_t now = clock_ns(), from = f->start_ns > b->landed_ns ? f->start_ns : b->landed_ns;
    b->landed_ns = now;
    if (!f->graph)
        measured_shares(b, f, share);
    if (!f->graph && (f->wide || one_token_each(s)))
        graph_timed(b, &f->choice, share);
    count(b, f, s, f->graph ? f->share : share, now - from);
}

static int wait_for(struct inflight *f, struct err *e)
{
    CU(cudaEventSynchronize(f->done));
    return 0;
}

int cuda_step_wait(struct backend *b, const struct step *s, struct err *e)
{
    struct inflight *f = &b->inflight[b->inflight[0].step != s];
    if (f->step != s)
        return err_set(e, "cuda: this step is not under way");
    int failed = wait_for(f, e);
    if (f->hooked)
        hook_done(b, failed);
    f->step = NULL;
    f->hooked = false;
    if (ranks_check(b, e))
        return STEP_LOST;
    if (failed)
        return failed_for(b, s, e);
    sample_collect(b, f, s);
    account(b, s, f);
    return 0;
}

int cuda_step(struct backend *b, const struct step *s, const struct overrides *o, struct err *e)
{
    int rc = cuda_step_start(b, s, o, e);
    return rc < 0 ? rc : cuda_step_wait(b, s, e);
}
