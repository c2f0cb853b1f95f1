/* SPDX-License-Identifier: Apache-2.0 */
/* admin.c - what operators see and may change (specializer.h), as JSON.
 *
 * Runs on the server's threads. A change is written to the store first, then made in memory under
 * the lock; a slot that must change does so here and now, not when the specializer thread next
 * looks, because "take that kernel out" cannot wait for a benchmark to finish.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/life.h"
#include "specializer/operators.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/store/store_json.h"
#include "specializer/swap.h"
#include "specializer/transfer/transfer.h"
#include "specializer/why.h"

/* ---- answers ------------------------------------------------------------------------------- */

static enum specializer_answer done(cJSON *o, char **text)
{
    *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return ANSWER_DONE;
}

static enum specializer_answer refuse(enum specializer_answer why, char **text, const char *fmt,
                                      ...) __attribute__((format(printf, 3, 4)));
static enum specializer_answer refuse(enum specializer_answer why, char **text, const char *fmt,
                                      ...)
{
    char words[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    *text = xstrdup(words);
    return why;
}

static bool not_ready(struct specializer *s, char **text)
{
    if (atomic_load(&s->ready))
        return false;
    refuse(ANSWER_LOADING, text, "the model is still loading");
    return true;
}

/* ---- slots --------------------------------------------------------------------------------- */

static cJSON *kernel_brief(const struct candidate *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", c ? c->key : "eager");
    cJSON_AddStringToObject(o, "name", c ? c->name : "eager");
    cJSON_AddStringToObject(o, "origin", origin_name(c ? c->origin : ORIGIN_EAGER));
    return o;
}

static cJSON *slot_json_locked(struct specializer *s, const struct slot_search *p)
{
    cJSON *o = cJSON_CreateObject();
    const struct candidate *c = p->locked.active;
    cJSON_AddStringToObject(o, "slot", p->slot->name);
    cJSON_AddStringToObject(o, "region", region_name(p->slot->region));
    cJSON_AddNumberToObject(o, "m", p->slot->m);
    if (p->slot->context > 0)
        cJSON_AddNumberToObject(o, "context", p->slot->context);
    cJSON_AddItemToObject(o, "kernel", kernel_brief(c));
    cJSON_AddStringToObject(o, "state", p->locked.pinned[0] ? "pinned" : c ? "active" : "eager");
    if (p->locked.pinned[0])
        cJSON_AddStringToObject(o, "pinned", p->locked.pinned);
    else
        cJSON_AddNullToObject(o, "pinned");
    if (p->locked.previous)
        cJSON_AddItemToObject(o, "previous", kernel_brief(p->locked.previous));
    cJSON_AddNumberToObject(o, "share", p->locked.share);
    cJSON_AddNumberToObject(o, "run_s", p->locked.run_s);
    cJSON_AddNumberToObject(o, "bytes", p->locked.bytes);
    cJSON_AddNumberToObject(o, "roofline_s", p->locked.roofline_s);
    cJSON_AddNumberToObject(o, "roofline",
                            p->locked.run_s > 0 ? p->locked.roofline_s / p->locked.run_s : 0);
    cJSON_AddNumberToObject(o, "worth", p->locked.worth);
    cJSON_AddNumberToObject(o, "gain_over_eager", p->locked.gain_eager);
    if (c) {
        cJSON_AddItemToObject(o, "bench", gain_json(&c->evidence.bench));
        cJSON_AddItemToObject(o, "canary", gain_json(&c->evidence.canary));
        cJSON_AddNumberToObject(o, "audits", p->locked.audits);
    } else {
        char why[WHY_TEXT];
        why_eager_locked(s, p, why);
        cJSON_AddStringToObject(o, "why", why);
    }
    cJSON_AddNumberToObject(o, "candidates", p->locked.candidates);
    cJSON_AddNumberToObject(o, "refusals", p->locked.refusals);
    cJSON_AddNumberToObject(o, "wins", p->locked.wins);
    if (p->locked.label[0]) {
        cJSON_AddStringToObject(o, "label", p->locked.label);
        cJSON_AddStringToObject(o, "label_by", p->locked.label_by);
    }
    return o;
}

/* Slots that somebody would want to see: used, specialized or pinned. */
cJSON *slots_json_locked(struct specializer *s)
{
    cJSON *a = cJSON_CreateArray();
    for (int i = 0; i < s->slot_searches; i++) {
        const struct slot_search *p = &s->slot_search[i];
        if (p->locked.run_s > 0 || p->locked.active || p->locked.pinned[0])
            cJSON_AddItemToArray(a, slot_json_locked(s, p));
    }
    return a;
}

static void add_record(void *ctx, const struct record *r)
{
    cJSON_AddItemToArray(ctx, record_json(r));
}

/* The operator's word against it or its family, if there is one. */
static void add_disable_locked(struct specializer *s, cJSON *o, const char *key,
                               const char *template)
{
    for (int i = 0; i < s->locked.disables; i++)
        if (strcmp(s->locked.disabled[i].what, key) == 0 ||
            strcmp(s->locked.disabled[i].what, template) == 0) {
            cJSON_AddStringToObject(o, "disabled", s->locked.disabled[i].what);
            cJSON_AddStringToObject(o, "disabled_reason", s->locked.disabled[i].reason);
            return;
        }
    cJSON_AddNullToObject(o, "disabled");
}

enum specializer_answer specializer_slots(struct specializer *s, const char *slot, char **text)
{
    if (not_ready(s, text))
        return ANSWER_LOADING;
    cJSON *o;
    pthread_mutex_lock(&s->lock);
    if (slot) {
        struct slot_search *p = slot_search_find(s, slot);
        o = p ? slot_json_locked(s, p) : NULL;
        struct record_filter f = {.env = s->keys.env, .slot = slot, .limit = 200};
        if (o)
            store_each(s->store, &f, add_record, cJSON_AddArrayToObject(o, "tried"), NULL);
    } else {
        o = cJSON_CreateObject();
        cJSON_AddItemToObject(o, "slots", slots_json_locked(s));
    }
    pthread_mutex_unlock(&s->lock);
    return o ? done(o, text) : refuse(ANSWER_UNKNOWN, text, "there is no slot \"%.60s\"", slot);
}

/* ---- kernels ------------------------------------------------------------------------------- */

/* The template's text, or what a language model wrote and why. */
static void add_source(struct store *store, const struct record *r, cJSON *o)
{
    const struct template *t = template_find(r->template);
    struct agent_node n;
    if (t || agent_store_find(store, r->source, &n, NULL) <= 0) {
        cJSON_AddStringToObject(o, "source", t ? template_source(t) : "");
        return;
    }
    cJSON_AddStringToObject(o, "source", n.text);
    cJSON *agent = cJSON_AddObjectToObject(o, "agent");
    cJSON_AddNumberToObject(agent, "attempt", n.id);
    cJSON_AddNumberToObject(agent, "parent", n.parent);
    cJSON_AddStringToObject(agent, "label", n.label ? n.label : "");
    cJSON_AddStringToObject(agent, "plan", n.plan ? n.plan : "");
    cJSON_AddStringToObject(agent, "prompts", n.prompts);
    tree_node_free(&n);
}

enum specializer_answer specializer_kernels(struct specializer *s, const char *id, char **text)
{
    struct err err;
    cJSON *o = NULL;
    if (!id) {
        o = cJSON_CreateObject();
        struct record_filter f = {.env = atomic_load(&s->ready) ? s->keys.env : NULL,
                                  .limit = 2000};
        if (store_each(s->store, &f, add_record, cJSON_AddArrayToObject(o, "kernels"), &err) == 0)
            return done(o, text);
        cJSON_Delete(o);
        return refuse(ANSWER_FAILED, text, "%s", err.msg);
    }
    struct record r;
    int found = store_get(s->store, id, &r, &err);
    if (found < 0)
        return refuse(ANSWER_FAILED, text, "%s", err.msg);
    if (found == 0)
        return refuse(ANSWER_UNKNOWN, text, "there is no kernel \"%.40s\"", id);
    o = record_json(&r);
    pthread_mutex_lock(&s->lock);
    add_disable_locked(s, o, r.key, r.template);
    pthread_mutex_unlock(&s->lock);
    add_source(s->store, &r, o);
    cJSON_AddStringToObject(o, "log", r.log ? r.log : "");
    free(r.log);
    return done(o, text);
}

/* ---- pins and rollbacks -------------------------------------------------------------------- */

static enum specializer_answer slot_answer(struct specializer *s, struct slot_search *p,
                                           char **text)
{
    pthread_mutex_lock(&s->lock);
    cJSON *o = slot_json_locked(s, p);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return done(o, text);
}

/* ANSWER_DONE, or what to refuse it with. */
static enum specializer_answer may_pin(struct specializer *s, const char *slot, const char *kernel,
                                       char **text)
{
    struct record r;
    struct err err;
    if (strcmp(kernel, "eager") == 0)
        return ANSWER_DONE;
    int found = store_get(s->store, kernel, &r, &err);
    if (found <= 0)
        return found < 0 ? refuse(ANSWER_FAILED, text, "%s", err.msg)
                         : refuse(ANSWER_UNKNOWN, text, "there is no kernel \"%.40s\"", kernel);
    free(r.log);
    if (strcmp(r.slot, slot) != 0)
        return refuse(ANSWER_CONFLICT, text, "kernel %s is made for %s, not for %s", kernel, r.slot,
                      slot);
    pthread_mutex_lock(&s->lock);
    bool disabled = is_disabled_locked(s, kernel, r.template);
    pthread_mutex_unlock(&s->lock);
    if (disabled)
        return refuse(ANSWER_CONFLICT, text, "kernel %s, or its family, is disabled", kernel);
    if (!life_admitted(r.state) || strcmp(r.env, s->keys.env) != 0)
        return refuse(ANSWER_CONFLICT, text,
                      "kernel %s is %s%s: only a kernel that passed admission here can "
                      "be pinned",
                      kernel, life_name(r.state),
                      strcmp(r.env, s->keys.env) == 0 ? "" : " and of another environment");
    return ANSWER_DONE;
}

/* Makes the slot follow its pin as far as that is possible at once. */
static void follow_pin_locked(struct specializer *s, struct slot_search *p, const char *who)
{
    bool eager = strcmp(p->locked.pinned, "eager") == 0;
    p->locked.pin_missing = false;
    if (eager)
        swap_eager_locked(s, p, "pinned to eager", who);
    else if (p->locked.active && strcmp(p->locked.active->key, p->locked.pinned) == 0)
        return;
    else if (p->locked.previous && strcmp(p->locked.previous->key, p->locked.pinned) == 0)
        swap_in_locked(s, p, p->locked.previous, "pinned", who);
    else
        p->locked.pin_missing = true; /* loaded and validated by the specializer thread */
}

enum specializer_answer specializer_pin(struct specializer *s, const char *slot, const char *kernel,
                                        const char *who, char **text)
{
    struct err err;
    if (not_ready(s, text))
        return ANSWER_LOADING;
    if (!kernel || !*kernel)
        return refuse(ANSWER_WRONG, text, "\"kernel\" must be a kernel's id or \"eager\"");
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return refuse(ANSWER_UNKNOWN, text, "there is no slot \"%.60s\"", slot);
    enum specializer_answer may = may_pin(s, slot, kernel, text);
    if (may != ANSWER_DONE)
        return may;
    pthread_mutex_lock(&s->lock);
    bool same = strcmp(p->locked.pinned, kernel) == 0;
    int r = same ? 0 : store_pin(s->store, slot, kernel, who, &err);
    if (r == 0) {
        snprintf(p->locked.pinned, sizeof p->locked.pinned, "%s", kernel);
        follow_pin_locked(s, p,
                          who); /* the same again: what could not be brought back may come now */
    }
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? slot_answer(s, p, text) : refuse(ANSWER_FAILED, text, "%s", err.msg);
}

enum specializer_answer specializer_unpin(struct specializer *s, const char *slot, const char *who,
                                          char **text)
{
    struct err err;
    if (not_ready(s, text))
        return ANSWER_LOADING;
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return refuse(ANSWER_UNKNOWN, text, "there is no slot \"%.60s\"", slot);
    pthread_mutex_lock(&s->lock);
    int r = p->locked.pinned[0] ? store_unpin(s->store, slot, who, &err) : 0;
    if (r == 0) {
        p->locked.stale |=
            p->locked.pinned[0] && !p->locked.active; /* its search may be over: look again */
        p->locked.pinned[0] = 0;
        p->locked.pin_missing = false;
    }
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? slot_answer(s, p, text) : refuse(ANSWER_FAILED, text, "%s", err.msg);
}

/* With `from` a second call finds another kernel in the slot and changes nothing. */
enum specializer_answer specializer_rollback(struct specializer *s, const char *slot,
                                             const char *from, const char *who, char **text)
{
    if (not_ready(s, text))
        return ANSWER_LOADING;
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return refuse(ANSWER_UNKNOWN, text, "there is no slot \"%.60s\"", slot);
    pthread_mutex_lock(&s->lock);
    char pinned[sizeof p->locked.pinned];
    memcpy(pinned, p->locked.pinned, sizeof pinned);
    bool done =
        from && *from && strcmp(from, p->locked.active ? p->locked.active->key : "eager") != 0;
    bool nothing = !done && !pinned[0] && swap_back_locked(s, p, who) != 0;
    pthread_mutex_unlock(&s->lock);
    if (!done && pinned[0])
        return refuse(ANSWER_CONFLICT, text, "%s is pinned to %s", slot, pinned);
    if (nothing)
        return refuse(ANSWER_CONFLICT, text,
                      "%s runs the eager kernel and there is nothing before it", slot);
    return slot_answer(s, p, text);
}

/* ---- disables ------------------------------------------------------------------------------ */

/* A kernel's key in the store, or a template's name. */
static bool nameable(struct specializer *s, const char *what)
{
    struct record r;
    if (template_find(what) || agent_template_find(what))
        return true;
    int found = store_get(s->store, what, &r, NULL);
    if (found > 0)
        free(r.log);
    return found > 0;
}

/* Every slot that runs it goes back to eager; an interrupted stage notices at its next look. */
static void take_out_locked(struct specializer *s, const char *reason, const char *who)
{
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (p->locked.active &&
            is_disabled_locked(s, p->locked.active->key, p->locked.active->template->id))
            swap_out_locked(s, p, LIFE_DISABLED, ROLLBACK_OPERATOR, reason, who);
        if (p->locked.previous &&
            is_disabled_locked(s, p->locked.previous->key, p->locked.previous->template->id)) {
            candidate_drop_locked(s, p->locked.previous);
            p->locked.previous = NULL;
        }
    }
    atomic_store(&s->interrupt, true);
}

static enum specializer_answer disable_answer(struct specializer *s, const char *what,
                                              bool disabled, char **text)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "kernel", what);
    cJSON_AddBoolToObject(o, "disabled", disabled);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return done(o, text);
}

enum specializer_answer specializer_disable(struct specializer *s, const char *what,
                                            const char *reason, const char *who, char **text)
{
    struct err err;
    if (not_ready(s, text))
        return ANSWER_LOADING;
    if (strcmp(what, "eager") == 0)
        return refuse(ANSWER_CONFLICT, text,
                      "the eager kernel is the fallback and cannot be disabled");
    if (!nameable(s, what))
        return refuse(ANSWER_UNKNOWN, text, "there is no kernel or template \"%.40s\"", what);
    if (!reason || !*reason)
        reason = "disabled by an operator";
    pthread_mutex_lock(&s->lock);
    int r =
        is_disabled_locked(s, what, what) ? 0 : store_disable(s->store, what, reason, who, &err);
    if (r == 0) {
        operators_read_locked(s);
        take_out_locked(s, reason, who);
    }
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? disable_answer(s, what, true, text)
                  : refuse(ANSWER_FAILED, text, "%s", err.msg);
}

enum specializer_answer specializer_enable(struct specializer *s, const char *what, const char *who,
                                           char **text)
{
    struct err err;
    if (not_ready(s, text))
        return ANSWER_LOADING;
    if (!nameable(s, what))
        return refuse(ANSWER_UNKNOWN, text, "there is no kernel or template \"%.40s\"", what);
    pthread_mutex_lock(&s->lock);
    int r = is_disabled_locked(s, what, what) ? store_enable(s->store, what, who, &err) : 0;
    if (r == 0)
        operators_read_locked(s);
    for (int i = 0; i < s->slot_searches; i++)
        s->slot_search[i].locked.stale =
            true; /* points that were passed over may be proposed now */
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? disable_answer(s, what, false, text)
                  : refuse(ANSWER_FAILED, text, "%s", err.msg);
}

/* ---- mode, trace, export ------------------------------------------------------------------- */

const char *const mode_names[] = {"run", "pause", "freeze"};

enum specializer_answer specializer_set_mode(struct specializer *s, enum specializer_mode mode,
                                             const char *who, char **text)
{
    struct err err;
    if (s->numerics == NUMERICS_FROZEN && mode != SPECIALIZER_FREEZE)
        return refuse(ANSWER_CONFLICT, text,
                      "frozen by the configuration (specializer.numerics = frozen)");
    pthread_mutex_lock(&s->lock);
    int r = 0;
    if ((int)mode != atomic_load(&s->mode)) {
        r = store_set(s->store, "mode", mode_names[mode], &err);
        if (r == 0) {
            atomic_store(&s->mode, (int)mode);
            store_trace(s->store, NULL, NULL, mode_names[mode], who, "%s", "the specializer");
        }
    }
    if (r == 0 && mode != SPECIALIZER_RUN)
        atomic_store(&s->interrupt, true);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (r != 0)
        return refuse(ANSWER_FAILED, text, "%s", err.msg);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "mode", mode_names[mode]);
    return done(o, text);
}

static void add_trace(void *ctx, const struct trace_row *row)
{
    cJSON_AddItemToArray(ctx, trace_json(row));
}

enum specializer_answer specializer_trace(struct specializer *s, const char *slot, int64_t since_s,
                                          bool lines, char **text)
{
    enum { TRACE_MOST = 5000 };
    struct err err;
    cJSON *rows = cJSON_CreateArray();
    if (store_traces(s->store, slot, since_s, TRACE_MOST, add_trace, rows, &err) != 0) {
        cJSON_Delete(rows);
        return refuse(ANSWER_FAILED, text, "%s", err.msg);
    }
    if (!lines) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToObject(o, "trace", rows);
        return done(o, text);
    }
    size_t n = 0;
    FILE *out = open_memstream(text, &n);
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        char *line = cJSON_PrintUnformatted(row);
        fprintf(out, "%s\n", line);
        free(line);
    }
    fclose(out);
    cJSON_Delete(rows);
    return ANSWER_DONE;
}

enum specializer_answer specializer_fleet(struct specializer *s, char **text)
{
    return not_ready(s, text) ? ANSWER_LOADING : done(fleet_json(s->fleet, true), text);
}

enum specializer_answer specializer_export(struct specializer *s, char **text)
{
    struct err err;
    cJSON *o = store_export(s->store, &err);
    return o ? done(o, text) : refuse(ANSWER_FAILED, text, "%s", err.msg);
}

enum specializer_answer specializer_import(struct specializer *s, const char *body, size_t n,
                                           const char *who, char **text)
{
    struct err err = {{0}};
    uint64_t errors = store_errors(s->store);
    int taken = store_import(s->store, body, n, who, &err);
    if (taken < 0) /* the body's fault, unless the store's */
        return refuse(store_errors(s->store) == errors ? ANSWER_WRONG : ANSWER_FAILED, text, "%s",
                      err.msg);
    atomic_store(&s->imported, true);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "imported", taken);
    return done(o, text);
}
