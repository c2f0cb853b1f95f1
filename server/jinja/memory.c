/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - the arena, and the one way out when something is wrong. */
#include "server/jinja/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 16 * 1024, ALIGNMENT = 16, SLACK_FROM = 64 };

struct jinja_chunk {
    struct jinja_chunk *next;
    _Alignas(ALIGNMENT) char bytes[];
};

void jinja_leave(struct jinja_memory *m, enum jinja_end reason, const char *fmt, ...)
{
    char text[sizeof m->err->msg];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(m->err, "%s", text);
    m->reason = reason;
    longjmp(m->leave, 1);
}

void jinja_fail(struct jinja_memory *m, const char *fmt, ...)
{
    char text[sizeof m->err->msg];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    jinja_leave(m, JINJA_FAILED, "line %d: %s", m->line, text);
}

void *jinja_alloc(struct jinja_memory *m, size_t n)
{
    if (n > m->most)
        jinja_leave(m, JINJA_LIMIT, "the chat template took more than %zu bytes of memory",
                    m->most);
    n = (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if ((size_t)(m->end - m->at) < n) {
        size_t size = n > CHUNK / 4 ? n : CHUNK;
        if (m->taken + size > m->most)
            jinja_leave(m, JINJA_LIMIT, "the chat template took more than %zu bytes of memory",
                        m->most);
        struct jinja_chunk *c = xmalloc(sizeof *c + size);
        c->next = m->chunk;
        m->chunk = c;
        m->taken += size;
        if (size != CHUNK) /* large pieces leave the current chunk as it is */
            return c->bytes;
        m->at = c->bytes;
        m->end = c->bytes + size;
    }
    void *p = m->at;
    m->at += n;
    return p;
}

void *jinja_alloc_items(struct jinja_memory *m, size_t n, size_t size)
{
    if (n > SIZE_MAX / 2 / size)
        jinja_leave(m, JINJA_LIMIT, "the chat template took more than %zu bytes of memory",
                    m->most);
    return jinja_alloc(m, n * size + 1);
}

void *jinja_grow(struct jinja_memory *m, void *items, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return items;
    size_t twice = *room ? *room * 2 : 4;
    void *more = jinja_alloc_items(m, twice, size);
    if (n)
        memcpy(more, items, n * size);
    *room = twice;
    return more;
}

void jinja_memory_free(struct jinja_memory *m)
{
    while (m->chunk) {
        struct jinja_chunk *next = m->chunk->next;
        free(m->chunk);
        m->chunk = next;
    }
    m->at = m->end = NULL;
}

struct jinja_value jinja_join2(struct jinja_memory *m, struct jinja_value a, struct jinja_value b)
{
    if (b.u.s.n == 0)
        return a;
    if (a.u.s.n == 0)
        return b;
    size_t n = a.u.s.n + b.u.s.n;
    for (unsigned i = 0; i < JINJA_ROOMS; i++) {
        struct jinja_room *room = &m->room[i];
        if (room->base && a.u.s.p + a.u.s.n == room->base + room->n &&
            room->room - room->n >= b.u.s.n) {
            memcpy(room->base + room->n, b.u.s.p, b.u.s.n);
            room->n += b.u.s.n;
            return jinja_string(a.u.s.p, n);
        }
    }
    size_t slack = n >= SLACK_FROM ? n : 0;
    char *p = jinja_alloc_items(m, n + slack, 1);
    memcpy(p, a.u.s.p, a.u.s.n);
    memcpy(p + a.u.s.n, b.u.s.p, b.u.s.n);
    if (slack)
        m->room[m->next_room++ % JINJA_ROOMS] = (struct jinja_room){p, n, n + slack};
    return jinja_string(p, n);
}

void jinja_add(struct jinja_memory *m, struct jinja_out *out, const char *s, size_t n)
{
    if (n == 0)
        return;
    if (out->room - out->n < n) {
        size_t room = (out->n + n) * 2 < 64 ? 64 : (out->n + n) * 2;
        char *p = jinja_alloc_items(m, room, 1);
        if (out->n)
            memcpy(p, out->p, out->n);
        out->p = p;
        out->room = room;
    }
    memcpy(out->p + out->n, s, n);
    out->n += n;
}

void jinja_add_text(struct jinja_memory *m, struct jinja_out *out, const char *s)
{
    jinja_add(m, out, s, strlen(s));
}

struct jinja_value jinja_taken(struct jinja_out *out)
{
    return jinja_string(out->p ? out->p : "", out->n);
}
