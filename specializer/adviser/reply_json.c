/* SPDX-License-Identifier: Apache-2.0 */
/* reply_json.c - see reply_json.h.
 *
 * Three steps, each of which may reject: the bytes (size, UTF-8, control characters, depth), the
 * fence, the document (cJSON, then what cJSON lets pass: keys that come twice, text behind the
 * end).
 *
 * The text is hostile until shown otherwise. It is copied first, with zeros behind it, because
 * cJSON 1.7.15 may look one byte beyond a length it was given; \u0000 is refused because C strings
 * would end there; labels and notes lose what could steer a terminal or turn the direction of
 * writing, and are escaped again wherever they are shown.
 */
#include "specializer/adviser/reply_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/json_strict.h"
#include "engine/utf8.h"

const char *reply_fault_name(enum reply_fault f)
{
    static const char *const names[] = {
#define F(id, name) name,
        REPLY_FAULT_LIST(F)
#undef F
    };
    return f < REPLY_FAULTS ? names[f] : "?";
}

int reply_bad(const struct reading *r, enum reply_fault f, const char *fmt, ...)
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

/* ---- bytes --------------------------------------------------------------------------------- */

/* Depth, and characters that have no business in JSON; strings are followed so that brackets in
 * them do not count. */
static int scan(const struct reading *r, const char *s, size_t n)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0, length; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 && (quoted || (c != '\t' && c != '\n' && c != '\r')))
            return reply_bad(r, REPLY_NOT_TEXT, "control character %d at byte %zu", c, i);
        if (quoted && c == '\\') {
            length = json_escape_length(s + i, n - i);
            if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0)
                return reply_bad(r, REPLY_NOT_TEXT, "\\u0000 at byte %zu", i);
            if (length == 0)
                return reply_bad(r, REPLY_SYNTAX, "malformed escape at byte %zu", i);
            i += length - 1;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (length = json_number_length(s + i, n - i)) > 0) {
            if (!json_is_number(s + i, length))
                return reply_bad(r, REPLY_SYNTAX, "malformed number at byte %zu", i);
            i += length - 1;
        } else if (!quoted && (c == '{' || c == '[')) {
            if (++depth > REPLY_DEPTH_MOST)
                return reply_bad(r, REPLY_TOO_DEEP, "nested deeper than %d", REPLY_DEPTH_MOST);
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

/* ---- document ------------------------------------------------------------------------------ */

/* cJSON keeps all members of a name; here a name that comes twice is an attempt to say two things.
 * Members are few, so that comparing each with each stays cheap. */
static int check_keys(const struct reading *r, const cJSON *o)
{
    enum { MEMBERS_MOST = 64 };
    const cJSON *a, *b;
    if (cJSON_IsObject(o) && cJSON_GetArraySize(o) > MEMBERS_MOST)
        return reply_bad(r, REPLY_TOO_LARGE, "an object with more than %d members", MEMBERS_MOST);
    cJSON_ArrayForEach(a, o)
    {
        if (cJSON_IsObject(o))
            for (b = a->next; b; b = b->next)
                if (strcmp(a->string, b->string) == 0)
                    return reply_bad(r, REPLY_DUPLICATE_KEY, "\"%.60s\"", a->string);
        if (check_keys(r, a) != 0)
            return -1;
    }
    return 0;
}

static const char *type_name(int type)
{
    return type == REPLY_STRING   ? "a string"
           : type == REPLY_NUMBER ? "a number"
           : type == REPLY_LIST   ? "a list"
                                  : "an object";
}

int reply_fields(const struct reading *r, const cJSON *o, const char *where,
                 const struct reply_field *field, int n, const cJSON **at)
{
    const cJSON *v;
    if (!cJSON_IsObject(o))
        return reply_bad(r, REPLY_TYPE, "%s is not an object", where);
    memset(at, 0, (size_t)n * sizeof *at);
    cJSON_ArrayForEach(v, o)
    {
        int i = 0;
        while (i < n && strcmp(field[i].name, v->string) != 0)
            i++;
        if (i == n)
            return reply_bad(r, REPLY_UNKNOWN_FIELD, "\"%.60s\" in %s", v->string, where);
        if ((v->type & 0xff) != field[i].type)
            return reply_bad(r, REPLY_TYPE, "\"%s\" in %s is not %s", field[i].name, where,
                             type_name(field[i].type));
        at[i] = v;
    }
    for (int i = 0; i < n; i++)
        if (!at[i])
            return reply_bad(r, REPLY_MISSING_FIELD, "\"%s\" in %s", field[i].name, where);
    return 0;
}

cJSON *reply_document(const struct reading *r, const char *text, size_t n,
                      const struct reply_field *top, int tops, const cJSON **at)
{
    const cJSON *version;
    if (n > REPLY_BYTES_MOST) {
        reply_bad(r, REPLY_TOO_LARGE, "%zu bytes", n);
        return NULL;
    }
    if (!utf8_valid(text, n)) {
        reply_bad(r, REPLY_NOT_TEXT, "not UTF-8");
        return NULL;
    }
    trim(&text, &n);
    unfence(&text, &n);
    if (n == 0) {
        reply_bad(r, REPLY_EMPTY, "no text");
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
        result = reply_bad(r, REPLY_SYNTAX, "not JSON");
    else if (rest > 0)
        result = reply_bad(r, REPLY_TRAILING, "%zu bytes behind the document", rest);
    else if (check_keys(r, o) != 0)
        result = -1;
    /* A version that is not ours is said to be that, whatever else the document has. */
    else if (cJSON_IsNumber(version = cJSON_GetObjectItemCaseSensitive(o, "version")) &&
             version->valuedouble != REPLY_VERSION)
        result = reply_bad(r, REPLY_WRONG_VERSION, "%g", version->valuedouble);
    else
        result = reply_fields(r, o, "the reply", top, tops, at);
    free(copy);
    if (result != 0) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

/* ---- text for people ----------------------------------------------------------------------- */

static bool is_steering(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || (cp >= 0x202a && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0x2028 || cp == 0x2029;
}

int reply_copy_text(const struct reading *r, const cJSON *v, const char *what, int chars, char *out,
                    size_t room)
{
    const char *s = v->valuestring;
    size_t n = strlen(s), used = 0;
    int count = 0;
    while (n > 0) {
        uint32_t cp = 0;
        int k = utf8_decode(s, n, &cp);
        if (k <= 0)
            return reply_bad(r, REPLY_NOT_TEXT, "%s is not UTF-8", what);
        if (++count > chars || used + (size_t)k >= room)
            return reply_bad(r, REPLY_TOO_LONG, "%s has more than %d characters", what, chars);
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
