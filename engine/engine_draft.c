/* SPDX-License-Identifier: Apache-2.0 */
/* engine_draft.c - the draft model's place in the engine: engine.speculate = draft:PATH.
 *
 * Its file is opened and its vocabulary compared before anything of the served model is prepared,
 * so that a wrong one is refused at once. Its backend is opened after the served model's, beside
 * it, and has as many KV pages: what a page costs is the sum of both. It runs between two steps,
 * when none is under way. Should it fail a few times in a row, the engine goes on without it.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/engine_private.h"

enum { STRIKES = 3 };
static const char prefix[] = "draft:";

int speculate_parse(const char *option, const char **path, struct err *err)
{
    *path = NULL;
    if (!option || !*option || !strcmp(option, "off") || !strcmp(option, "ngram"))
        return 0;
    if (strncmp(option, prefix, sizeof prefix - 1) != 0)
        return err_set(err, "engine.speculate = \"%s\": want off, ngram or draft:PATH", option);
    *path = option + sizeof prefix - 1;
    if (!**path)
        return err_set(err,
                       "engine.speculate = \"%s\": name a GGUF file or a model directory after "
                       "draft:",
                       option);
    return 0;
}

int engine_draft_model(struct engine *e, const struct engine_parts *parts, struct err *err)
{
    const char *path;
    e->draft_model = parts->draft_model;
    if (speculate_parse(e->options.speculate, &path, err))
        return -1;
    if (path && !e->draft_model) {
        engine_say(e, 0.9, "loading the draft model %s", path);
        e->draft_model = model_open(path, true, NULL, NULL, err);
        if (!e->draft_model)
            return err_prefix(err, "engine.speculate");
    }
    if (e->draft_model && draft_same_vocabulary(e->model, e->draft_model, err))
        return err_prefix(err, "engine.speculate = draft:%s", e->draft_model->path);
    return 0;
}

struct backend_options engine_draft_options(const struct engine *e,
                                            const struct backend_options *served)
{
    return (struct backend_options){.threads = served->threads,
                                    .kv_pages = served->kv_pages,
                                    .max_tokens = DRAFT_READ,
                                    .max_rows = DRAFT_WIDTH,
                                    .huge_pages = e->options.huge_pages};
}

/* So that the first request pays for no first touch, and what guesses cost is known before any is
 * made: of a prompt that was read nothing can be told about steps of one token. */
static void warm(struct engine *e)
{
    struct draft_steps done;
    struct err err = {""};
    double first_s;
    if (draft_warm(e->draft, &done, &first_s, &err)) {
        log_warn("engine", "the draft model was not warmed up: %s", err.msg);
        return;
    }
    speculate_draft_times(e->speculator, &done);
    int32_t last = done.n - 1;
    log_info(
        "engine", "draft model warm after %.0f ms: a step of 1 token takes %.2f ms, of %d %.2f",
        first_s * 1e3, (double)done.ns[0] * 1e-6, done.width[last], (double)done.ns[last] * 1e-6);
}

int engine_draft_open(struct engine *e, const struct engine_parts *parts,
                      const struct backend_options *served, struct err *err)
{
    struct draft_parts p = {.ops = parts->draft_ops ? parts->draft_ops : e->ops,
                            .model = e->draft_model,
                            .served = e->model,
                            .beside = parts->draft_ops ? NULL : e->backend,
                            .options = engine_draft_options(e, served)};
    if (!e->draft_model)
        return 0;
    e->draft_model = NULL;
    double cost = (double)p.model->weight_bytes / (double)(e->model->weight_bytes + 1);
    int32_t context = p.model->shape.max_context;
    e->draft = draft_open(&p, err);
    if (!e->draft)
        return err_prefix(err, "engine.speculate: the draft model");
    draft_use_pages(e->draft, e->kv);
    speculate_use_draft(e->speculator, e->draft, cost, e->options.draft_tokens);
    log_info("engine", "draft model %s, %.2f of the served one's bytes",
             draft_model(e->draft)->description, cost);
    warm(e);
    if (context < e->info.max_context)
        log_info("engine", "the draft model guesses nothing beyond its context of %d tokens",
                 context);
    return 0;
}

void engine_draft_run(struct engine *e)
{
    struct draft_steps done;
    struct err err = {""};
    int32_t jobs;
    const struct drafting *job = speculate_jobs(e->speculator, &jobs);
    if (jobs == 0)
        return;
    int failed = draft_run(e->draft, job, jobs, &done, &err);
    speculate_drafted(e->speculator, &done);
    for (int32_t i = 0; i < done.n; i++)
        atomic_fetch_add(&e->stats.draft_ns, (uint64_t)done.ns[i]);
    atomic_fetch_add(&e->stats.draft_steps, (uint64_t)done.n);
    e->draft_failures = failed ? e->draft_failures + 1 : 0;
    if (!failed)
        return;
    log_error("engine", "a step of the draft model failed: %s", err.msg);
    if (e->draft_failures < STRIKES)
        return;
    log_error("engine", "the draft model is not used any more: %d steps in a row failed", STRIKES);
    speculate_use_draft(e->speculator, NULL, 0, 0);
}

void engine_draft_checked(struct engine *e, const struct schedule_item *item)
{
    struct sequence *seq = item->seq;
    if (e->draft && !seq->ended && item->stay == seq->stays)
        draft_checked(e->draft, seq, item->right);
}

void engine_draft_close(struct engine *e)
{
    draft_close(e->draft);
    if (e->draft_model)
        model_close(e->draft_model);
}
