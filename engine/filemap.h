/* SPDX-License-Identifier: Apache-2.0 */
/* filemap.h - a file mapped read-only. */
#ifndef WHET_ENGINE_FILEMAP_H
#define WHET_ENGINE_FILEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

struct filemap {
    const uint8_t *data; /* at a multiple of HUGE_PAGE */
    size_t size;
    char *path;
    int fd;
    int64_t changed_ns; /* when the file was last written to, as it was opened */
    bool copied;        /* filemap_copy() replaced the mapping */
};

enum { HUGE_PAGE = 2 << 20 };

/* Maps a regular, non-empty file. NULL with a message that names it. Free with filemap_close(). */
struct filemap *filemap_open(const char *path, struct err *err);
void filemap_close(struct filemap *f);

/* The first n bytes of the file, at most its size, as a malloc'ed copy with a NUL behind it: what a
 * parser walks over cannot vanish from under it. NULL with a message if the file has become
 * shorter. */
char *filemap_head(const struct filemap *f, size_t n, struct err *err);

/* Reads `n` bytes at `offset` of the file to `to`, past the mapping. -1 with a message if the file
 * does not have them any more. */
int filemap_read(const struct filemap *f, size_t offset, void *to, size_t n, struct err *err);

/* -1 with a message if the file has another size or was written to since it was opened. */
int filemap_check(const struct filemap *f, struct err *err);

/* A regular file of at most `most` bytes, read into malloc'ed memory with a NUL behind it; NULL
 * with a message that names it. */
char *file_read(const char *path, size_t most, size_t *n, struct err *err);

/* -1 with a message if `name` in `folder` is a link that leads elsewhere: a folder that was
 * downloaded does not decide what else of this machine is read. Where the Hugging Face cache keeps
 * a snapshot, its links into the blobs beside it are in place. 0 if there is no such file. */
int file_check_within(const char *folder, const char *name, struct err *err);

/* Brings the file into memory front to back; after each piece calls step(ctx, bytes of the piece).
 * -1 with a message if the file cannot be read to its end. */
int filemap_page_in(const struct filemap *f, void (*step)(void *ctx, size_t bytes), void *ctx,
                    struct err *err);

/* Puts a private copy of the file, in huge pages where the system has them, in the place of its
 * mapping, so that pointers into `data` stay valid. Nobody may read it meanwhile. False, with the
 * mapping as it was, when there is no memory or the file cannot be read. */
bool filemap_copy(struct filemap *f);

#endif
