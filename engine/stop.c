/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c - stop strings, one Knuth-Morris-Pratt automaton each.
 *
 * After each byte, state[i] is the length of the longest beginning of string i that the text ends
 * with. If a state reaches its string's length, that string has matched; otherwise the largest
 * state is exactly how many bytes at the end of the text may still become part of a match, and
 * those are held back. The cost is a constant per byte and string, whatever the text.
 *
 * Whole characters stay whole: text comes in whole characters and a stop string starts with one,
 * so the held-back part starts with one too.
 */
#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"

struct needle {
    char *text;
    int32_t n, state;
    int32_t *fail; /* [n] longest proper border of text[0 .. i] */
};

struct stop {
    int32_t count;
    bool include;
    struct needle *needle;
    char *buffer; /* [given) was handed out last time, [given, n) is held back */
    size_t n, given, size;
};

static void needle_init(struct needle *k, const char *text)
{
    k->text = xstrdup(text);
    k->n = (int32_t)strlen(text);
    k->state = 0;
    k->fail = xcalloc((size_t)k->n + 1, sizeof *k->fail);
    for (int32_t i = 1, border = 0; i < k->n; i++) {
        while (border > 0 && text[i] != text[border])
            border = k->fail[border - 1];
        if (text[i] == text[border])
            border++;
        k->fail[i] = border;
    }
}

struct stop *stop_open(const char *const *strings, int32_t count, bool include)
{
    struct stop *s = xcalloc(1, sizeof *s);
    s->count = count;
    s->include = include;
    s->needle = xcalloc((size_t)count + 1, sizeof *s->needle);
    for (int32_t i = 0; i < count; i++)
        needle_init(&s->needle[i], strings[i]);
    return s;
}

void stop_close(struct stop *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->count; i++) {
        free(s->needle[i].text);
        free(s->needle[i].fail);
    }
    free(s->needle);
    free(s->buffer);
    free(s);
}

const char *stop_string(const struct stop *s, int32_t i)
{
    return s->needle[i].text;
}

const char *stop_held(const struct stop *s, size_t *n)
{
    *n = s->n - s->given;
    return s->buffer ? s->buffer + s->given : "";
}

static void append(struct stop *s, const char *text, size_t n)
{
    size_t held = s->n - s->given;
    if (held + n > s->size) {
        s->size = 2 * (held + n) + 64;
        s->buffer = xrealloc(s->buffer, s->size);
    }
    if (held)
        memmove(s->buffer, s->buffer + s->given, held);
    if (n)
        memcpy(s->buffer + held, text, n);
    s->given = 0;
    s->n = held + n;
}

/* Feeds one byte to every automaton. Returns the longest string that ends here, or -1. */
static int32_t advance(struct stop *s, char c)
{
    int32_t match = -1;
    for (int32_t i = 0; i < s->count; i++) {
        struct needle *k = &s->needle[i];
        while (k->state > 0 && k->text[k->state] != c)
            k->state = k->fail[k->state - 1];
        if (k->text[k->state] == c)
            k->state++;
        if (k->state == k->n && (match < 0 || k->n > s->needle[match].n))
            match = i;
    }
    return match;
}

int32_t stop_push(struct stop *s, const char *text, size_t n, const char **out, size_t *out_n)
{
    append(s, text, n);
    int32_t match = -1;
    for (size_t i = s->n - n; i < s->n && match < 0; i++) {
        match = advance(s, s->buffer[i]);
        if (match >= 0)
            s->n = i + 1 - (s->include ? 0 : (size_t)s->needle[match].n);
    }
    size_t hold = 0;
    for (int32_t i = 0; match < 0 && i < s->count; i++)
        if ((size_t)s->needle[i].state > hold)
            hold = (size_t)s->needle[i].state;
    s->given = s->n - hold;
    *out = s->buffer ? s->buffer : "";
    *out_n = s->given;
    return match;
}
