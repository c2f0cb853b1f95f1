/* SPDX-License-Identifier: Apache-2.0 */
/* starts.c - the points that searches start from, built and published without a search: for `whet
 * bench --starts`, which says what the kernels can do before any store has winners; and points that
 * somebody names, for `whet bench --points`.
 *
 * Nothing is probed or measured, so this is for benches of seeded inputs and never for requests.
 * Objects lie in the store's folder like all others and are found there the next time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/cores.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/build/build.h"
#include "specializer/build/sources.h"
#include "specializer/pipeline/pipeline.h"
#include "specializer/search/cost.h"
#include "specializer/setup.h"
#include "specializer/winners.h"

enum { POLL_US = 2000 };

struct starts {
    struct stage_env env;
    struct key_parts keys;
    struct compiler compiler;
    struct store *store;
};

/* ---- points --------------------------------------------------------------------------------- */

/* Why the template's point is none for the slot, or NULL and a candidate of it. */
static const char *candidate_at(const struct starts *s, struct slot *slot, const struct template *t,
                                const struct point *p, struct candidate **out)
{
    struct facts f;
    facts_slot(&f, s->env.model, slot, s->env.numerics);
    facts_machine(&f, s->env.machine);
    if (!template_fits(t, s->env.machine->kind, slot->region, slot->m))
        return "the template is none for this slot on this machine";
    const char *why = template_illegal(t, p, &f);
    if (!why)
        *out = candidate_new(&s->keys, t, p, &f, slot);
    return why;
}

/* The first template of the slot that names a start which is legal and may be published under the
 * numerics that are set, and that point; NULL: none does. */
static const struct template *start_of(const struct starts *s, const struct slot *slot,
                                       struct point *p)
{
    struct facts f;
    facts_slot(&f, s->env.model, slot, s->env.numerics);
    facts_machine(&f, s->env.machine);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (!template_fits(t, s->env.machine->kind, slot->region, slot->m))
            continue;
        for (int n = 0; template_start_row(t, &f, n, p); n++)
            if (!template_illegal(t, p, &f) &&
                (s->env.numerics != NUMERICS_BIT_EQUAL || t->bit_equal(p, &f)))
                return t;
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

/* Until it is through or has left. */
static void run(struct pipeline *p, struct trial *t)
{
    while (!pipeline_over(p, t)) {
        pipeline_advance(p, t, true);
        pipeline_block(p, t);
        if (t->child)
            usleep(POLL_US);
    }
}

/* 1 when the slot has its start now; 0: it stays eager, there is none or it was not built; -1:
 * it cannot be loaded. */
static int publish(const struct starts *s, struct slot *slot, struct err *err)
{
    struct pipeline p = {.rules = &rules, .ctx = err, .env = &s->env, .last = STAGE_LOAD};
    struct trial t = {.c = NULL};
    struct point at;
    const struct template *from = start_of(s, slot, &at);
    if (!from || candidate_at(s, slot, from, &at, &t.c))
        return 0;
    run(&p, &t);
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

/* ---- points that somebody names -------------------------------------------------------------- */

/* The next word of a text, which goes on behind it. */
static void next_word(const char **text, char *word, size_t n)
{
    size_t length;
    *text += strspn(*text, " \t");
    length = strcspn(*text, " \t");
    snprintf(word, n, "%.*s", (int)length, *text);
    *text += length;
}

/* What a word of NAME=value says of the point. */
static int set_knob(const struct template *t, const char *word, struct point *p, struct err *err)
{
    char name[48];
    int value, used = 0;
    if (sscanf(word, "%47[A-Z0-9_]=%d%n", name, &value, &used) != 2 || word[used])
        return err_set(err, "cannot read \"%.40s\"", word);
    int k = template_knob(t, name);
    if (k < 0)
        return err_set(err, "template %s has no knob %s", t->id, name);
    p->value[k] = value;
    return 0;
}

static int parse(const struct starts *s, const char *text, struct named_kernel *out)
{
    char word[80];
    struct err *err = &out->why;
    next_word(&text, word, sizeof word);
    if (!(out->slot = dispatch_find(s->env.dispatch, word)))
        return err_set(err, "there is no slot \"%s\"", word);
    next_word(&text, word, sizeof word);
    struct point p;
    bool start = strcmp(word, "start") == 0;
    const struct template *t = start ? start_of(s, out->slot, &p) : template_find(word);
    if (!t && start)
        return err_set(err, "no template has a start for %s", out->slot->name);
    if (!t)
        return err_set(err, "there is no template \"%s\"", word);
    if (!start)
        p = template_defaults(t);
    for (next_word(&text, word, sizeof word); *word; next_word(&text, word, sizeof word))
        if (set_knob(t, word, &p, err))
            return -1;
    const char *why = candidate_at(s, out->slot, t, &p, &out->candidate);
    return why ? err_set(err, "it is not legal: %s", why) : 0;
}

void starts_named(const struct starts *s, const char *text, struct named_kernel *out)
{
    *out = (struct named_kernel){.slot = NULL};
    parse(s, text, out);
}

/* Each has a pipeline of its own: what it says of a failure goes to the kernel that failed. */
void starts_build(const struct starts *s, struct named_kernel *const *k, int n)
{
    int cores = cores_usable();
    struct pipeline *p = xcalloc((size_t)n + 1, sizeof *p);
    struct trial *t = xcalloc((size_t)n + 1, sizeof *t);
    for (int i = 0; i < n; i++) {
        p[i] = (struct pipeline){
            .rules = &rules, .ctx = &k[i]->why, .env = &s->env, .last = STAGE_PROBE};
        t[i].c = k[i]->candidate;
    }
    for (int left = n; left > 0; usleep(left > 0 ? POLL_US : 0)) {
        int busy = 0;
        left = 0;
        for (int i = 0; i < n; i++) {
            pipeline_advance(&p[i], &t[i], busy < cores);
            busy += t[i].child != NULL;
            left += !pipeline_over(&p[i], &t[i]);
        }
    }
    for (int i = 0; i < n; i++)
        k[i]->candidate = t[i].c;
    free(p);
    free(t);
}

int starts_load_named(const struct starts *s, struct named_kernel *k)
{
    struct pipeline p = {.rules = &rules, .ctx = &k->why, .env = &s->env, .last = STAGE_LOAD};
    struct trial t = {.c = k->candidate};
    run(&p, &t);
    k->candidate = NULL;
    if (!t.c)
        return -1;
    k->kernel = t.c->kernel;
    candidate_free(t.c);
    return 0;
}

void starts_forget(struct named_kernel *k)
{
    if (k->candidate)
        candidate_free(k->candidate);
    k->candidate = NULL;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int open_all(struct starts *s, struct err *err)
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

struct starts *starts_open(const struct config *c, const struct model *m, struct backend *b,
                           const struct backend_ops *ops, struct dispatch *d, struct err *err)
{
    struct starts *s = xcalloc(1, sizeof *s);
    s->env = (struct stage_env){.config = c,
                                .numerics = numerics_parse(c->specializer_numerics),
                                .model = m,
                                .backend = b,
                                .ops = ops,
                                .dispatch = d,
                                .machine = ops->machine(b),
                                .program = program_path(),
                                .alone = true};
    char *path = store_default_path(c->specializer_store);
    s->store = store_open(path, err);
    free(path);
    if (s->store && open_all(s, err) == 0)
        return s;
    starts_close(s);
    return NULL;
}

void starts_close(struct starts *s)
{
    if (!s)
        return;
    keys_close(&s->keys);
    if (s->store)
        store_close(s->store);
    free(s);
}

int starts_load(const struct config *c, const struct model *m, struct backend *b,
                const struct backend_ops *ops, struct dispatch *d, int32_t sequences,
                int32_t context,
                void (*each)(void *ctx, const struct slot *slot, const struct kernel *k), void *ctx,
                struct err *err)
{
    struct starts *s = starts_open(c, m, b, ops, d, err);
    int n = 0, one = s ? 0 : -1;
    for (int p = 0; p < STEP_PLACES && one >= 0; p++) {
        struct slot *slot = dispatch_slot_of_place(d, p, sequences, context);
        bool fused = region_info(place_region(p))->parts > 0; /* its parts have theirs */
        if (!slot || fused || slot->region == REGION_EMBED ||
            slot->kernel != slot->eager) /* by a call for another context */
            continue;
        one = publish(s, slot, err);
        n += one > 0;
        if (one > 0 && each)
            each(ctx, slot, slot->kernel);
    }
    starts_close(s);
    return one < 0 ? -1 : n;
}
