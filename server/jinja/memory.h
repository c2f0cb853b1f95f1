/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory and failure of the interpreter (jinja.h).
 *
 * Parsing and rendering take all memory from an arena that is freed as a whole, and leave by one
 * jump when something is wrong: an expression is evaluated twenty calls deep, none of which holds
 * anything that would have to be given back. The jump stays within jinja_parse() and
 * jinja_render(), whose callers get errors as values.
 */
#ifndef WHET_SERVER_JINJA_MEMORY_H
#define WHET_SERVER_JINJA_MEMORY_H

#include <setjmp.h>

#include "server/jinja/jinja.h"

enum { JINJA_ROOMS = 8 };

struct jinja_memory {
    struct jinja_chunk *chunk;
    char *at, *end;
    size_t taken, most; /* bytes in chunks */
    jmp_buf leave;
    struct err *err;
    enum jinja_end reason;
    int line; /* of what is being parsed or run */
    /* Strings that were made by appending and have room behind them: appending to such a one
     * again writes there, so that a text that grows piece by piece is copied a few times only. */
    struct jinja_room {
        char *base;
        size_t n, room;
    } room[JINJA_ROOMS];
    unsigned next_room;
};

/* Not cleared; aligned for any value. Leaves if it would be more than `most`. */
void *jinja_alloc(struct jinja_memory *m, size_t n);
/* `n` items of `size` bytes. */
void *jinja_alloc_items(struct jinja_memory *m, size_t n, size_t size);
/* Room for at least one more of `n` items: the same, or twice as much with them copied there. */
void *jinja_grow(struct jinja_memory *m, void *items, size_t n, size_t *room, size_t size);
void jinja_memory_free(struct jinja_memory *m);
/* a and b joined. */
struct jinja_value jinja_join2(struct jinja_memory *m, struct jinja_value a, struct jinja_value b);

/* Leave with "line N: " and a message, or with a reason of its own. */
_Noreturn void jinja_fail(struct jinja_memory *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void jinja_leave(struct jinja_memory *m, enum jinja_end reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Text that grows. All-zero is empty. */
struct jinja_out {
    char *p;
    size_t n, room;
};
void jinja_add(struct jinja_memory *m, struct jinja_out *out, const char *s, size_t n);
void jinja_add_text(struct jinja_memory *m, struct jinja_out *out, const char *s);
struct jinja_value jinja_taken(struct jinja_out *out);

#endif
