/* SPDX-License-Identifier: Apache-2.0 */
/* admin.c - what operators see of slots, kernels, the trace and the store (specializer.h), as JSON.
 *
 * Runs on the server's threads. What they change is in operators.c; a page of everything, status.c.
 */
#include <stdio.h>
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

enum specializer_answer answer_json(cJSON *o, char **text)
{
    *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return ANSWER_DONE;
}

enum specializer_answer answer_refuse(enum specializer_answer why, char **text, const char *fmt,
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

enum specializer_answer answer_no_slot(const struct specializer *s, const char *slot, char **text)
{
    char names[200] = "";
    size_t at = 0;
    for (int i = 0; i < dispatch_slots(s->env.dispatch) && at < sizeof names; i++) {
        const struct slot *one = dispatch_slot_at(s->env.dispatch, i);
        if (slot_named(one, slot))
            at += (size_t)snprintf(names + at, sizeof names - at, "%s %s", at ? "," : ", but",
                                   one->name);
    }
    return answer_refuse(ANSWER_UNKNOWN, text, "there is no slot \"%.60s\"%s", slot, names);
}

bool answer_loading(struct specializer *s, char **text)
{
    if (atomic_load(&s->ready))
        return false;
    answer_refuse(ANSWER_LOADING, text, "%s",
                  atomic_load(&s->doing) == DOING_HELD
                      ? "the specializer is held back: its beginning ended the last processes; "
                        "POST /admin/specializer/resume lets it go on"
                      : "the model is still loading");
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

cJSON *slot_json_locked(struct specializer *s, const struct slot_search *p)
{
    cJSON *o = cJSON_CreateObject();
    const struct candidate *c = p->locked.active;
    cJSON_AddStringToObject(o, "slot", p->slot->name);
    cJSON_AddStringToObject(o, "region", region_name(p->slot->region));
    cJSON_AddNumberToObject(o, "m", p->slot->m);
    if (p->slot->context > 0)
        cJSON_AddNumberToObject(o, "context", p->slot->context);
    if (p->slot->formats) {
        cJSON_AddStringToObject(o, "formats", p->slot->formats->name);
        cJSON_AddNumberToObject(o, "layers", p->slot->formats->layers);
    }
    cJSON_AddItemToObject(o, "kernel", kernel_brief(c));
    cJSON_AddStringToObject(o, "state", p->locked.pinned[0] ? "pinned" : c ? "active" : "eager");
    if (p->locked.pinned[0])
        cJSON_AddStringToObject(o, "pinned", p->locked.pinned);
    else
        cJSON_AddNullToObject(o, "pinned");
    if (p->locked.previous)
        cJSON_AddItemToObject(o, "previous", kernel_brief(p->locked.previous));
    cJSON_AddNumberToObject(o, "share", p->locked.own);
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

/* Layers of regions with more format classes than have slots, in the steps of a zone (plan.h). */
cJSON *layers_without_slots_json(const struct specializer *s)
{
    const struct formats *f = dispatch_formats(s->env.dispatch);
    cJSON *a = cJSON_CreateArray();
    for (int i = 0; i < ZONES * REGION_NODES; i++) {
        enum region r = (enum region)(i / ZONES);
        int tokens = device_zone_from(i % ZONES);
        int32_t layers = formats_beyond(f, r, tokens);
        if (layers == 0 || region_info(r)->parts)
            continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "region", region_name(r));
        cJSON_AddNumberToObject(o, "m_from", tokens);
        cJSON_AddNumberToObject(o, "layers", layers);
        char why[120];
        snprintf(why, sizeof why,
                 "the region's layers have more than %d combinations of formats, and these the "
                 "fewest bytes",
                 (int)FORMAT_CLASSES);
        cJSON_AddStringToObject(o, "why", why);
        cJSON_AddItemToArray(a, o);
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
    if (answer_loading(s, text))
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
        cJSON_AddItemToObject(o, "layers_without_slots", layers_without_slots_json(s));
    }
    pthread_mutex_unlock(&s->lock);
    return o ? answer_json(o, text) : answer_no_slot(s, slot, text);
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
            return answer_json(o, text);
        cJSON_Delete(o);
        return answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
    }
    struct record r;
    int found = store_get(s->store, id, &r, &err);
    if (found < 0)
        return answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
    if (found == 0)
        return answer_refuse(ANSWER_UNKNOWN, text, "there is no kernel \"%.40s\"", id);
    o = record_json(&r);
    pthread_mutex_lock(&s->lock);
    add_disable_locked(s, o, r.key, r.template);
    pthread_mutex_unlock(&s->lock);
    add_source(s->store, &r, o);
    cJSON_AddStringToObject(o, "log", r.log ? r.log : "");
    free(r.log);
    return answer_json(o, text);
}

/* ---- trace, fleet, export ------------------------------------------------------------------- */

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
        return answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
    }
    if (!lines) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToObject(o, "trace", rows);
        return answer_json(o, text);
    }
    size_t n = 0;
    FILE *out = xmemstream(text, &n);
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
    return answer_loading(s, text) ? ANSWER_LOADING : answer_json(fleet_json(s->fleet, true), text);
}

enum specializer_answer specializer_export(struct specializer *s, char **text)
{
    struct err err;
    cJSON *o = store_export(s->store, &err);
    return o ? answer_json(o, text) : answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
}

enum specializer_answer specializer_import(struct specializer *s, const char *body, size_t n,
                                           const char *who, char **text)
{
    struct err err = {{0}};
    uint64_t errors = store_errors(s->store);
    int taken = store_import(s->store, body, n, who, &err);
    if (taken < 0) /* the body's fault, unless the store's */
        return answer_refuse(store_errors(s->store) == errors ? ANSWER_WRONG : ANSWER_FAILED, text,
                             "%s", err.msg);
    atomic_store(&s->imported, true);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "imported", taken);
    return answer_json(o, text);
}
