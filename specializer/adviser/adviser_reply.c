/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_reply.c - see adviser_reply.h. The form is read by reply_json.c; here is the meaning,
 * field by field from tables that say which fields there are and of which type. */
#include "specializer/adviser/adviser_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/reply_json.h"

/* The document with its version and its one list, or NULL. Delete it. */
static cJSON *document(const struct reading *r, const char *text, size_t n, const char *list_name,
                       const cJSON **list)
{
    const struct reply_field top[] = {{"version", REPLY_NUMBER}, {list_name, REPLY_LIST}};
    const cJSON *at[2];
    cJSON *o = reply_document(r, text, n, top, 2, at);
    *list = o ? at[1] : NULL;
    return o;
}

/* Ids that were left out: how many, and the first. */
struct voided {
    int n;
    char first[81];
};

static void leave_out(struct voided *v, const char *id)
{
    if (v->n++ == 0)
        snprintf(v->first, sizeof v->first, "%s", id);
}

static bool is_among_ids(const int32_t *id, int n, int32_t one)
{
    for (int i = 0; i < n; i++)
        if (id[i] == one)
            return true;
    return false;
}

/* A list of ids into malloc'ed *out. One that is not in the space, or was there before, is left
 * out: the others were meant all the same. A list of which nothing is left is of somebody who names
 * another space. */
static int read_ids(const struct reading *r, const struct reply_terms *t, const cJSON *list,
                    int32_t **out, int *ids, struct voided *voided)
{
    const cJSON *v;
    int most = cJSON_GetArraySize(list);
    *out = xmalloc(((size_t)most + 1) * sizeof **out);
    *ids = 0;
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsString(v))
            return reply_bad(r, REPLY_TYPE, "an id in \"%s\" is not a string", list->string);
        int32_t id = t->find(t->ctx, v->valuestring);
        if (id < 0 || is_among_ids(*out, *ids, id))
            leave_out(voided, v->valuestring);
        else
            (*out)[(*ids)++] = id;
    }
    return most > 0 && *ids == 0 ? reply_bad(r, REPLY_UNKNOWN_ID, "\"%.80s\"", voided->first) : 0;
}

static bool is_among(const int32_t *value, int n, double v)
{
    for (int i = 0; i < n; i++)
        if ((double)value[i] == v)
            return true;
    return false;
}

/* `template`: whose knob it is, or NULL. */
static int read_hint(const struct reading *r, const struct reply_terms *t, const char *template,
                     const cJSON *list, struct hint *h)
{
    int32_t legal[KNOB_VALUES];
    const cJSON *v;
    int n = t->values(t->ctx, template, list->string, legal);
    if (n == 0)
        return reply_bad(r, REPLY_UNKNOWN_KNOB, "\"%.60s\"", list->string);
    if (!cJSON_IsArray(list))
        return reply_bad(r, REPLY_TYPE, "hint \"%s\" is not a list", list->string);
    snprintf(h->template, sizeof h->template, "%s", template ? template : "");
    snprintf(h->knob, sizeof h->knob, "%s", list->string);
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsNumber(v))
            return reply_bad(r, REPLY_TYPE, "a value of hint \"%s\" is not a number", h->knob);
        if (!is_among(legal, n, v->valuedouble))
            return reply_bad(r, REPLY_UNKNOWN_VALUE, "%s=%g", h->knob, v->valuedouble);
        if (is_among(h->value, h->values, v->valuedouble))
            return reply_bad(r, REPLY_REPEATED, "%s=%g", h->knob, v->valuedouble);
        h->value[h->values++] = (int32_t)v->valuedouble;
    }
    return 0;
}

/* The knobs of one template, or with `template` NULL those that are named without one. */
static int read_knobs(const struct reading *r, const struct reply_terms *t, const char *template,
                      const cJSON *knobs, struct advice *out)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, knobs)
    {
        if (!template && cJSON_IsObject(v))
            continue;
        struct hint *h = &out->hint[out->hints];
        if (read_hint(r, t, template, v, h) != 0)
            return -1;
        out->hints += h->values > 0;
    }
    return 0;
}

/* Knobs by template; a list stands for every template that has the knob. */
static int read_hints(const struct reading *r, const struct reply_terms *t, const cJSON *hints,
                      struct advice *out)
{
    const cJSON *v;
    size_t most = (size_t)cJSON_GetArraySize(hints) + 1;
    cJSON_ArrayForEach(v, hints)
    {
        most += cJSON_IsObject(v) ? (size_t)cJSON_GetArraySize(v) : 0;
    }
    out->hint = xcalloc(most, sizeof *out->hint);
    if (read_knobs(r, t, NULL, hints, out) != 0)
        return -1;
    cJSON_ArrayForEach(v, hints)
    {
        if (cJSON_IsObject(v) && read_knobs(r, t, v->string, v, out) != 0)
            return -1;
    }
    return 0;
}

static int read_risk(const struct reading *r, const struct reply_terms *t, const cJSON *o,
                     struct risk_note *out, struct voided *voided)
{
    static const struct reply_field risk[] = {
        {"kind", REPLY_STRING}, {"candidates", REPLY_LIST}, {"note", REPLY_STRING}};
    static const char *const kinds[] = {"numeric", "boundary", "resource", "dynamic_shape"};
    const cJSON *at[3];
    int k = 0;
    if (reply_fields(r, o, "a risk", risk, 3, at) != 0)
        return -1;
    while (k < 4 && strcmp(kinds[k], at[0]->valuestring) != 0)
        k++;
    if (k == 4)
        return reply_bad(r, REPLY_UNKNOWN_KIND, "\"%.60s\"", at[0]->valuestring);
    out->kind = (enum risk)(1 << k);
    if (reply_copy_text(r, at[2], "a note", NOTE_CHARS_MOST, out->note, sizeof out->note) != 0)
        return -1;
    return read_ids(r, t, at[1], &out->id, &out->ids, voided);
}

static int read_region(const struct reading *r, const struct reply_terms *terms, int regions,
                       bool *seen, const cJSON *o, struct advice *out, struct voided *voided)
{
    static const struct reply_field region[] = {{"region", REPLY_STRING},
                                                {"label", REPLY_STRING},
                                                {"priority", REPLY_LIST},
                                                {"hints", REPLY_OBJECT},
                                                {"risks", REPLY_LIST}};
    const cJSON *at[5], *v;
    int i = 0;
    if (reply_fields(r, o, "a region", region, 5, at) != 0)
        return -1;
    while (i < regions && strcmp(terms[i].region, at[0]->valuestring) != 0)
        i++;
    if (i == regions)
        return reply_bad(r, REPLY_UNKNOWN_REGION, "\"%.60s\"", at[0]->valuestring);
    if (seen[i])
        return reply_bad(r, REPLY_REPEATED, "region \"%s\"", terms[i].region);
    seen[i] = true;
    struct advice *a = &out[i];
    if (reply_copy_text(r, at[1], "a label", (int)sizeof a->label - 1, a->label, sizeof a->label) !=
            0 ||
        read_ids(r, &terms[i], at[2], &a->priority, &a->priorities, voided) != 0 ||
        read_hints(r, &terms[i], at[3], a) != 0)
        return -1;
    if (cJSON_GetArraySize(at[4]) > RISKS_MOST)
        return reply_bad(r, REPLY_TOO_LONG, "more than %d risks", RISKS_MOST);
    a->risk = xcalloc((size_t)cJSON_GetArraySize(at[4]) + 1, sizeof *a->risk);
    cJSON_ArrayForEach(v, at[4])
    {
        if (read_risk(r, &terms[i], v, &a->risk[a->risks++], voided) != 0)
            return -1;
    }
    return 0;
}

int adviser_reply_parse(const char *text, size_t n, const struct reply_terms *terms, int regions,
                        struct advice *out, enum reply_fault *fault, struct err *err)
{
    struct reading r = {fault, err};
    const cJSON *list, *v;
    cJSON *o = document(&r, text, n, "regions", &list);
    if (!o)
        return -1;
    int result = 0;
    struct voided voided = {0};
    bool *seen = xcalloc((size_t)regions + 1, sizeof *seen);
    memset(out, 0, (size_t)regions * sizeof *out);
    if (cJSON_GetArraySize(list) == 0)
        result = reply_bad(&r, REPLY_EMPTY, "no region");
    cJSON_ArrayForEach(v, list)
    {
        if (result == 0)
            result = read_region(&r, terms, regions, seen, v, out, &voided);
    }
    for (int i = 0; result != 0 && i < regions; i++)
        advice_free(&out[i]);
    if (result == 0 && voided.n > 0)
        err_set(err, "%d id%s left out, the first \"%s\"", voided.n, voided.n == 1 ? "" : "s",
                voided.first);
    free(seen);
    cJSON_Delete(o);
    return result;
}

/* ---- moves --------------------------------------------------------------------------------- */

/* "ROWS=4" if that is a knob and one of its values. */
static bool read_word(const struct reply_terms *t, const char *word, struct change *out)
{
    int32_t legal[KNOB_VALUES], value;
    int used = 0;
    if (sscanf(word, "%31[A-Z0-9_]=%9d%n", out->knob, &value, &used) != 2 || word[used])
        return false;
    out->value = value;
    return is_among(legal, t->values(t->ctx, NULL, out->knob, legal), value);
}

static int read_moves(const struct reading *r, const struct reply_terms *t, const cJSON *o,
                      struct moves *out, struct voided *voided)
{
    static const struct reply_field node[] = {{"node", REPLY_STRING}, {"changes", REPLY_LIST}};
    const cJSON *at[2], *v;
    if (reply_fields(r, o, "a node", node, 2, at) != 0)
        return -1;
    out->n = out->dropped = 0;
    out->node = t->find(t->ctx, at[0]->valuestring);
    if (out->node < 0)
        leave_out(voided, at[0]->valuestring);
    cJSON_ArrayForEach(v, at[1])
    {
        if (!cJSON_IsString(v))
            return reply_bad(r, REPLY_TYPE, "a change is not a string");
        if (out->n < CHANGES_MOST && read_word(t, v->valuestring, &out->change[out->n]))
            out->n++;
        else
            out->dropped++;
    }
    return 0;
}

int adviser_moves_parse(const char *text, size_t n, const struct reply_terms *terms,
                        struct moves *out, int most, enum reply_fault *fault, struct err *err)
{
    struct reading r = {fault, err};
    const cJSON *list, *v;
    cJSON *o = document(&r, text, n, "nodes", &list);
    if (!o)
        return -1;
    int found = 0;
    if (cJSON_GetArraySize(list) > most)
        found = reply_bad(&r, REPLY_TOO_LONG, "more than %d nodes", most);
    struct voided voided = {0};
    cJSON_ArrayForEach(v, list)
    {
        if (found >= 0)
            found = read_moves(&r, terms, v, &out[found], &voided) == 0
                        ? found + (out[found].node >= 0)
                        : -1;
    }
    if (found == 0 && voided.n > 0)
        found = reply_bad(&r, REPLY_UNKNOWN_ID, "\"%s\"", voided.first);
    else if (found > 0 && voided.n > 0)
        err_set(err, "%d node%s left out, the first \"%s\"", voided.n, voided.n == 1 ? "" : "s",
                voided.first);
    cJSON_Delete(o);
    return found;
}
