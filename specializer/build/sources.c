/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - the embedded kernel sources as files. */
#include "specializer/build/sources.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "kernels/sources.h"
#include "specializer/candidate/hash.h"

enum { LEFT_S = 24 * 60 * 60 };

char *kernel_sources_folder(const char *store)
{
    uint64_t h = HASH_START;
    char hash[17];
    for (int i = 0; i < kernel_source_count; i++)
        h = hash_text(hash_text(h, kernel_sources[i].name), kernel_sources[i].text);
    hash_hex(h, hash);
    return xasprintf("%s.kernels/%s", store, hash);
}

/* Under another name first, which no other process uses, so that a compiler never reads half a
 * file. */
static int write_source(const char *dir, const struct kernel_source *s, struct err *err)
{
    char *path = xasprintf("%s/%s", dir, s->name);
    char *part = xasprintf("%s.%ld.part", path, (long)getpid());
    for (char *c = strchr(path + strlen(dir) + 1, '/'); c; c = strchr(c + 1, '/')) {
        *c = 0;
        mkdir(path, 0700);
        *c = '/';
    }
    FILE *out = safe_create(part);
    int r = out ? 0 : -1;
    if (out) {
        r = fwrite(s->text, 1, s->size, out) == s->size ? 0 : -1;
        r = fclose(out) == 0 && r == 0 && rename(part, path) == 0 ? 0 : -1;
    }
    if (r != 0) {
        err_set(err, "kernel source %s cannot be written: %s", path, strerror(errno));
        unlink(part);
    }
    free(path);
    free(part);
    return r;
}

int kernel_sources_write(const char *dir, struct err *err)
{
    if (safe_folder_make(dir, err) != 0)
        return -1;
    for (int i = 0; i < kernel_source_count; i++)
        if (write_source(dir, &kernel_sources[i], err) != 0)
            return -1;
    utimensat(AT_FDCWD, dir, NULL, 0); /* files in place of others leave it as old as it was */
    return 0;
}

bool kernel_sources_there(const char *dir)
{
    bool there = true;
    for (int i = 0; i < kernel_source_count && there; i++) {
        struct stat st;
        char *path = xasprintf("%s/%s", dir, kernel_sources[i].name);
        there = stat(path, &st) == 0 && st.st_size == (off_t)kernel_sources[i].size;
        free(path);
    }
    return there;
}

void kernel_sources_prune(const char *dir)
{
    char *beside = xstrdup(dir);
    char *own = strrchr(beside, '/');
    if (own)
        *own++ = 0;
    DIR *d = own ? opendir(beside) : NULL;
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        struct stat st;
        char *path = xasprintf("%s/%s", beside, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            strcmp(e->d_name, own) != 0 && lstat(path, &st) == 0 &&
            st.st_mtime < time(NULL) - LEFT_S)
            safe_folder_remove(path);
        free(path);
    }
    if (d)
        closedir(d);
    free(beside);
}
