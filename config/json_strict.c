/* SPDX-License-Identifier: Apache-2.0 */
/* json_strict.c - see json_strict.h. */
#include "config/json_strict.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

void json_memory(void)
{
    cJSON_Hooks hooks = {.malloc_fn = xmalloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
}

/* ---- escapes -------------------------------------------------------------------------------- */

enum { UNIT = 6 }; /* bytes of \uXXXX */

/* The code unit of a \uXXXX at s; -1 if there is none. */
static int32_t code_unit(const char *s, size_t n)
{
    int32_t unit = 0;
    if (n < UNIT || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < UNIT; i++) {
        char c = s[i], lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            unit = unit * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            unit = unit * 16 + (lower - 'a' + 10);
        else
            return -1;
    }
    return unit;
}

size_t json_escape_length(const char *s, size_t n)
{
    if (n < 2)
        return 0;
    if (s[1] != 'u')
        return s[1] && strchr("\"\\/bfnrt", s[1]) ? 2 : 0;
    int32_t unit = code_unit(s, n);
    if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
        return 0;
    if (unit < 0xD800 || unit > 0xDBFF)
        return UNIT;
    int32_t low = code_unit(s + UNIT, n - UNIT);
    return low >= 0xDC00 && low <= 0xDFFF ? 2 * UNIT : 0;
}

/* ---- numbers -------------------------------------------------------------------------------- */

size_t json_number_length(const char *s, size_t n)
{
    size_t end = 0;
    if (!n || !s[0] || !strchr("+-.0123456789", s[0]))
        return 0;
    while (end < n && s[end] && strchr("+-.eE0123456789", s[end]))
        end++;
    return end;
}

/* Goes past digits; false if there are none. */
static bool skip_digits(const char **s, const char *end)
{
    const char *begin = *s;
    while (*s < end && **s >= '0' && **s <= '9')
        ++*s;
    return *s > begin;
}

bool json_is_number(const char *s, size_t length)
{
    const char *end = s + length;
    s += *s == '-';
    const char *whole = s;
    if (!skip_digits(&s, end) || (*whole == '0' && s > whole + 1))
        return false;
    if (s < end && *s == '.' && (++s, !skip_digits(&s, end)))
        return false;
    if (s < end && (*s == 'e' || *s == 'E')) {
        s++;
        s += s < end && (*s == '-' || *s == '+');
        if (!skip_digits(&s, end))
            return false;
    }
    return s == end;
}

/* ---- a text --------------------------------------------------------------------------------- */

const char *json_bad_place(const char *text, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n;) {
        if (text[i] == '"')
            in_string = !in_string;
        size_t number = in_string ? 0 : json_number_length(text + i, n - i);
        if (number && !json_is_number(text + i, number))
            return text + i;
        size_t length = number                         ? number
                        : in_string && text[i] == '\\' ? json_escape_length(text + i, n - i)
                                                       : 1;
        bool zero = text[i] == 0 || (length == UNIT && code_unit(text + i, n - i) == 0);
        if (length == 0 || (in_string && zero))
            return text + i;
        i += length;
    }
    return NULL;
}

cJSON *json_strict_parse(const char *text)
{
    return json_bad_place(text, strlen(text)) ? NULL : cJSON_Parse(text);
}
