/* SPDX-License-Identifier: Apache-2.0 */
/* added.c - a byte trie over the added tokens, walked from every place one could begin.
 *
 * Vocabularies have from 3 to some hundred added tokens, nearly all beginning with '<', so a table
 * of first bytes passes over ordinary text at a byte a step and the trie is entered seldom. The
 * match is leftmost-longest, as Hugging Face tokenizers does it; tokens are applied without
 * looking back, so `lstrip` takes only whitespace that no earlier token took.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/added.h"

#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/encode_work.h"
#include "engine/oniguruma.h"
#include "engine/utf8.h"

struct node {
    int32_t child, sibling; /* 0: none (the root is nobody's child) */
    int32_t id;             /* the token that ends here; -1: none */
    unsigned char byte;
    uint8_t flags;
};

struct added {
    struct node *node; /* [0] is the root */
    int32_t nodes, room;
    int32_t first[256]; /* children of the root by byte; 0: none */
    pcre2_code *word;   /* one word character; NULL until a token has to stand alone */
};

struct added *added_open(void)
{
    struct added *a = xcalloc(1, sizeof *a);
    a->room = 64;
    a->node = xcalloc((size_t)a->room, sizeof *a->node);
    a->node[0].id = -1;
    a->nodes = 1;
    return a;
}

void added_close(struct added *a)
{
    if (!a)
        return;
    pcre2_code_free(a->word);
    free(a->node);
    free(a);
}

static int32_t find_child(const struct added *a, int32_t at, unsigned char byte)
{
    if (at == 0)
        return a->first[byte];
    int32_t child = a->node[at].child;
    while (child && a->node[child].byte != byte)
        child = a->node[child].sibling;
    return child;
}

static int32_t make_child(struct added *a, int32_t at, unsigned char byte)
{
    if (a->nodes == a->room) {
        a->room *= 2;
        a->node = xrealloc(a->node, (size_t)a->room * sizeof *a->node);
    }
    int32_t child = a->nodes++;
    a->node[child] = (struct node){.sibling = a->node[at].child, .id = -1, .byte = byte};
    a->node[at].child = child;
    if (at == 0)
        a->first[byte] = child;
    return child;
}

/* \w of Unicode's regular expressions (UTS 18, annex C), in the Unicode version of the reference:
 * oniguruma.c's word characters inside a class, and the joiners. */
static pcre2_code *compile_word(void)
{
    int code;
    PCRE2_SIZE at;
    char *pattern = oniguruma_to_pcre2("[\\w\\x{200C}\\x{200D}]", NULL);
    pcre2_code *word = xmade(pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                           PCRE2_UTF | PCRE2_UCP, &code, &at, NULL));
    free(pattern);
    pcre2_jit_compile(word, PCRE2_JIT_COMPLETE); /* where there is none, pcre2_match() interprets */
    return word;
}

void added_put(struct added *a, const char *text, size_t n, int32_t id, uint8_t flags)
{
    int32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t child = find_child(a, at, (unsigned char)text[i]);
        at = child ? child : make_child(a, at, (unsigned char)text[i]);
    }
    if (at == 0 || a->node[at].id >= 0)
        return;
    a->node[at].id = id;
    a->node[at].flags = flags;
    if ((flags & ADDED_SINGLE_WORD) && !a->word)
        a->word = compile_word();
}

int32_t added_find(const struct added *a, const char *text, size_t n)
{
    int32_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (!(at = find_child(a, at, (unsigned char)text[i])))
            return -1;
    return a->node[at].id;
}

/* ---- matching ------------------------------------------------------------------------------ */

struct match {
    size_t begin, end;
    int32_t id;
    uint8_t flags;
};

/* The leftmost, then longest, token at or behind `from`: 1, 0 for none, -1 when told to end. */
static int next_match(const struct added *a, const char *text, size_t n, size_t from,
                      struct match *out, struct encode_control *control, struct err *err)
{
    for (size_t i = from; i < n; i++) {
        int32_t at = a->first[(unsigned char)text[i]];
        bool found = false;
        size_t j = i + 1;
        for (; at; j++) {
            if (a->node[at].id >= 0) {
                *out = (struct match){i, j, a->node[at].id, a->node[at].flags};
                found = true;
            }
            at = j < n ? find_child(a, at, (unsigned char)text[j]) : 0;
        }
        if (encode_work(control, (int64_t)(j - i), err))
            return -1;
        if (found)
            return 1;
    }
    return 0;
}

/* The last character of text[0..n), n >= 1; sets its length. */
static uint32_t last_character(const char *text, size_t n, size_t *length)
{
    size_t i = n - 1;
    while (i > 0 && ((unsigned char)text[i] & 0xC0) == 0x80)
        i--;
    uint32_t cp = 0;
    utf8_decode(text + i, n - i, &cp);
    *length = n - i;
    return cp;
}

/* Whether the character that begins at text[0..n), n >= 1, is one of words. */
static bool is_word(const struct added *a, const char *text, size_t n)
{
    uint32_t cp;
    int length = utf8_decode(text, n, &cp);
    if (length <= 0)
        return false;
    pcre2_match_data *match = xmade(pcre2_match_data_create(1, NULL));
    int found = pcre2_match(a->word, (PCRE2_SPTR)text, (PCRE2_SIZE)length, 0,
                            PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match, NULL);
    pcre2_match_data_free(match);
    return found > 0;
}

static bool stands_alone(const struct added *a, const char *text, size_t n, const struct match *m)
{
    size_t length;
    if (m->begin > 0) {
        last_character(text, m->begin, &length);
        if (is_word(a, text + m->begin - length, length))
            return false;
    }
    return m->end == n || !is_word(a, text + m->end, n - m->end);
}

/* Widens a match over the whitespace its flags claim, not before `done`. *space is the end of the
 * whitespace that was last walked to its end: a token that is whitespace itself may be found again
 * and again on the way there. */
static void strip(const char *text, size_t n, size_t done, size_t *space, struct match *m)
{
    size_t length;
    uint32_t cp;
    if (m->flags & ADDED_LSTRIP)
        while (m->begin > done && utf8_is_space(last_character(text, m->begin, &length)))
            m->begin -= length;
    if (!(m->flags & ADDED_RSTRIP))
        return;
    if (m->end < *space)
        m->end = *space;
    while (m->end < n) {
        int got = utf8_decode(text + m->end, n - m->end, &cp);
        if (got <= 0 || !utf8_is_space(cp))
            break;
        m->end += (size_t)got;
    }
    *space = m->end;
}

int added_cut(const struct added *a, const char *text, size_t n, added_piece_fn *piece, void *ctx,
              struct encode_control *control, struct err *err)
{
    size_t done = 0, from = 0, space = 0;
    struct match m = {0};
    int got;
    while ((got = next_match(a, text, n, from, &m, control, err)) > 0) {
        from = m.end; /* the search goes on behind the token itself, not behind what it stripped */
        if ((m.flags & ADDED_SINGLE_WORD) && !stands_alone(a, text, n, &m))
            continue;
        strip(text, n, done, &space, &m);
        if (m.begin > done && piece(ctx, text + done, m.begin - done, -1, err))
            return -1;
        if (piece(ctx, text + m.begin, m.end - m.begin, m.id, err))
            return -1;
        done = m.end;
    }
    if (got < 0)
        return -1;
    return n > done ? piece(ctx, text + done, n - done, -1, err) : 0;
}
