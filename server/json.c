/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - checked JSON reading and direct writing.
 *
 * Reading is two passes: a scanner of our own goes over the raw bytes first and refuses by name
 * what must not reach the tree builder - deep nesting (recursion), a flood of elements (64 bytes
 * of heap each), invalid UTF-8, raw control characters, escapes and numbers that are none (cJSON
 * takes what strtod() takes) - so cJSON only sees input of bounded cost. Invariant: every string in
 * a parsed tree is valid UTF-8 but for C0 80, which stands for U+0000.
 *
 * Writing never builds a tree: responses are streams of small pieces, appended where they go.
 */
#include "server/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/json_strict.h"
#include "server/limits.h"

int utf8_sequence(const char *s, size_t n)
{
    const unsigned char *b = (const unsigned char *)s;
    if (!n)
        return 0;
    if (b[0] < 0x80)
        return 1;
    int need = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : 2;
    if (b[0] < 0xc2 || b[0] > 0xf4 || (size_t)need > n)
        return 0;
    /* Over-long forms, surrogates and code points above U+10FFFF show in the second byte. */
    unsigned char lo = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    if (b[1] < lo || b[1] > hi)
        return 0;
    for (int i = 2; i < need; i++)
        if ((b[i] & 0xc0) != 0x80)
            return 0;
    return need;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct scan {
    int depth, elements;
    bool in_string, many_digits;
    int nuls;
};

enum { EXACT_DIGITS = 15 }; /* of every integer with so many a double holds the value */

/* One byte outside strings. */
static int scan_structure(struct scan *s, char c, struct api_error *e)
{
    if (c == '"') {
        s->in_string = true;
    } else if (c == '[' || c == '{') {
        s->elements++;
        if (++s->depth > JSON_DEPTH_MAX)
            return api_error_set(e, 400, NULL, "the JSON body is nested deeper than %d levels",
                                 JSON_DEPTH_MAX);
    } else if (c == ']' || c == '}') {
        s->depth--;
    } else if (c == ',' && ++s->elements > JSON_ELEMENTS_MAX) {
        return api_error_set(e, 400, NULL, "the JSON body has more than %d elements",
                             JSON_ELEMENTS_MAX);
    }
    return 0;
}

static int scan(const char *text, size_t n, struct scan *s, struct api_error *e)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_sequence(text + i, n - i);
        if (!len)
            return api_error_set(e, 400, NULL, "the body is not valid UTF-8 (at byte %zu)", i);
        char c = text[i];
        if (len == 1 && !s->in_string) {
            if (c == '\0')
                return api_error_set(e, 400, NULL, "the body is not JSON (NUL at byte %zu)", i);
            size_t number = json_number_length(text + i, n - i);
            if (number && !json_is_number(text + i, number))
                return api_error_set(e, 400, NULL,
                                     "the body is not JSON (malformed number at byte %zu)", i);
            s->many_digits |= number > EXACT_DIGITS;
            if (number)
                len = (int)number;
            else if (scan_structure(s, c, e))
                return -1;
        } else if (len == 1) {
            if ((unsigned char)c < 0x20)
                return api_error_set(e, 400, NULL,
                                     "the body is not JSON (raw control character in a string "
                                     "at byte %zu)",
                                     i);
            if (c == '"')
                s->in_string = false;
            if (c == '\\') {
                if (n - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
                    s->nuls++;
                len = (int)json_escape_length(text + i, n - i);
                if (!len)
                    return api_error_set(e, 400, NULL,
                                         "the body is not JSON (malformed escape in a string at "
                                         "byte %zu)",
                                         i);
            }
        }
        i += (size_t)len;
    }
    return 0;
}

/* Copy of `text` in which every escaped U+0000 is C0 80. */
static char *replace_nuls(const char *text, size_t n, size_t *out_n)
{
    struct buf b = {0};
    for (size_t i = 0; i < n;) {
        if (text[i] == '\\' && n - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0) {
            buf_add(&b, "\xc0\x80", 2);
            i += 6;
        } else {
            size_t len = text[i] == '\\' && i + 1 < n ? 2 : 1;
            buf_add(&b, text + i, len);
            i += len;
        }
    }
    return buf_take(&b, out_n);
}

/* The length of the next number, which begins at *at; 0 if there is none. */
static size_t next_number(const char *text, size_t n, size_t *at)
{
    bool in_string = false;
    for (size_t i = *at; i < n; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        if (in_string || !(text[i] == '-' || (text[i] >= '0' && text[i] <= '9')))
            continue;
        *at = i;
        return json_number_length(text + i, n - i);
    }
    return 0;
}

/* Gives long integers their digits: the numbers of a tree are in the order of the text. */
static void keep_digits(cJSON *item, const char *text, size_t n, size_t *at)
{
    for (; item; item = item->next) {
        if (cJSON_IsNumber(item)) {
            size_t length = next_number(text, n, at);
            const char *number = text + *at;
            bool integer = strspn(number, "-0123456789") >= length;
            if (integer && length > EXACT_DIGITS) {
                item->valuestring = xmalloc(length + 1);
                memcpy(item->valuestring, number, length);
                item->valuestring[length] = '\0';
            }
            *at += length;
        }
        keep_digits(item->child, text, n, at);
    }
}

cJSON *json_parse(const char *text, size_t n, struct api_error *e)
{
    struct scan s = {0};
    if (scan(text, n, &s, e))
        return NULL;
    char *copy = s.nuls ? replace_nuls(text, n, &n) : NULL;
    const char *src = copy ? copy : text, *end = src;
    cJSON *root = n ? cJSON_ParseWithLengthOpts(src, n, &end, false) : NULL;
    size_t at = (size_t)(end - src);
    while (root && at < n && strchr(" \t\r\n", src[at]))
        at++;
    if (!root || at < n) {
        api_error_set(e, 400, NULL, n ? "the body is not JSON (at byte %zu)" : "the body is empty",
                      at);
        cJSON_Delete(root);
        root = NULL;
    } else if (!cJSON_IsObject(root)) {
        api_error_set(e, 400, NULL, "the body must be a JSON object");
        cJSON_Delete(root);
        root = NULL;
    }
    size_t from = 0;
    if (root && s.many_digits)
        keep_digits(root, src, n, &from);
    free(copy);
    return root;
}

const cJSON *json_get(const cJSON *object, const char *name)
{
    const cJSON *item, *found = NULL;
    cJSON_ArrayForEach(item, object)
    {
        if (item->string && strcmp(item->string, name) == 0)
            found = item;
    }
    return found && !cJSON_IsNull(found) ? found : NULL;
}

bool json_says_something(const cJSON *object, const char *name)
{
    const cJSON *item = json_get(object, name);
    if (!item || cJSON_IsFalse(item))
        return false;
    if (cJSON_IsString(item))
        return item->valuestring[0] != '\0';
    if (cJSON_IsArray(item) || cJSON_IsObject(item))
        return item->child != NULL;
    return true;
}

int json_number(const cJSON *object, const char *name, double lo, double hi, double *out,
                struct api_error *e)
{
    const cJSON *item = json_get(object, name);
    if (!item)
        return 0;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return api_error_set(e, 400, name, "`%s` must be a number", name);
    if (item->valuedouble < lo || item->valuedouble > hi)
        return api_error_set(e, 400, name, "`%s` is %g, but must be between %g and %g", name,
                             item->valuedouble, lo, hi);
    *out = item->valuedouble;
    return 1;
}

bool json_whole(const cJSON *item, int64_t lo, int64_t hi, int64_t *out)
{
    if (!cJSON_IsNumber(item))
        return false;
    double d = item->valuedouble;
    int64_t v;
    errno = 0;
    if (item->valuestring)
        v = strtoll(item->valuestring, NULL, 10);
    else if (d == trunc(d) && d >= -0x1p63 && d < 0x1p63)
        v = (int64_t)d;
    else
        return false;
    if (errno || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

int json_int(const cJSON *object, const char *name, int64_t lo, int64_t hi, int64_t *out,
             struct api_error *e)
{
    const cJSON *item = json_get(object, name);
    if (!item)
        return 0;
    if (!cJSON_IsNumber(item) || item->valuedouble != trunc(item->valuedouble))
        return api_error_set(e, 400, name, "`%s` must be an integer", name);
    if (json_whole(item, lo, hi, out))
        return 1;
    char given[32];
    if (item->valuestring)
        snprintf(given, sizeof given, "%.24s", item->valuestring);
    else
        snprintf(given, sizeof given, "%.16g", item->valuedouble);
    return api_error_set(e, 400, name, "`%s` is %s, but must be between %lld and %lld", name, given,
                         (long long)lo, (long long)hi);
}

int json_bool(const cJSON *object, const char *name, bool *out, struct api_error *e)
{
    const cJSON *item = json_get(object, name);
    if (!item)
        return 0;
    if (!cJSON_IsBool(item))
        return api_error_set(e, 400, name, "`%s` must be true or false", name);
    *out = cJSON_IsTrue(item);
    return 1;
}

int json_string(const cJSON *object, const char *name, const char **out, struct api_error *e)
{
    const cJSON *item = json_get(object, name);
    if (!item)
        return 0;
    if (!cJSON_IsString(item))
        return api_error_set(e, 400, name, "`%s` must be a string", name);
    if (strstr(item->valuestring, "\xc0\x80"))
        return api_error_set(e, 400, name, "`%s` contains a NUL character", name);
    *out = item->valuestring;
    return 1;
}

size_t json_restore_nul(char *text, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        bool nul = i + 1 < n && memcmp(text + i, "\xc0\x80", 2) == 0;
        text[w++] = nul ? '\0' : text[i];
        i += nul;
    }
    return w;
}

char *json_bytes(const cJSON *item, size_t *n)
{
    char *copy = xstrdup(item->valuestring);
    *n = json_restore_nul(copy, strlen(copy));
    return copy;
}

/* ---- writing ------------------------------------------------------------------------------- */

void json_put_string(struct buf *out, const char *s, size_t n)
{
    buf_reserve(out, n + 2);
    buf_char(out, '"');
    for (size_t i = 0; i < n;) {
        int len = utf8_sequence(s + i, n - i);
        unsigned char c = (unsigned char)s[i];
        if (!len)
            buf_str(out, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            buf_add(out, (char[]){'\\', (char)c}, 2);
        else if (c == '\n')
            buf_str(out, "\\n");
        else if (c < 0x20 || c == 0x7f)
            buf_printf(out, "\\u%04x", c);
        else
            buf_add(out, s + i, (size_t)len);
        i += len ? (size_t)len : 1;
    }
    buf_char(out, '"');
}

void json_put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

void json_put_made(struct buf *out, const char *json)
{
    size_t n = strlen(json), whole = 0;
    for (size_t i = 0; i < n;) {
        int len = utf8_sequence(json + i, n - i);
        if (!len) {
            buf_add(out, json + whole, i - whole);
            buf_str(out, "\xef\xbf\xbd");
            whole = i + 1;
        }
        i += len ? (size_t)len : 1;
    }
    buf_add(out, json + whole, n - whole);
}

void json_put_number(struct buf *out, double v, const char *instead)
{
    if (isfinite(v))
        buf_printf(out, "%.9g", v);
    else
        buf_str(out, instead);
}
