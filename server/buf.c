/* SPDX-License-Identifier: Apache-2.0 */
/* buf.c - a growable run of bytes. Doubling growth; nothing clever. */
#include "server/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

void buf_reserve(struct buf *b, size_t more)
{
    if (b->room - b->n >= more)
        return;
    size_t room = b->room ? b->room : 256;
    while (room - b->n < more)
        room *= 2;
    b->p = xrealloc(b->p, room);
    b->room = room;
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    if (!n)
        return;
    buf_reserve(b, n);
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    buf_reserve(b, (size_t)n + 1);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
    va_end(again);
    b->n += (size_t)n;
}

void buf_consume(struct buf *b, size_t n)
{
    b->n -= n;
    if (b->n && n)
        memmove(b->p, b->p + n, b->n);
}

void buf_clear(struct buf *b)
{
    b->n = 0;
}

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){0};
}

char *buf_take(struct buf *b, size_t *n)
{
    buf_reserve(b, 1);
    b->p[b->n] = '\0';
    if (n)
        *n = b->n;
    char *p = b->p;
    *b = (struct buf){0};
    return p;
}

void buf_swap(struct buf *a, struct buf *b)
{
    struct buf t = *a;
    *a = *b;
    *b = t;
}
