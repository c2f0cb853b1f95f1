/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c - decoding, replacement of ill-formed bytes, and the incremental stream.
 *
 * Everything rests on utf8_decode(): it looks at no byte it does not need, so the same function
 * tells "this can never be a character" from "this is not a whole character yet". The stream
 * holds at most three bytes back, and only while they may still become a character; therefore
 * the text handed out by pushes of any size is the text that one push of everything would give.
 */
#include "engine/utf8.h"

#include <string.h>

#include "config/err.h"
#include "engine/tokenizer.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* Length and smallest/largest second byte of the characters that begin with `lead`; the bounds
 * keep out overlong forms, surrogates and values past U+10FFFF. 0: no character begins so. */
static int sequence_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    if (lead < 0xE0)
        return 2;
    if (lead == 0xE0)
        *low = 0xA0;
    if (lead == 0xED)
        *high = 0x9F;
    if (lead < 0xF0)
        return 3;
    if (lead == 0xF0)
        *low = 0x90;
    if (lead == 0xF4)
        *high = 0x8F;
    return 4;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char low, high;
    int length = sequence_length(u[0], &low, &high);
    if (length == 0)
        return -1;
    if (length == 1) {
        *cp = u[0];
        return 1;
    }
    uint32_t value = u[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (u[i] < low || u[i] > high)
            return -i;
        value = value << 6 | (u[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = value;
    return length;
}

int utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int length = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> length) | cp);
    return length;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp;
        int length = utf8_decode(s + i, n - i, &cp);
        if (length <= 0)
            return false;
        i += (size_t)length;
    }
    return true;
}

char *utf8_lossy(const char *s, size_t n, size_t *length)
{
    char *out = xmalloc(3 * n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int got = utf8_decode(s + i, n - i, &cp);
        if (got > 0) {
            memcpy(out + m, s + i, (size_t)got);
            m += (size_t)got;
            i += (size_t)got;
        } else {
            memcpy(out + m, REPLACEMENT, 3);
            m += 3;
            i += got < 0 ? (size_t)-got : n - i;
        }
    }
    out[m] = 0;
    *length = m;
    return out;
}

bool utf8_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= '\t' && cp <= '\r');
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Moves every decided character from the held bytes to out; returns the bytes written. */
static size_t stream_drain(struct utf8_stream *s, bool flush, char *out)
{
    size_t m = 0;
    while (s->n > 0) {
        uint32_t cp;
        int got = utf8_decode((const char *)s->held, (size_t)s->n, &cp);
        if (got == 0 && !flush)
            break;
        int used = got > 0 ? got : got < 0 ? -got : s->n;
        if (got > 0)
            memcpy(out + m, s->held, (size_t)got);
        else
            memcpy(out + m, REPLACEMENT, 3);
        m += got > 0 ? (size_t)got : 3;
        s->n -= used;
        memmove(s->held, s->held + used, (size_t)s->n);
    }
    return m;
}

size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, bool flush, char *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->n == 0 && (unsigned char)bytes[i] < 0x80) {
            out[m++] = bytes[i];
            continue;
        }
        s->held[s->n++] = (unsigned char)bytes[i];
        m += stream_drain(s, false, out + m);
    }
    if (flush)
        m += stream_drain(s, true, out + m);
    return m;
}
