/* SPDX-License-Identifier: Apache-2.0 */
/* err.h - errors are values: 0 or -1, and a sentence in the caller's struct err.
 *
 * A function that can fail takes a `struct err *` as its last argument and returns -1 (or NULL)
 * after writing one sentence that names the thing at fault: a file, a field, an option. Nothing
 * outside main() exits. Running out of host memory is the one exception: x*() below abort.
 */
#ifndef WHET_CONFIG_ERR_H
#define WHET_CONFIG_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct err {
    char msg[512];
    bool outside; /* nothing was learnt of what was asked: no memory, no process, a killed child */
    bool killed;  /* the last of these */
};

/* Writes the message (truncated to fit) and returns -1. `e` may be NULL. */
int err_set(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for a cause that lies outside of what was asked; try again later. */
int err_outside(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The same of a child that something outside killed, as the system does when memory is gone. */
int err_killed(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before the message already in `e`, leaves the rest; returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Allocation that cannot fail: aborts with a message when host memory is gone. Free with free(). */
void *xmalloc(size_t n);
void *xcalloc(size_t count, size_t n);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
/* The first n bytes of s, or all where it is shorter. */
char *xstrndup(const char *s, size_t n);
/* printf into a fresh string; the caller frees it. */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* 64-byte aligned and zeroed; free with free(). */
void *xaligned(size_t n);
/* Not cleared; `size` is a multiple of `alignment`, a power of two. */
void *xaligned_to(size_t alignment, size_t size);
/* open_memstream(): what is written lies in *text, *n bytes, once it is closed. free() it. */
FILE *xmemstream(char **text, size_t *n);
/* What a library made: aborts likewise where that is NULL, for want of memory alone. */
void *xmade(void *p);

#endif
