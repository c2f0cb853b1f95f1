/* adviser_reply.c - see adviser_reply.h.
 *
 * Four steps, each of which may reject: the bytes (size, UTF-8, control characters, depth), the
 * fence, the document (cJSON, then what cJSON lets pass: keys that come twice, text behind the
 * end), and the meaning, field by field from tables that say which fields there are and of which
 * type.
 *
 * The text is hostile until shown otherwise. It is copied first, with zeros behind it, because
 * cJSON 1.7.15 may look one byte beyond a length it was given; \u0000 is refused because C strings
 * would end there; labels and notes lose what could steer a terminal or turn the direction of
 * writing, and are escaped again wherever they are shown.
 */
#include "specializer/adviser_reply.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

struct reading {
    enum reply_fault *fault;
    struct err *err;
};

const char *reply_fault_name(enum reply_fault f)
{
    static const char *const names[] = {
#define F(id, name) name,
        REPLY_FAULT_LIST(F)
#undef F
    };
    return f < REPLY_FAULTS ? names[f] : "?";
}

static int bad(const struct reading *r, enum reply_fault f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int bad(const struct reading *r, enum reply_fault f, const char *fmt, ...)
{
    char what[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *c = what; *c; c++) /* it quotes the reply, and goes into logs and traces */
        if (*c < 0x20 || *c > 0x7e)
            *c = '?';
    *r->fault = f;
    return err_set(r->err, "%s: %s", reply_fault_name(f), what);
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

/* Depth, and characters that have no business in JSON; strings are followed so that brackets in
 * them do not count. */
static int scan(const struct reading *r, const char *s, size_t n)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 && (quoted || (c != '\t' && c != '\n' && c != '\r')))
            return bad(r, REPLY_NOT_TEXT, "control character %d at byte %zu", c, i);
        if (quoted && c == '\\') {
            if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0)
                return bad(r, REPLY_NOT_TEXT, "\\u0000 at byte %zu", i);
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            if (++depth > REPLY_DEPTH_MOST)
                return bad(r, REPLY_TOO_DEEP, "nested deeper than %d", REPLY_DEPTH_MOST);
        } else if (!quoted && (c == '}' || c == ']')) {
            depth--;
        }
    }
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void trim(const char **s, size_t *n)
{
    while (*n > 0 && is_blank(**s)) {
        ++*s;
        --*n;
    }
    while (*n > 0 && is_blank((*s)[*n - 1]))
        --*n;
}

/* Takes one Markdown fence off: three backquotes, perhaps "json", a line end; three backquotes. */
static void unfence(const char **s, size_t *n)
{
    static const char *const opening[] = {"```json", "```"};
    for (int i = 0; i < 2; i++) {
        size_t k = strlen(opening[i]);
        if (*n < k + 4 || memcmp(*s, opening[i], k) != 0 || memcmp(*s + *n - 3, "```", 3) != 0)
            continue;
        if ((*s)[k] != '\n' && (*s)[k] != '\r')
            continue;
        *s += k;
        *n -= k + 3;
        trim(s, n);
        return;
    }
}

/* ---- document ---------------------------------------------------------------------------------
 */

/* cJSON keeps all members of a name; here a name that comes twice is an attempt to say two things.
 * Members are few, so that comparing each with each stays cheap. */
static int check_keys(const struct reading *r, const cJSON *o)
{
    enum { MEMBERS_MOST = 64 };
    const cJSON *a, *b;
    if (cJSON_IsObject(o) && cJSON_GetArraySize(o) > MEMBERS_MOST)
        return bad(r, REPLY_TOO_LARGE, "an object with more than %d members", MEMBERS_MOST);
    cJSON_ArrayForEach(a, o)
    {
        if (cJSON_IsObject(o))
            for (b = a->next; b; b = b->next)
                if (strcmp(a->string, b->string) == 0)
                    return bad(r, REPLY_DUPLICATE_KEY, "\"%.60s\"", a->string);
        if (check_keys(r, a) != 0)
            return -1;
    }
    return 0;
}

enum { STRING = cJSON_String, NUMBER = cJSON_Number, LIST = cJSON_Array, OBJECT = cJSON_Object };

/* Fields of an object, all of them obligatory and no others allowed. */
struct field {
    const char *name;
    int type;
};

static const char *type_name(int type)
{
    return type == STRING   ? "a string"
           : type == NUMBER ? "a number"
           : type == LIST   ? "a list"
                            : "an object";
}

/* Puts the fields of `o` into at[0..n), in the order of the table. */
static int fields(const struct reading *r, const cJSON *o, const char *where,
                  const struct field *field, int n, const cJSON **at)
{
    const cJSON *v;
    if (!cJSON_IsObject(o))
        return bad(r, REPLY_TYPE, "%s is not an object", where);
    memset(at, 0, (size_t)n * sizeof *at);
    cJSON_ArrayForEach(v, o)
    {
        int i = 0;
        while (i < n && strcmp(field[i].name, v->string) != 0)
            i++;
        if (i == n)
            return bad(r, REPLY_UNKNOWN_FIELD, "\"%.60s\" in %s", v->string, where);
        if ((v->type & 0xff) != field[i].type)
            return bad(r, REPLY_TYPE, "\"%s\" in %s is not %s", field[i].name, where,
                       type_name(field[i].type));
        at[i] = v;
    }
    for (int i = 0; i < n; i++)
        if (!at[i])
            return bad(r, REPLY_MISSING_FIELD, "\"%s\" in %s", field[i].name, where);
    return 0;
}

/* The whole document with its version and its one list, or NULL. Delete it. */
static cJSON *document(const struct reading *r, const char *text, size_t n, const char *list_name,
                       const cJSON **list)
{
    const struct field top[] = {{"version", NUMBER}, {list_name, LIST}};
    const cJSON *at[2], *version;
    if (n > REPLY_BYTES_MOST) {
        bad(r, REPLY_TOO_LARGE, "%zu bytes", n);
        return NULL;
    }
    if (!utf8_valid(text, n)) {
        bad(r, REPLY_NOT_TEXT, "not UTF-8");
        return NULL;
    }
    trim(&text, &n);
    unfence(&text, &n);
    if (n == 0) {
        bad(r, REPLY_EMPTY, "no text");
        return NULL;
    }
    if (scan(r, text, n) != 0)
        return NULL;
    const char *end = NULL;
    char *copy = xcalloc(n + 16, 1);
    memcpy(copy, text, n);
    cJSON *o = cJSON_ParseWithLengthOpts(copy, n, &end, false);
    int result = 0;
    size_t rest = o ? n - (size_t)(end - copy) : 0;
    trim(&end, &rest);
    if (!o)
        result = bad(r, REPLY_SYNTAX, "not JSON");
    else if (rest > 0)
        result = bad(r, REPLY_TRAILING, "%zu bytes behind the document", rest);
    else if (check_keys(r, o) != 0)
        result = -1;
    /* A version that is not ours is said to be that, whatever else the document has. */
    else if (cJSON_IsNumber(version = cJSON_GetObjectItemCaseSensitive(o, "version")) &&
             version->valuedouble != REPLY_VERSION)
        result = bad(r, REPLY_WRONG_VERSION, "%g", version->valuedouble);
    else
        result = fields(r, o, "the reply", top, 2, at);
    free(copy);
    if (result != 0) {
        cJSON_Delete(o);
        return NULL;
    }
    *list = at[1];
    return o;
}

/* ---- meaning ----------------------------------------------------------------------------------
 */

static bool is_steering(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || (cp >= 0x202a && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0x2028 || cp == 0x2029;
}

/* Copies text for people: at most `chars` characters, or it is too long. */
static int copy_text(const struct reading *r, const cJSON *v, const char *what, int chars,
                     char *out, size_t room)
{
    const char *s = v->valuestring;
    size_t n = strlen(s), used = 0;
    int count = 0;
    while (n > 0) {
        uint32_t cp = 0;
        int k = utf8_decode(s, n, &cp);
        if (k <= 0)
            return bad(r, REPLY_NOT_TEXT, "%s is not UTF-8", what);
        if (++count > chars || used + (size_t)k >= room)
            return bad(r, REPLY_TOO_LONG, "%s has more than %d characters", what, chars);
        if (is_steering(cp)) {
            out[used++] = ' ';
        } else {
            memcpy(out + used, s, (size_t)k);
            used += (size_t)k;
        }
        s += k;
        n -= (size_t)k;
    }
    out[used] = 0;
    return 0;
}

/* A list of ids, each in the space and none twice, into malloc'ed *out. */
static int read_ids(const struct reading *r, const struct reply_terms *t, const cJSON *list,
                    int32_t **out, int *ids)
{
    const cJSON *v;
    int most = cJSON_GetArraySize(list);
    *out = xmalloc(((size_t)most + 1) * sizeof **out);
    *ids = 0;
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsString(v))
            return bad(r, REPLY_TYPE, "an id in \"%s\" is not a string", list->string);
        int32_t id = t->find(t->ctx, v->valuestring);
        if (id < 0)
            return bad(r, REPLY_UNKNOWN_ID, "\"%.80s\"", v->valuestring);
        for (int i = 0; i < *ids; i++)
            if ((*out)[i] == id)
                return bad(r, REPLY_REPEATED, "id \"%.80s\"", v->valuestring);
        (*out)[(*ids)++] = id;
    }
    return 0;
}

static bool is_among(const int32_t *value, int n, double v)
{
    for (int i = 0; i < n; i++)
        if ((double)value[i] == v)
            return true;
    return false;
}

static int read_hint(const struct reading *r, const struct reply_terms *t, const cJSON *list,
                     struct hint *h)
{
    int32_t legal[KNOB_VALUES];
    const cJSON *v;
    int n = t->values(t->ctx, list->string, legal);
    if (n == 0)
        return bad(r, REPLY_UNKNOWN_KNOB, "\"%.60s\"", list->string);
    if (!cJSON_IsArray(list))
        return bad(r, REPLY_TYPE, "hint \"%s\" is not a list", list->string);
    snprintf(h->knob, sizeof h->knob, "%s", list->string);
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsNumber(v))
            return bad(r, REPLY_TYPE, "a value of hint \"%s\" is not a number", h->knob);
        if (!is_among(legal, n, v->valuedouble))
            return bad(r, REPLY_UNKNOWN_VALUE, "%s=%g", h->knob, v->valuedouble);
        if (is_among(h->value, h->values, v->valuedouble))
            return bad(r, REPLY_REPEATED, "%s=%g", h->knob, v->valuedouble);
        h->value[h->values++] = (int32_t)v->valuedouble;
    }
    return 0;
}

static int read_hints(const struct reading *r, const struct reply_terms *t, const cJSON *hints,
                      struct advice *out)
{
    const cJSON *v;
    out->hint = xcalloc((size_t)cJSON_GetArraySize(hints) + 1, sizeof *out->hint);
    cJSON_ArrayForEach(v, hints)
    {
        struct hint *h = &out->hint[out->hints];
        if (read_hint(r, t, v, h) != 0)
            return -1;
        out->hints += h->values > 0;
    }
    return 0;
}

static int read_risk(const struct reading *r, const struct reply_terms *t, const cJSON *o,
                     struct risk_note *out)
{
    static const struct field risk[] = {{"kind", STRING}, {"candidates", LIST}, {"note", STRING}};
    static const char *const kinds[] = {"numeric", "boundary", "resource", "dynamic_shape"};
    const cJSON *at[3];
    int k = 0;
    if (fields(r, o, "a risk", risk, 3, at) != 0)
        return -1;
    while (k < 4 && strcmp(kinds[k], at[0]->valuestring) != 0)
        k++;
    if (k == 4)
        return bad(r, REPLY_UNKNOWN_KIND, "\"%.60s\"", at[0]->valuestring);
    out->kind = (enum risk)(1 << k);
    if (copy_text(r, at[2], "a note", NOTE_CHARS_MOST, out->note, sizeof out->note) != 0)
        return -1;
    return read_ids(r, t, at[1], &out->id, &out->ids);
}

static int read_region(const struct reading *r, const struct reply_terms *terms, int regions,
                       bool *seen, const cJSON *o, struct advice *out)
{
    static const struct field region[] = {{"region", STRING},
                                          {"label", STRING},
                                          {"priority", LIST},
                                          {"hints", OBJECT},
                                          {"risks", LIST}};
    const cJSON *at[5], *v;
    int i = 0;
    if (fields(r, o, "a region", region, 5, at) != 0)
        return -1;
    while (i < regions && strcmp(terms[i].region, at[0]->valuestring) != 0)
        i++;
    if (i == regions)
        return bad(r, REPLY_UNKNOWN_REGION, "\"%.60s\"", at[0]->valuestring);
    if (seen[i])
        return bad(r, REPLY_REPEATED, "region \"%s\"", terms[i].region);
    seen[i] = true;
    struct advice *a = &out[i];
    if (copy_text(r, at[1], "a label", (int)sizeof a->label - 1, a->label, sizeof a->label) != 0 ||
        read_ids(r, &terms[i], at[2], &a->priority, &a->priorities) != 0 ||
        read_hints(r, &terms[i], at[3], a) != 0)
        return -1;
    if (cJSON_GetArraySize(at[4]) > RISKS_MOST)
        return bad(r, REPLY_TOO_LONG, "more than %d risks", RISKS_MOST);
    a->risk = xcalloc((size_t)cJSON_GetArraySize(at[4]) + 1, sizeof *a->risk);
    cJSON_ArrayForEach(v,
                       at[4]) if (read_risk(r, &terms[i], v, &a->risk[a->risks++]) != 0) return -1;
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
    bool *seen = xcalloc((size_t)regions + 1, sizeof *seen);
    memset(out, 0, (size_t)regions * sizeof *out);
    if (cJSON_GetArraySize(list) == 0)
        result = bad(&r, REPLY_EMPTY, "no region");
    cJSON_ArrayForEach(v, list) if (result == 0) result =
        read_region(&r, terms, regions, seen, v, out);
    for (int i = 0; result != 0 && i < regions; i++)
        advice_free(&out[i]);
    free(seen);
    cJSON_Delete(o);
    return result;
}

/* ---- moves ------------------------------------------------------------------------------------
 */

/* "ROWS=4" if that is a knob and one of its values. */
static bool read_word(const struct reply_terms *t, const char *word, struct change *out)
{
    int32_t legal[KNOB_VALUES], value;
    int used = 0;
    if (sscanf(word, "%31[A-Z0-9_]=%9d%n", out->knob, &value, &used) != 2 || word[used])
        return false;
    out->value = value;
    return is_among(legal, t->values(t->ctx, out->knob, legal), value);
}

static int read_moves(const struct reading *r, const struct reply_terms *t, const cJSON *o,
                      struct moves *out)
{
    static const struct field node[] = {{"node", STRING}, {"changes", LIST}};
    const cJSON *at[2], *v;
    if (fields(r, o, "a node", node, 2, at) != 0)
        return -1;
    out->n = 0;
    out->node = t->find(t->ctx, at[0]->valuestring);
    if (out->node < 0)
        return bad(r, REPLY_UNKNOWN_ID, "\"%.80s\"", at[0]->valuestring);
    cJSON_ArrayForEach(v, at[1])
    {
        if (!cJSON_IsString(v))
            return bad(r, REPLY_TYPE, "a change is not a string");
        if (out->n < CHANGES_MOST && read_word(t, v->valuestring, &out->change[out->n]))
            out->n++;
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
        found = bad(&r, REPLY_TOO_LONG, "more than %d nodes", most);
    cJSON_ArrayForEach(v, list) if (found >= 0) found =
        read_moves(&r, terms, v, &out[found]) == 0 ? found + 1 : -1;
    cJSON_Delete(o);
    return found;
}
