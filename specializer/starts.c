/* SPDX-License-Identifier: Apache-2.0 */
/* starts.c - the points that searches start from, built and published without a search: for `whet
 * bench --starts`, which says what the kernels can do before any store has winners.
 *
 * Nothing is probed or measured, so this is for benches of seeded inputs and never for requests.
 * Objects lie in the store's folder like all others and are found there the next time.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/build/build.h"
#include "specializer/build/sources.h"
#include "specializer/pipeline/pipeline.h"
#include "specializer/search/cost.h"
#include "specializer/setup.h"
#include "specializer/winners.h"

struct starting {
    struct stage_env env;
    struct key_parts keys;
    struct compiler compiler;
    struct store *store;
};

/* The first template of the slot that names a legal start; NULL: none does. */
static struct candidate *start_of(const struct starting *s, struct slot *slot)
{
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        struct facts f;
        struct point p;
        facts_fill(&f, s->env.model, slot->region, slot->m, s->env.numerics);
        facts_machine(&f, s->env.machine);
        if (template_fits(t, s->env.machine->kind, slot->region, slot->m) &&
            template_start(t, &f, &p) && !template_illegal(t, &p, &f))
            return candidate_new(&s->keys, t, &p, &f, slot);
    }
    return NULL;
}

/* ---- the rules of a start: built if need be, and loaded -------------------------------------- */

static enum stage_result enter(struct pipeline *p, struct trial *t)
{
    (void)p;
    bool built = t->at == STAGE_BUILD && safe_file(t->c->object, NULL) == 0;
    return built || t->at == STAGE_PROBE ? STAGE_PASS : STAGE_RUNNING;
}

static void began(struct pipeline *p, struct trial *t, const struct err *err)
{
    if (!err)
        return;
    err_set(p->ctx, "%s", err->msg);
    candidate_free(t->c);
    t->c = NULL;
}

static bool came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    if (r == STAGE_PASS)
        return true;
    err_set(p->ctx, "%s: %s", t->c->name, t->c->reason);
    candidate_free(t->c);
    t->c = NULL;
    return false;
}

static const struct pipeline_rules rules = {.enter = enter, .began = began, .came = came};

/* 1 when the slot has its start now; 0: it stays eager, there is none or it was not built; -1:
 * it cannot be loaded. */
static int publish(const struct starting *s, struct slot *slot, struct err *err)
{
    struct pipeline p = {.rules = &rules, .ctx = err, .env = &s->env, .last = STAGE_LOAD};
    struct trial t = {.c = start_of(s, slot)};
    if (!t.c)
        return 0;
    while (!pipeline_over(&p, &t)) {
        pipeline_advance(&p, &t, true);
        pipeline_block(&p, &t);
        if (t.child)
            usleep(2000);
    }
    if (t.c) {
        dispatch_publish(s->env.dispatch, slot, t.c->kernel);
        candidate_free(t.c);
        return 1;
    }
    if (t.at != STAGE_BUILD)
        return -1;
    log_warn("starts", "%s stays eager: %s", slot->name, err->msg);
    return 0;
}

static int open_all(struct starting *s, struct err *err)
{
    if (!compiler_known(s->env.config, s->store, s->env.machine, &s->compiler, err))
        return -1;
    keys_open(&s->keys, s->store, s->env.machine, &s->compiler, s->env.model, s->env.numerics);
    s->env.compiler = &s->compiler;
    s->env.kernel_dir = s->keys.kernel_dir;
    if (safe_folder_make(s->keys.object_dir, err) != 0)
        return -1;
    return kernel_sources_write(s->keys.kernel_dir, err);
}

int starts_load(const struct config *c, const struct model *m, struct backend *b,
                const struct backend_ops *ops, struct dispatch *d, int32_t sequences,
                int32_t context,
                void (*each)(void *ctx, const struct slot *slot, const struct kernel *k), void *ctx,
                struct err *err)
{
    struct starting s = {.env = {.config = c,
                                 .numerics = numerics_parse(c->specializer_numerics),
                                 .model = m,
                                 .backend = b,
                                 .ops = ops,
                                 .dispatch = d,
                                 .machine = ops->machine(b),
                                 .program = program_path(),
                                 .alone = true}};
    char *path = store_default_path(c->specializer_store);
    int n = 0, one = 0;
    s.store = store_open(path, err);
    free(path);
    if (!s.store)
        return -1;
    if (open_all(&s, err))
        one = -1;
    for (int r = REGION_ATTN_IN; r < REGION_NODES && one >= 0; r++) {
        struct slot *slot = dispatch_slot(d, (enum region)r, sequences, context);
        bool span = region_info((enum region)r)->parts > 0; /* its parts have theirs */
        if (!slot || span || slot->kernel != slot->eager)   /* by a call for another context */
            continue;
        one = publish(&s, slot, err);
        n += one > 0;
        if (one > 0 && each)
            each(ctx, slot, slot->kernel);
    }
    keys_close(&s.keys);
    store_close(s.store);
    return one < 0 ? -1 : n;
}
