/* SPDX-License-Identifier: Apache-2.0 */
/* endcheck_live.c - a fixed prompt set through the whole model of the running server, in slices.
 *
 * The check of endcheck.c for a GPU: a process of its own would need the model's memory twice, so
 * the engine lends one step at a time instead (backend_ops.check_model). Sequences start from ids
 * drawn by a fixed rule and continue as eager chooses; a slot that only prompts fall into gets one
 * prompt of its own width, because the library's products take K apart at some widths only.
 *
 * There eager rounds activations to bf16 before each product, which moves its own logits by about
 * 2 % of their rms (docs/gpu.md), and a kernel that keeps more digits moves them back. So the
 * limits are those of bf16: a mean divergence of 2e-3 nats, and no first choice changed by more
 * than eight times the rms difference of its row. A kernel that drifts is far beyond; one that
 * passes has been held to twice eager's error region by region before. e4m3 has a limit of its own
 * (end_verdict()).
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/live.h"

enum { POSITIONS = 8, ROWS = 2, SEQUENCES = 64, PROMPT_ROWS = 16 };
static const double bf16_limit = 2e-3;

struct slices {
    const struct stage_env *env;
    struct model_check r;
    int result;
    struct err err;
};

/* A slice: steps, as long as there is time for another one. */
static int some_steps(void *ctx, int64_t budget_ns)
{
    struct slices *s = ctx;
    int64_t start = clock_ns(), longest = 0, now = start;
    do {
        int64_t before = now;
        s->result = s->env->ops->check_model(s->env->backend, &s->r, &s->err);
        now = clock_ns();
        longest = now - before > longest ? now - before : longest;
    } while (s->result == 0 && now + longest <= start + budget_ns);
    return 1;
}

static enum stage_result run(struct slices *s)
{
    while (s->result == 0) {
        if (engine_slices(s->env->engine, some_steps, s) < 0 || atomic_load(s->env->stop))
            return STAGE_STOPPED;
        s->env->tick(s->env->tick_ctx);
    }
    return s->result < 0 ? STAGE_RETRY : STAGE_PASS;
}

static void open_check(struct slices *s, struct candidate *c)
{
    struct model_check *r = &s->r;
    int32_t vocab = s->env->model->shape.vocab, m = c->slot->m;
    r->slot = c->slot;
    r->kernel = c->kernel;
    r->prompt = m > SEQUENCES && c->slot->region != REGION_ATTN;
    r->m = m;
    r->positions = r->prompt ? 1 : POSITIONS;
    r->rows = r->prompt ? PROMPT_ROWS : r->m < ROWS ? r->m : ROWS;
    size_t logits = (size_t)(r->positions * r->rows) * (size_t)vocab;
    r->token = xcalloc((size_t)(r->positions + 1) * (size_t)r->m, sizeof *r->token);
    r->eager = xcalloc(logits, sizeof *r->eager);
    r->own = xcalloc(logits, sizeof *r->own);
    for (int32_t i = 0; i < r->m; i++)
        r->token[i] = (int32_t)(hash_mix((uint64_t)i + 1) % (uint64_t)vocab);
}

enum stage_result end_check_live(const struct stage_env *env, struct candidate *c)
{
    struct slices *s = xcalloc(1, sizeof *s);
    struct end_result end;
    s->env = env;
    open_check(s, c);
    enum stage_result result = run(s);
    if (result == STAGE_PASS) {
        end_compare(s->r.eager, s->r.own, s->r.positions * s->r.rows, env->model->shape.vocab, 0,
                    &end);
        if (end_verdict(env->numerics, probe_precision(env, c), bf16_limit, &end, &s->err) != 0)
            result = STAGE_REFUSE;
    }
    if (result == STAGE_REFUSE || result == STAGE_RETRY)
        candidate_explain(c, STAGE_SHADOW, CAUSE_OTHER, 0, "whole model: %.200s", s->err.msg);
    free(s->r.token);
    free(s->r.eager);
    free(s->r.own);
    free(s);
    return result;
}
