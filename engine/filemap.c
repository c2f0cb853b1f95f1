/* filemap.c - model files are mapped, never read into buffers: weights are used where they lie,
 * a second process on the same file shares the memory, and a restart finds the page cache warm.
 *
 * The size is taken once. Whoever truncates a file that a server has mapped gets that server a bus
 * error; replacing it by rename, as package managers and downloaders do, is safe.
 */
#include "engine/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 8 << 20, PAGE = 4096 };

struct filemap *filemap_open(const char *path, struct err *err)
{
    struct stat st;
    void *data = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        err_set(err, "%s: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st) < 0)
        err_set(err, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        err_set(err, "%s: not a regular file", path);
    else if (st.st_size == 0)
        err_set(err, "%s: the file is empty", path);
    else if ((data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        err_set(err, "%s: cannot map: %s", path, strerror(errno));
    close(fd); /* the mapping keeps the file */
    if (data == MAP_FAILED)
        return NULL;

    struct filemap *f = xcalloc(1, sizeof *f);
    f->data = data;
    f->size = (size_t)st.st_size;
    f->path = xstrdup(path);
    return f;
}

void filemap_close(struct filemap *f)
{
    if (!f)
        return;
    munmap((void *)f->data, f->size);
    free(f->path);
    free(f);
}

void filemap_page_in(const struct filemap *f, void (*step)(void *ctx, size_t bytes), void *ctx)
{
    for (size_t at = 0; at < f->size; at += PIECE) {
        size_t n = f->size - at < PIECE ? f->size - at : PIECE;
        size_t ahead = f->size - at < 2 * (size_t)PIECE ? f->size - at : 2 * (size_t)PIECE;
        madvise((void *)(f->data + at), ahead, MADV_WILLNEED);
        for (size_t i = 0; i < n; i += PAGE)
            (void)*(const volatile uint8_t *)(f->data + at + i);
        step(ctx, n);
    }
}
