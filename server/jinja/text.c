/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - characters and strings as Python has them. */
#include "server/jinja/text.h"

#include <string.h>
#include <utf8proc.h>

uint32_t text_char(const char *s, size_t n, size_t *length)
{
    unsigned char c = (unsigned char)s[0];
    size_t k = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    *length = 1;
    if (k == 1 || k > n)
        return c;
    uint32_t cp = c & (0x7Fu >> k);
    for (size_t i = 1; i < k; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80)
            return c;
        cp = cp << 6 | ((unsigned char)s[i] & 0x3F);
    }
    *length = k;
    return cp; /* C0 80 is 0 */
}

size_t text_last(const char *s, size_t n)
{
    for (size_t k = 1; k <= 4 && k <= n; k++) {
        size_t length;
        if (((unsigned char)s[n - k] & 0xC0) == 0x80)
            continue;
        text_char(s + n - k, k, &length);
        return length == k ? k : 1;
    }
    return 1;
}

size_t text_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

size_t text_offset(const char *s, size_t n, size_t k)
{
    size_t at = 0, length;
    while (at < n && k--) {
        text_char(s + at, n - at, &length);
        at += length;
    }
    return at;
}

bool text_space(uint32_t c)
{
    return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ||
           c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool text_printable(uint32_t c)
{
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

bool text_alphabetic(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}

bool text_is_upper(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LU;
}

bool text_is_lower(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LL;
}

bool text_cased(uint32_t c)
{
    return text_is_upper(c) || text_is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

/* Upper case that is several characters, or that Unicode's versions disagree on. */
static bool special_upper(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0xDF, 0xDF},     {0x149, 0x149},   {0x1C4, 0x1CC},   {0x1F0, 0x1F3},   {0x345, 0x345},
        {0x390, 0x390},   {0x3B0, 0x3B0},   {0x587, 0x587},   {0x1C80, 0x1C8F}, {0x10D0, 0x10FF},
        {0x1E96, 0x1E9E}, {0x1F50, 0x1F56}, {0x1F80, 0x1FFC}, {0xA7C0, 0xA7DC}, {0xFB00, 0xFB17},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

/* Lower case that is two characters, depends on where it stands (the final sigma), or that
 * Unicode's versions disagree on. */
static bool special_lower(uint32_t c)
{
    return c == 0x130 || c == 0x3A3 || (c >= 0x1C4 && c <= 0x1CC) || (c >= 0x1F1 && c <= 0x1F3) ||
           (c >= 0x1C80 && c <= 0x1CBF) || (c >= 0xA7C0 && c <= 0xA7DC);
}

bool text_upper(uint32_t c, uint32_t *to)
{
    if (c < 0x80) {
        *to = c >= 'a' && c <= 'z' ? c - 32 : c;
        return true;
    }
    *to = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
    return !special_upper(c);
}

bool text_lower(uint32_t c, uint32_t *to)
{
    if (c < 0x80) {
        *to = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return true;
    }
    *to = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return !special_lower(c);
}

static bool is_stripped(const char *s, size_t n, const struct span *chars)
{
    size_t length, k;
    uint32_t c = text_char(s, n, &length);
    if (!chars)
        return text_space(c);
    for (size_t i = 0; i < chars->n; i += k)
        if (text_char(chars->p + i, chars->n - i, &k) == c)
            return true;
    return false;
}

struct span text_strip(struct span s, const struct span *chars, bool left, bool right)
{
    size_t length;
    while (left && s.n && is_stripped(s.p, s.n, chars)) {
        text_char(s.p, s.n, &length);
        s.p += length;
        s.n -= length;
    }
    while (right && s.n) {
        length = text_last(s.p, s.n);
        if (!is_stripped(s.p + s.n - length, length, chars))
            break;
        s.n -= length;
    }
    return s;
}

const char *text_find(struct span s, struct span part)
{
    return part.n ? memmem(s.p, s.n, part.p, part.n) : s.p;
}

const char *text_find_last(struct span s, struct span part)
{
    for (size_t i = s.n >= part.n ? s.n - part.n + 1 : 0; i-- > 0;)
        if (memcmp(s.p + i, part.p, part.n) == 0)
            return s.p + i;
    return NULL;
}

bool text_starts(struct span s, struct span part)
{
    return s.n >= part.n && memcmp(s.p, part.p, part.n) == 0;
}

bool text_ends(struct span s, struct span part)
{
    return s.n >= part.n && memcmp(s.p + s.n - part.n, part.p, part.n) == 0;
}
