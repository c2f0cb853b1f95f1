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
    bool copied; /* filemap_copy() replaced the mapping */
};

enum { HUGE_PAGE = 2 << 20 };

/* Maps a regular, non-empty file. NULL with a message that names it. Free with filemap_close(). */
struct filemap *filemap_open(const char *path, struct err *err);
void filemap_close(struct filemap *f);

/* Brings the file into memory front to back; after each piece calls step(ctx, bytes of the piece).
 */
void filemap_page_in(const struct filemap *f, void (*step)(void *ctx, size_t bytes), void *ctx);

/* Puts a private copy of the file, in huge pages where the system has them, in the place of its
 * mapping, so that pointers into `data` stay valid. Nobody may read it meanwhile. False, with the
 * mapping as it was, when there is no memory or the file cannot be read. */
bool filemap_copy(struct filemap *f);

#endif
