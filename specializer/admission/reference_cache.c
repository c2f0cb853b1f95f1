/* SPDX-License-Identifier: Apache-2.0 */
/* reference_cache.c - see reference_cache.h.
 *
 * A runner never gets at these files: they are opened when it is dead, and while one lives seccomp
 * lets it open nothing. Still a file is believed only if name, size and checksum agree, so that a
 * disk that was full or a process that was killed leaves nothing that is taken for an answer.
 */
#include "specializer/admission/reference_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "specializer/candidate/hash.h"

static const int64_t bytes_in_all = 256 << 20;
static const size_t bytes_of_one = 8 << 20;
static const char magic[8] = "whetref", suffix[] = ".ref";

struct head {
    char magic[8];
    uint64_t key, n, sum;
};

struct entry {
    char *path;
    int64_t bytes, used_ns;
};

static char *path_of(const char *dir, uint64_t key)
{
    return xasprintf("%s/%016llx%s", dir, (unsigned long long)key, suffix);
}

static uint64_t sum_of(const void *data, size_t n)
{
    return hash_mix(hash_words(HASH_START, data, n));
}

/* ---- the folder ----------------------------------------------------------------------------- */

static int oldest_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

/* Everything that is kept, or was to be. */
static struct entry *list(const char *dir, int *n)
{
    struct entry *all = NULL;
    struct dirent *e;
    struct stat st;
    DIR *d = opendir(dir);
    *n = 0;
    while (d && (e = readdir(d)) != NULL) {
        if (!strstr(e->d_name, suffix))
            continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        if (lstat(path, &st) != 0) {
            free(path);
            continue;
        }
        all = xrealloc(all, (size_t)(*n + 1) * sizeof *all);
        all[(*n)++] =
            (struct entry){path, st.st_size, st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
    }
    if (d)
        closedir(d);
    return all;
}

void reference_cache_shrink(const char *dir, int64_t most)
{
    int n;
    int64_t bytes = 0;
    struct entry *all = list(dir, &n);
    for (int i = 0; i < n; i++)
        bytes += all[i].bytes;
    if (n > 0 && bytes > most)
        qsort(all, (size_t)n, sizeof *all, oldest_first);
    for (int i = 0; i < n; i++) {
        if (bytes > most && unlink(all[i].path) == 0)
            bytes -= all[i].bytes;
        free(all[i].path);
    }
    free(all);
}

int reference_cache_clear(const char *dir, struct err *err)
{
    if (safe_folder_make(dir, err) != 0)
        return -1;
    reference_cache_shrink(dir, -1);
    return 0;
}

/* ---- one answer ----------------------------------------------------------------------------- */

static bool read_all(int fd, void *data, size_t n)
{
    char *p = data;
    while (n > 0) {
        ssize_t got = read(fd, p, n);
        if (got <= 0)
            return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

void *reference_cache_read(const char *dir, uint64_t key, size_t *n)
{
    if (!dir)
        return NULL;
    char *path = path_of(dir, key);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    free(path);
    if (fd < 0)
        return NULL;
    struct head h;
    void *data = NULL;
    if (read_all(fd, &h, sizeof h) && memcmp(h.magic, magic, sizeof magic) == 0 && h.key == key &&
        h.n <= bytes_of_one) {
        data = xmalloc(h.n + 1);
        if (!read_all(fd, data, h.n) || sum_of(data, h.n) != h.sum) {
            free(data);
            data = NULL;
        }
        *n = h.n;
    }
    if (data)
        futimens(fd, NULL); /* used now */
    close(fd);
    return data;
}

static bool write_file(const char *path, const struct head *h, const void *data)
{
    FILE *f = safe_create(path);
    if (!f)
        return false;
    bool whole = fwrite(h, sizeof *h, 1, f) == 1 && (h->n == 0 || fwrite(data, h->n, 1, f) == 1);
    return fclose(f) == 0 && whole;
}

void reference_cache_write(const char *dir, uint64_t key, const void *data, size_t n)
{
    if (!dir || n > bytes_of_one)
        return;
    struct head h = {.key = key, .n = n, .sum = sum_of(data, n)};
    memcpy(h.magic, magic, sizeof magic);
    char *path = path_of(dir, key), *temporary = xasprintf("%s.%ld", path, (long)getpid());
    if (!write_file(temporary, &h, data) || rename(temporary, path) != 0)
        unlink(temporary);
    reference_cache_shrink(dir, bytes_in_all);
    free(temporary);
    free(path);
}
