/* SPDX-License-Identifier: Apache-2.0 */
/* lex.c - a template's text into tokens.
 *
 * Outside of tags the text is data, with what trim_blocks, lstrip_blocks and the signs in tags
 * (`-`, `+`) take from it already gone. Newlines are '\n' and one at the end is gone before this
 * (parse.c).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"
#include "server/jinja/ast.h"
#include "server/jinja/text.h"

struct lexer {
    struct jinja_memory *m;
    struct jinja_tokens *out;
    const char *at, *end;
    bool line_starting; /* what was read last ended with a newline, or nothing was */
    int open;           /* brackets within the tag */
    char close[JINJA_NESTING_MAX];
};

static void put(struct lexer *l, enum jinja_token_type type, struct jinja_value v)
{
    struct jinja_tokens *o = l->out;
    if (o->n == o->room) {
        size_t room = o->room ? o->room * 2 : 256;
        struct jinja_token *t = jinja_alloc_items(l->m, room, sizeof *t);
        if (o->n)
            memcpy(t, o->token, o->n * sizeof *t);
        o->token = t;
        o->room = room;
    }
    o->token[o->n++] = (struct jinja_token){type, l->m->line, v};
}

static bool sees(const struct lexer *l, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(l->end - l->at) >= n && memcmp(l->at, text, n) == 0;
}

/* Goes on by n bytes, and counts lines. */
static void pass(struct lexer *l, size_t n)
{
    for (size_t i = 0; i < n; i++)
        l->m->line += l->at[i] == '\n';
    if (n)
        l->line_starting = l->at[n - 1] == '\n';
    l->at += n;
}

static size_t spaces(const char *at, const char *end)
{
    struct span s = {at, (size_t)(end - at)};
    return s.n - text_strip(s, NULL, true, false).n;
}

/* ---- outside of tags ----------------------------------------------------------------------- */

/* Data before a tag that begins with `sign`; a variable's tag takes no layout with it. */
static void put_data(struct lexer *l, const char *data, size_t n, char sign, bool variable)
{
    struct span s = {data, n};
    if (sign == '-') {
        s = text_strip(s, NULL, false, true);
    } else if (sign != '+' && !variable) {
        size_t line = n;
        while (line > 0 && data[line - 1] != '\n')
            line--;
        if ((line > 0 || l->line_starting) && spaces(data + line, data + n) == n - line)
            s.n = line;
    }
    if (s.n)
        put(l, TOKEN_DATA, jinja_string(s.p, s.n));
}

/* Past the end of a block's or comment's tag: `%}` with the newline, or the space, behind it. */
static void pass_end(struct lexer *l, char sign)
{
    size_t n = (sign ? 3 : 2);
    if (sign == '-')
        n += spaces(l->at + n, l->end);
    else if (!sign && l->at + 2 < l->end && l->at[2] == '\n')
        n++;
    pass(l, n);
}

static void lex_comment(struct lexer *l)
{
    const char *close =
        text_find((struct span){l->at, (size_t)(l->end - l->at)}, (struct span){"#}", 2});
    if (!close)
        jinja_fail(l->m, "a comment is not closed");
    char sign = close > l->at && (close[-1] == '-' || close[-1] == '+') ? close[-1] : 0;
    pass(l, (size_t)(close - l->at) - (sign ? 1 : 0));
    pass_end(l, sign);
}

/* How long "{%- NAME" is with the space behind NAME, if it is that. */
static size_t tag_of(const char *at, const char *end, const char *name, char *sign)
{
    const char *start = at;
    size_t n = strlen(name);
    if (end - at < 2 || at[0] != '{' || at[1] != '%')
        return 0;
    at += 2;
    *sign = at < end && (*at == '-' || *at == '+') ? *at : 0;
    at += *sign ? 1 : 0;
    at += spaces(at, end);
    if ((size_t)(end - at) < n || memcmp(at, name, n) != 0)
        return 0;
    at += n;
    return (size_t)(at + spaces(at, end) - start);
}

/* The text between raw and endraw; at: behind the tag of raw. */
static void lex_raw(struct lexer *l)
{
    for (const char *p = l->at; (p = memchr(p, '{', (size_t)(l->end - p))); p++) {
        char sign;
        size_t tag = tag_of(p, l->end, "endraw", &sign);
        const char *close = p + tag;
        char last = close < l->end && (*close == '-' || *close == '+') ? *close : 0;
        if (!tag || l->end - close < (last ? 3 : 2) || memcmp(close + (last ? 1 : 0), "%}", 2) != 0)
            continue;
        put_data(l, l->at, (size_t)(p - l->at), sign, false);
        pass(l, (size_t)(close - l->at));
        pass_end(l, last);
        return;
    }
    jinja_fail(l->m, "a raw block is not closed");
}

/* "{% raw %}" at p: how long, or 0. */
static size_t raw_tag(const struct lexer *l, const char *p, char *sign)
{
    size_t n = tag_of(p, l->end, "raw", sign);
    const char *at = p + n;
    if (!n)
        return 0;
    if (l->end - at >= 2 && memcmp(at, "%}", 2) == 0)
        return n + 2;
    if (l->end - at >= 3 && memcmp(at, "-%}", 3) == 0)
        return n + 3 + spaces(at + 3, l->end);
    return 0;
}

/* ---- literals ------------------------------------------------------------------------------ */

static uint32_t hex_escape(struct lexer *l, const char **at, const char *end, int digits)
{
    uint32_t c = 0;
    for (int i = 0; i < digits; i++) {
        char d = *at < end ? *(*at)++ : 0;
        uint32_t v = d >= '0' && d <= '9'                 ? (uint32_t)(d - '0')
                     : (d | 32) >= 'a' && (d | 32) <= 'f' ? (uint32_t)((d | 32) - 'a' + 10)
                                                          : 16;
        if (v == 16)
            jinja_fail(l->m, "an escape in a string needs %d hexadecimal digits", digits);
        c = c << 4 | v;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        jinja_fail(l->m, "an escape in a string names U+%04X, which is no character", c);
    return c;
}

/* A character, NUL as the rest of the server has it. */
static char *put_char(char *out, uint32_t c)
{
    if (c == 0) {
        memcpy(out, "\xC0\x80", 2);
        return out + 2;
    }
    return out + utf8_encode(c, out);
}

/* The escape behind a backslash. None is longer than what it is made of. */
static char *unescape(struct lexer *l, const char **at, const char *end, char *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = *(*at)++;
    const char *known = strchr(from, c);
    if (c && known) {
        *out++ = to[known - from];
    } else if (c == 'x' || c == 'u' || c == 'U') {
        out = put_char(out, hex_escape(l, at, end, c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c >= '0' && c <= '7') {
        uint32_t v = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && **at >= '0' && **at <= '7'; i++)
            v = v * 8 + (uint32_t)(*(*at)++ - '0');
        out = put_char(out, v);
    } else if (c == 'N') {
        jinja_fail(l->m, "\\N{...} in a string is not supported");
    } else if ((unsigned char)c >= 0x80) {
        jinja_fail(l->m, "a backslash before a character that is not ASCII is not supported");
    } else if (c != '\n') {
        *out++ = '\\';
        *out++ = c;
    }
    return out;
}

static void lex_string(struct lexer *l)
{
    char quote = *l->at;
    const char *p = l->at + 1;
    while (p < l->end && *p != quote)
        p += *p == '\\' && p + 1 < l->end ? 2 : 1;
    if (p >= l->end)
        jinja_fail(l->m, "a string is not closed");
    const char *at = l->at + 1;
    char *text = jinja_alloc_items(l->m, (size_t)(p - at) + 4, 1), *out = text;
    while (at < p) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        at++;
        out = unescape(l, &at, p, out);
    }
    put(l, TOKEN_STRING, jinja_string(text, (size_t)(out - text)));
    pass(l, (size_t)(p + 1 - l->at));
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* (\d+_)*\d+ at p: its length. */
static size_t digits(const char *p, const char *end)
{
    const char *s = p;
    while (p < end &&
           (digit(*p) || (*p == '_' && p > s && p + 1 < end && digit(p[1]) && digit(p[-1]))))
        p++;
    return (size_t)(p - s);
}

/* A float at p: its length, or 0. */
static size_t float_length(const struct lexer *l)
{
    const char *p = l->at + digits(l->at, l->end);
    bool fraction = p + 1 < l->end && *p == '.' && digit(p[1]);
    if (l->at[-1] == '.') /* a tag began before it */
        return 0;
    if (fraction)
        p += 1 + digits(p + 1, l->end);
    if (p < l->end && (*p | 32) == 'e') {
        const char *e = p + 1;
        e += e < l->end && (*e == '+' || *e == '-');
        if (e < l->end && digit(*e))
            return (size_t)(e + digits(e, l->end) - l->at);
    }
    return fraction ? (size_t)(p - l->at) : 0;
}

static void lex_number(struct lexer *l)
{
    size_t n = float_length(l), k = 0;
    bool floating = n > 0;
    char text[64];
    if (!floating && *l->at == '0')
        for (n = 1; l->at + n < l->end && (l->at[n] == '0' || l->at[n] == '_'); n++)
            ;
    else if (!floating)
        n = digits(l->at, l->end);
    if (!floating && n == 1 && l->at[0] == '0' && l->at + 1 < l->end &&
        strchr("xob", l->at[1] | 32))
        jinja_fail(l->m, "a number that is not decimal is not supported");
    for (size_t i = 0; i < n && k < sizeof text - 1; i++)
        if (l->at[i] != '_')
            text[k++] = l->at[i];
    text[k] = 0;
    if (k == sizeof text - 1 || (!floating && k > 18))
        jinja_fail(l->m, "the number %.20s... has too many digits", text);
    if (floating)
        put(l, TOKEN_FLOAT, jinja_float(strtod(text, NULL)));
    else
        put(l, TOKEN_INT, jinja_int(strtoll(text, NULL, 10)));
    pass(l, n);
}

/* ---- in tags ------------------------------------------------------------------------------- */

static void balance(struct lexer *l, char c)
{
    if (strchr("([{", c)) {
        if (l->open == JINJA_NESTING_MAX)
            jinja_fail(l->m, "more than %d brackets are open", JINJA_NESTING_MAX);
        l->close[l->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!l->open || l->close[l->open - 1] != c)
            jinja_fail(l->m, "unexpected '%c'", c);
        l->open--;
    }
}

static void lex_operator(struct lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (sees(l, two[i]))
            n = 2;
    if (!*l->at || (n == 1 && !strchr("+-/*%~[](){}><=.:|,;", *l->at))) {
        size_t length;
        text_char(l->at, (size_t)(l->end - l->at), &length);
        jinja_fail(l->m, "unexpected character '%.*s'", (int)length, l->at);
    }
    balance(l, *l->at);
    put(l, TOKEN_OPERATOR, jinja_string(l->at, n));
    pass(l, n);
}

static bool name_char(char c)
{
    return digit(c) || c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static void lex_token(struct lexer *l)
{
    size_t space = spaces(l->at, l->end);
    if (space) {
        pass(l, space);
    } else if (digit(*l->at)) {
        lex_number(l);
    } else if (name_char(*l->at)) {
        size_t n = 0;
        while (l->at + n < l->end && name_char(l->at[n]))
            n++;
        put(l, TOKEN_NAME, jinja_string(l->at, n));
        pass(l, n);
    } else if (*l->at == '\'' || *l->at == '"') {
        lex_string(l);
    } else {
        lex_operator(l);
    }
}

/* Tokens up to the end of the tag. */
static void lex_tag(struct lexer *l, bool variable)
{
    int line = l->m->line;
    l->open = 0;
    while (l->at < l->end) {
        const char *end = variable ? "}}" : "%}";
        char sign = *l->at == '-' || (*l->at == '+' && !variable) ? *l->at : 0;
        l->at += sign ? 1 : 0;
        bool closes = l->open == 0 && sees(l, end);
        l->at -= sign ? 1 : 0;
        if (!closes) {
            lex_token(l);
            continue;
        }
        put(l, variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, jinja_text(end));
        if (variable && !sign)
            pass(l, 2);
        else
            pass_end(l, sign);
        return;
    }
    l->m->line = line;
    jinja_fail(l->m, "a tag is not closed");
}

void jinja_lex(struct jinja_memory *m, const char *text, size_t n, struct jinja_tokens *out)
{
    struct lexer l = {m, out, text, text + n, true, 0, {0}};
    m->line = 1;
    while (l.at < l.end) {
        const char *p = l.at;
        while ((p = memchr(p, '{', (size_t)(l.end - p))) &&
               !(p + 1 < l.end && strchr("%{#", p[1]) && p[1]))
            p++;
        if (!p) {
            put(&l, TOKEN_DATA, jinja_string(l.at, (size_t)(l.end - l.at)));
            break;
        }
        char kind = p[1], sign = p + 2 < l.end && (p[2] == '-' || p[2] == '+') ? p[2] : 0;
        size_t raw = raw_tag(&l, p, &sign);
        put_data(&l, l.at, (size_t)(p - l.at), sign, kind == '{');
        pass(&l, (size_t)(p - l.at) + (raw ? raw : sign ? 3 : 2));
        if (raw) {
            lex_raw(&l);
        } else if (kind == '#') {
            lex_comment(&l);
        } else {
            put(&l, kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, jinja_text(""));
            lex_tag(&l, kind == '{');
        }
    }
    put(&l, TOKEN_END, jinja_text(""));
}
