/* SPDX-License-Identifier: Apache-2.0 */
/* err.c - messages into the caller's buffer, and allocation that cannot fail. */
#include "config/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(struct err *e, bool outside, bool killed, const char *fmt, va_list ap)
{
    if (!e)
        return;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    e->outside = outside;
    e->killed = killed;
}

int err_set(struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(e, false, false, fmt, ap);
    va_end(ap);
    return -1;
}

int err_outside(struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(e, true, false, fmt, ap);
    va_end(ap);
    return -1;
}

int err_killed(struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(e, true, true, fmt, ap);
    va_end(ap);
    return -1;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    char prefix[sizeof e->msg], rest[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(rest, e->msg, sizeof rest);
    size_t n = strlen(prefix);
    memcpy(e->msg, prefix, n);
    const char *part[] = {": ", rest};
    for (int i = 0; i < 2; i++)
        for (const char *c = part[i]; *c && n + 1 < sizeof e->msg; c++)
            e->msg[n++] = *c;
    e->msg[n] = 0;
    return -1;
}

/* Host memory is gone: nothing can be answered any more, and no caller could do better. */
static void *checked(void *p, size_t n)
{
    if (!p && n) {
        fprintf(stderr, "whet: out of memory (%zu bytes wanted)\n", n);
        abort();
    }
    return p;
}

void *xmalloc(size_t n)
{
    return checked(malloc(n ? n : 1), n);
}

void *xcalloc(size_t count, size_t n)
{
    return checked(calloc(count ? count : 1, n ? n : 1), count * n);
}

void *xrealloc(void *p, size_t n)
{
    return checked(realloc(p, n ? n : 1), n);
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

char *xstrndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    char *copy = xmalloc(n + 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = xmalloc((size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}

void *xaligned_to(size_t alignment, size_t size)
{
    return checked(aligned_alloc(alignment, size), size);
}

void *xaligned(size_t n)
{
    size_t size = (n + 63) & ~(size_t)63;
    return memset(xaligned_to(64, size ? size : 64), 0, size);
}

FILE *xmemstream(char **text, size_t *n)
{
    return xmade(open_memstream(text, n));
}

void *xmade(void *p)
{
    if (!p) {
        fprintf(stderr, "whet: out of memory\n");
        abort();
    }
    return p;
}
