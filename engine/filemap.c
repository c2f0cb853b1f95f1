/* SPDX-License-Identifier: Apache-2.0 */
/* filemap.c - model files are mapped, never read into buffers: weights are used where they lie,
 * a second process on the same file shares the memory, and a restart finds the page cache warm.
 *
 * A step of a small model walks through all of its weights, and pages of 4 KiB then cost it an
 * entry of the TLB every 4 KiB (twice as dear in a virtual machine). filemap_copy() is for who
 * computes with them again and again: the bytes move into huge pages at the same address.
 *
 * The size is taken once. Whoever truncates a file that a server has mapped, and not copied, gets
 * that server a bus error; replacing it by rename, as package managers and downloaders do, is safe.
 * What a parser walks over (headers, vocabularies, JSON) is therefore read and not mapped, and
 * filemap_check() tells whether the file stayed the same until the model was complete.
 */
#include "engine/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/numa.h"

enum { PIECE = 8 << 20, PAGE = 4096 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* of Linux 5.14; not in the headers of every libc */
#endif

/* Room for `size` bytes at a multiple of HUGE_PAGE, not yet usable. NULL: no address space. */
static uint8_t *reserve(size_t size)
{
    size_t most = size + HUGE_PAGE;
    uint8_t *p = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)p % HUGE_PAGE);
    if (before)
        munmap(p, before);
    if (most - before > size)
        munmap(p + before + size, most - before - size);
    return p + before;
}

static size_t whole_pages(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

/* The file's bytes at an address of their own; NULL with errno set. */
static uint8_t *map_file(int fd, size_t size)
{
    uint8_t *at = reserve(whole_pages(size));
    if (at && mmap(at, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int why = errno;
        munmap(at, whole_pages(size));
        errno = why;
        return NULL;
    }
    return at;
}

static int64_t changed_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* Opens a regular, non-empty file; -1 with a message. It is looked at before it is opened, because
 * opening a device may do something; and opened so that a FIFO in its place would not wait. */
static int open_regular(const char *path, struct stat *st, struct err *err)
{
    int fd = -1;
    if (stat(path, st) < 0 ||
        (S_ISREG(st->st_mode) &&
         ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) < 0 ||
          fstat(fd, st) < 0)))
        err_set(err, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st->st_mode))
        err_set(err, "%s: not a regular file", path);
    else if (st->st_size == 0)
        err_set(err, "%s: the file is empty", path);
    else
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

struct filemap *filemap_open(const char *path, struct err *err)
{
    struct stat st;
    int fd = open_regular(path, &st, err);
    if (fd < 0)
        return NULL;
    uint8_t *data = map_file(fd, (size_t)st.st_size);
    if (!data) {
        err_set(err, "%s: cannot map: %s", path, strerror(errno));
        close(fd);
        return NULL;
    }
    struct filemap *f = xcalloc(1, sizeof *f);
    f->data = data;
    f->size = (size_t)st.st_size;
    f->path = xstrdup(path);
    f->fd = fd;
    f->changed_ns = changed_ns(&st);
    return f;
}

void filemap_close(struct filemap *f)
{
    if (!f)
        return;
    munmap((void *)f->data, whole_pages(f->size));
    close(f->fd);
    free(f->path);
    free(f);
}

static bool read_at(int fd, size_t offset, uint8_t *to, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t piece = size - at < PIECE ? size - at : PIECE;
        ssize_t n = pread(fd, to + at, piece, (off_t)(offset + at));
        if (n == 0 || (n < 0 && errno != EINTR))
            return false; /* cut short meanwhile, or a bad disk */
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool read_all(int fd, uint8_t *to, size_t size)
{
    return read_at(fd, 0, to, size);
}

int filemap_read(const struct filemap *f, size_t offset, void *to, size_t n, struct err *err)
{
    if (offset <= f->size && n <= f->size - offset && read_at(f->fd, offset, to, n))
        return 0;
    return err_set(err, "%s: cannot be read, or has become shorter", f->path);
}

char *filemap_head(const struct filemap *f, size_t n, struct err *err)
{
    if (n > f->size)
        n = f->size;
    char *head = xmalloc(n + 1);
    head[n] = 0;
    if (read_all(f->fd, (uint8_t *)head, n))
        return head;
    free(head);
    err_set(err, "%s: cannot be read, or has become shorter", f->path);
    return NULL;
}

int filemap_check(const struct filemap *f, struct err *err)
{
    struct stat st;
    if (fstat(f->fd, &st) == 0 && (size_t)st.st_size == f->size && changed_ns(&st) == f->changed_ns)
        return 0;
    return err_set(err, "%s: the file was changed while it was read", f->path);
}

char *file_read(const char *path, size_t most, size_t *n, struct err *err)
{
    struct stat st;
    int fd = open_regular(path, &st, err);
    char *text = NULL;
    if (fd < 0)
        return NULL;
    *n = (size_t)st.st_size;
    if (*n > most) {
        err_set(err, "%s: %zu bytes, at most %zu are read", path, *n, most);
    } else {
        text = xmalloc(*n + 1);
        text[*n] = 0;
        if (!read_all(fd, (uint8_t *)text, *n)) {
            err_set(err, "%s: cannot be read, or has become shorter", path);
            free(text);
            text = NULL;
        }
    }
    close(fd);
    return text;
}

/* Whether `path` lies in `folder`, both without links. */
static bool lies_in(const char *folder, size_t n, const char *path)
{
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || (n && folder[n - 1] == '/'));
}

/* .../snapshots/REVISION may link to .../blobs/HASH. */
static bool lies_in_blobs(const char *folder, const char *path)
{
    static const char snapshots[] = "/snapshots";
    const char *revision = strrchr(folder, '/');
    size_t tail = sizeof snapshots - 1, n = revision ? (size_t)(revision - folder) : 0;
    if (n < tail || memcmp(revision - tail, snapshots, tail) != 0)
        return false;
    n -= tail;
    return strncmp(path, folder, n) == 0 && strncmp(path + n, "/blobs/", 7) == 0;
}

int file_check_within(const char *folder, const char *name, struct err *err)
{
    char *path = xasprintf("%s/%s", folder, name);
    char *real = realpath(path, NULL), *root = realpath(folder, NULL);
    bool within = !real || !root || lies_in(root, strlen(root), real) || lies_in_blobs(root, real);
    if (!within)
        err_set(err, "%s: leads out of the model's folder", path);
    free(path);
    free(real);
    free(root);
    return within ? 0 : -1;
}

bool filemap_copy(struct filemap *f)
{
    size_t bytes = whole_pages(f->size);
    uint8_t *copy = f->copied ? NULL : reserve(bytes);
    if (!copy)
        return f->copied;
    bool ok = mprotect(copy, bytes, PROT_READ | PROT_WRITE) == 0;
    if (ok) {
        madvise(copy, bytes, MADV_HUGEPAGE); /* a wish: without it the copy has small pages */
        numa_spread(copy, bytes);
        ok = read_all(f->fd, copy, f->size) && mprotect(copy, bytes, PROT_READ) == 0 &&
             mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, f->data) != MAP_FAILED;
    }
    if (!ok)
        munmap(copy, bytes);
    f->copied = ok;
    return ok;
}

/* Brings a piece in; false if the file no longer has it. Linux before 5.14 must touch the pages,
 * and is sent a signal then. */
static bool populate(const uint8_t *at, size_t n)
{
    size_t whole = whole_pages(n);
    if (madvise((void *)at, whole, MADV_POPULATE_READ) == 0)
        return true;
    if (errno == EFAULT)
        return false;
    for (size_t i = 0; i < n; i += PAGE)
        (void)*(const volatile uint8_t *)(at + i);
    return true;
}

int filemap_page_in(const struct filemap *f, void (*step)(void *ctx, size_t bytes), void *ctx,
                    struct err *err)
{
    for (size_t at = 0; at < f->size; at += PIECE) {
        size_t n = f->size - at < PIECE ? f->size - at : PIECE;
        size_t ahead = f->size - at < 2 * (size_t)PIECE ? f->size - at : 2 * (size_t)PIECE;
        madvise((void *)(f->data + at), ahead, MADV_WILLNEED);
        if (!populate(f->data + at, n))
            return err_set(err, "%s: cannot be read, or has become shorter", f->path);
        step(ctx, n);
    }
    return 0;
}
