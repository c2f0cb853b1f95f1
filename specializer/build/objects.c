/* SPDX-License-Identifier: Apache-2.0 */
/* objects.c - see objects.h.
 *
 * Every candidate leaves an object of some tens of kilobytes, so that trying it again in another
 * slot, or restoring it, needs no compiler; a server that searches for months would fill a disk
 * with them. Nothing here is precious: an object that is missing is built again. So age and size
 * decide, by the time the file was written, and only what serves, may come back by an operator's
 * rollback, or is on its way into a slot is spared.
 */
#include "specializer/build/objects.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/err.h"
#include "config/safe_path.h"

#define LEFTOVER_S (24 * 3600)

struct object {
    char *path;
    int64_t bytes, written_s;
};

struct folder {
    const char *name;
    struct object *object;
    int n;
    int64_t bytes; /* of all, spared ones included */
    int removed;
};

/* One entry: an object to choose from, one to spare, or a leftover. */
static void take(struct folder *f, const char *name, int64_t now,
                 bool (*kept)(void *ctx, const char *object_key), void *ctx)
{
    char *path = xasprintf("%s/%s", f->name, name), key[40];
    const char *dot = strchr(name, '.');
    struct stat st;
    size_t suffix = dot ? strcspn(dot + 1, ".") + 1 : 0; /* of ".so", ".lt" or ".cubin" */
    bool object = (suffix == 3 && (strncmp(dot, ".so", 3) == 0 || strncmp(dot, ".lt", 3) == 0)) ||
                  (suffix == 6 && strncmp(dot, ".cubin", 6) == 0);
    if (!dot || lstat(path, &st) != 0) {
        free(path);
        return;
    }
    snprintf(key, sizeof key, "%.*s", (int)(dot - name), name);
    /* A time to come is one of a clock that was set back since. */
    int64_t written_s = (int64_t)st.st_mtime;
    bool old = now - written_s > LEFTOVER_S || written_s - now > LEFTOVER_S;
    if (object && !dot[suffix] && S_ISREG(st.st_mode)) {
        f->bytes += st.st_size;
        if (!kept(ctx, key)) {
            f->object = xrealloc(f->object, (size_t)(f->n + 1) * sizeof *f->object);
            f->object[f->n++] = (struct object){path, st.st_size, (int64_t)st.st_mtime};
            return;
        }
    } else if (object && dot[suffix] && old) {
        if (S_ISDIR(st.st_mode))
            safe_folder_remove(path);
        else
            unlink(path);
        f->removed++;
    }
    free(path);
}

static int older_first(const void *a, const void *b)
{
    const struct object *x = a, *y = b;
    return (x->written_s > y->written_s) - (x->written_s < y->written_s);
}

int objects_prune(const char *folder, struct objects_limit limit,
                  bool (*kept)(void *ctx, const char *object_key), void *ctx)
{
    struct folder f = {.name = folder};
    int64_t now = (int64_t)time(NULL);
    DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.')
            take(&f, e->d_name, now, kept, ctx);
    if (d)
        closedir(d);
    if (f.n > 0)
        qsort(f.object, (size_t)f.n, sizeof *f.object, older_first);
    for (int i = 0; i < f.n; i++) {
        const struct object *o = &f.object[i];
        bool goes = f.bytes > limit.bytes || now - o->written_s > limit.age_s;
        if (goes && unlink(o->path) == 0) {
            f.bytes -= o->bytes;
            f.removed++;
        }
        free(o->path);
    }
    free(f.object);
    return f.removed;
}
