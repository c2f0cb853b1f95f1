/* filemap.h - a file mapped read-only. */
#ifndef WHET_ENGINE_FILEMAP_H
#define WHET_ENGINE_FILEMAP_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

struct filemap {
    const uint8_t *data;
    size_t size;
    char *path;
};

/* Maps a regular, non-empty file. NULL with a message that names it. Free with filemap_close(). */
struct filemap *filemap_open(const char *path, struct err *err);
void filemap_close(struct filemap *f);

/* Brings the file into memory front to back; after each piece calls step(ctx, bytes of the piece).
 */
void filemap_page_in(const struct filemap *f, void (*step)(void *ctx, size_t bytes), void *ctx);

#endif
