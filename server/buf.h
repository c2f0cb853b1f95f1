/* SPDX-License-Identifier: Apache-2.0 */
/* buf.h - a growable run of bytes: input, output and JSON text are built in these.
 *
 * All-zero is a valid empty buffer. Growth cannot fail (host memory aborts, see config/err.h).
 */
#ifndef WHET_SERVER_BUF_H
#define WHET_SERVER_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *p;
    size_t n, room;
};

void buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
/* Empties but keeps the memory. */
void buf_clear(struct buf *b);
void buf_free(struct buf *b);
/* Hands the bytes over as a NUL-terminated malloc'ed string and leaves the buffer empty. */
char *buf_take(struct buf *b, size_t *n);
void buf_swap(struct buf *a, struct buf *b);

#endif
