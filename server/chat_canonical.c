/* SPDX-License-Identifier: Apache-2.0 */
/* chat_canonical.c - a Jinja template in canonical form.
 *
 * The same template is written in many ways: quotes of either kind, message['role'] or
 * message.role, text inside of {{ }} or outside, spaces and '-' signs anywhere. Recognizing it
 * needs one form. This is not a Jinja parser: it splits the template into blocks as Jinja does
 * (with trim_blocks and lstrip_blocks, as transformers sets them), and inside of a block it
 * rewrites tokens:
 *
 *   {{ 'a\n' + message["role"] }}  ->  a<newline>{{message.role}}
 *   {%- if x  ==  "user" -%}       ->  {%if x=='user'%}
 *   {# comment #}                  ->  (nothing)
 *
 * One pass from front to back: every character is looked at a few times at most, however many
 * blocks there are.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "server/buf.h"
#include "server/chat_family.h"

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Characters between which a space is kept: those of words and around literals. */
static bool is_wordy(char c)
{
    return is_name(c) || c == '\'' || c == '"';
}

/* End of the string literal that begins at s (a quote), behind its closing quote; NULL if none. */
static const char *literal_end(const char *s, const char *end)
{
    char quote = *s++;
    for (; s < end; s++) {
        if (*s == '\\')
            s++;
        else if (*s == quote)
            return s + 1;
    }
    return NULL;
}

/* Appends the value of the literal [s, end), quotes included in the range. */
static void add_literal(struct buf *out, const char *s, const char *end)
{
    for (s++, end--; s < end; s++) {
        if (*s == '\\' && s + 1 < end) {
            s++;
            buf_char(out, *s == 'n' ? '\n' : *s == 't' ? '\t' : *s);
        } else {
            buf_char(out, *s);
        }
    }
}

/* ['name'] as .name: returns its end, or NULL if s is something else. */
static const char *add_subscript(struct buf *out, const char *s, const char *end)
{
    if (*s != '[' || s + 1 >= end || (s[1] != '\'' && s[1] != '"'))
        return NULL;
    const char *close = literal_end(s + 1, end);
    if (!close || close >= end || *close != ']')
        return NULL;
    for (const char *c = s + 2; c < close - 1; c++)
        if (!is_name(*c))
            return NULL;
    buf_char(out, '.');
    buf_add(out, s + 2, (size_t)(close - s - 3));
    return close + 1;
}

/* Appends code without needless spaces, with single quotes. -1 for an unclosed literal. */
static int add_code(struct buf *out, const char *s, const char *end)
{
    size_t begin = out->n;
    while (s < end) {
        const char *next;
        if (isspace((unsigned char)*s)) {
            while (s < end && isspace((unsigned char)*s))
                s++;
            if (s < end && out->n > begin && is_wordy(out->p[out->n - 1]) && is_wordy(*s))
                buf_char(out, ' ');
        } else if (*s == '\'' || *s == '"') {
            if (!(next = literal_end(s, end)))
                return -1;
            buf_char(out, '\'');
            add_literal(out, s, next);
            buf_char(out, '\'');
            s = next;
        } else if ((next = add_subscript(out, s, end))) {
            s = next;
        } else {
            buf_char(out, *s++);
        }
    }
    return 0;
}

/* End of the part of an expression that begins at s: the next + or ~ outside of brackets. */
static const char *part_end(const char *s, const char *end)
{
    for (int depth = 0; s < end; s++) {
        if (*s == '\'' || *s == '"') {
            const char *close = literal_end(s, end);
            if (!close)
                return end;
            s = close - 1;
        }
        depth += (*s == '(' || *s == '[') - (*s == ')' || *s == ']');
        if (depth == 0 && (*s == '+' || *s == '~'))
            return s;
    }
    return end;
}

/* What {{ s }} writes: literals as text, everything else as {{x}}. */
static int add_expression(struct buf *out, const char *s, const char *end)
{
    while (s < end) {
        const char *stop = part_end(s, end), *a = s, *b = stop;
        while (a < b && isspace((unsigned char)*a))
            a++;
        while (b > a && isspace((unsigned char)b[-1]))
            b--;
        if (a < b && (*a == '\'' || *a == '"') && literal_end(a, b) == b) {
            add_literal(out, a, b);
        } else {
            buf_str(out, "{{");
            if (add_code(out, a, b))
                return -1;
            buf_str(out, "}}");
        }
        s = stop < end ? stop + 1 : end;
    }
    return 0;
}

/* The closing mark of the block that begins at s ("{{", "{%" or "{#") in a text that ends at `end`;
 * NULL if there is none. */
static const char *block_end(const char *s, const char *end)
{
    char kind = s[1];
    const char *close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    for (s += 2; s < end; s++) {
        if (kind != '#' && (*s == '\'' || *s == '"')) {
            const char *after = literal_end(s, end);
            if (!after)
                return NULL;
            s = after - 1;
        } else if (strncmp(s, close, 2) == 0) {
            return s;
        }
    }
    return NULL;
}

static const char *next_block(const char *s)
{
    for (; *s; s++)
        if (*s == '{' && (s[1] == '{' || s[1] == '%' || s[1] == '#'))
            return s;
    return s;
}

/* Plain text up to a block: stripped by a '-', and of the indentation before a statement. */
static void add_plain(struct buf *out, const char *s, const char *block, const char *whole)
{
    const char *end = block;
    if (*block && block[2] == '-') {
        while (end > s && isspace((unsigned char)end[-1]))
            end--;
    } else if (*block && block[1] != '{') {
        const char *line = end;
        while (line > s && (line[-1] == ' ' || line[-1] == '\t'))
            line--;
        if (line == whole || line[-1] == '\n')
            end = line;
    } else if (!*block && end > s && end[-1] == '\n') {
        end--; /* Jinja drops the newline at the very end */
    }
    buf_add(out, s, (size_t)(end - s));
}

char *chat_canonical(const char *text)
{
    struct buf out = {0};
    const char *s = text, *end = text + strlen(text);
    buf_str(&out, "");
    for (;;) {
        const char *block = next_block(s);
        add_plain(&out, s, block, text);
        if (!*block)
            break;
        const char *close = block_end(block, end);
        if (!close)
            goto fail;
        const char *a = block + 2 + (block[2] == '-' || block[2] == '+'), *b = close;
        bool strip = b > a && b[-1] == '-';
        b -= strip;
        if (block[1] == '{') {
            if (add_expression(&out, a, b))
                goto fail;
        } else if (block[1] == '%') {
            buf_str(&out, "{%");
            while (a < b && isspace((unsigned char)*a))
                a++;
            if (add_code(&out, a, b))
                goto fail;
            buf_str(&out, "%}");
        }
        s = close + 2;
        if (strip)
            s += strspn(s, " \t\r\n\v\f");
        else if (block[1] != '{' && *s == '\n')
            s++;
    }
    return buf_take(&out, &(size_t){0});
fail:
    buf_free(&out);
    return NULL;
}
