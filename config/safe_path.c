/* SPDX-License-Identifier: Apache-2.0 */
/* safe_path.c - see safe_path.h.
 *
 * One walk serves all: from "/" down, component by component, with openat(O_PATH | O_NOFOLLOW), a
 * link's text put in front of what is left of the path. What differs is the rule that folders on
 * the way and the thing at the end are held against.
 */
#include "config/safe_path.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MOST = 40 };

enum rule {
    RULE_OURS,   /* owner and modes */
    RULE_PROGRAM /* only that not everybody can exchange it */
};

struct walk {
    enum rule rule;
    bool make;           /* what is missing */
    int fd;              /* where we are, O_PATH */
    struct stat st;      /* of it */
    bool shared;         /* the folder that it is in: everybody may make things there */
    int links;           /* followed so far */
    char name[PATH_MAX]; /* of it, for messages */
    char rest[PATH_MAX]; /* still to go */
    struct err *err;
};

/* ---- rules ---------------------------------------------------------------------------------- */

static bool is_trusted(uid_t owner)
{
    struct stat root;
    return owner == 0 || owner == geteuid() || (stat("/", &root) == 0 && owner == root.st_uid);
}

static bool is_shared(const struct stat *st)
{
    return S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) && (st->st_mode & (S_IWGRP | S_IWOTH));
}

static const char *kind_of(const struct stat *st)
{
    return S_ISDIR(st->st_mode) ? "folder" : S_ISLNK(st->st_mode) ? "link" : "file";
}

static int check_owner(const struct walk *w)
{
    if (is_trusted(w->st.st_uid))
        return 0;
    return err_set(w->err,
                   "%s %.200s belongs to user %ld, who could exchange it: it must be root's"
                   " or that of user %ld, who runs this",
                   kind_of(&w->st), w->name, (long)w->st.st_uid, (long)geteuid());
}

/* The thing at w->fd, wherever on the way. */
static int check(const struct walk *w)
{
    mode_t writers = w->rule == RULE_OURS ? S_IWGRP | S_IWOTH : S_IWOTH;
    if ((w->rule == RULE_OURS || w->shared) && check_owner(w) != 0)
        return -1;
    if (S_ISLNK(w->st.st_mode) && w->shared)
        return err_set(w->err, "%.200s is a symbolic link in a folder that all users share",
                       w->name);
    if (S_ISLNK(w->st.st_mode) || !(w->st.st_mode & writers) || is_shared(&w->st))
        return 0;
    return err_set(w->err,
                   "%s %.200s may be written by other users (mode %04o): chmod go-w it, or "
                   "use another",
                   kind_of(&w->st), w->name, (unsigned)(w->st.st_mode & 07777));
}

/* ---- the walk ------------------------------------------------------------------------------- */

static int stand_on(struct walk *w, int fd)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = fd;
    return fstat(fd, &w->st) == 0 ? 0 : err_set(w->err, "%.200s: %s", w->name, strerror(errno));
}

static int to_root(struct walk *w)
{
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(w->name, sizeof w->name, "/");
    w->shared = false;
    if (fd < 0)
        return err_set(w->err, "/: %s", strerror(errno));
    return stand_on(w, fd) != 0 ? -1 : check(w);
}

/* Takes the first component off w->rest; false: there is none. */
static bool next_component(struct walk *w, char out[PATH_MAX])
{
    size_t skip = strspn(w->rest, "/"), n = strcspn(w->rest + skip, "/");
    snprintf(out, PATH_MAX, "%.*s", (int)n, w->rest + skip);
    memmove(w->rest, w->rest + skip + n, strlen(w->rest + skip + n) + 1);
    return n > 0;
}

/* Where the link leads goes before what is left; `link` is the link, at its folder w->fd. */
static int follow(struct walk *w, int link)
{
    char target[PATH_MAX], rest[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof target - 1);
    if (n < 0 || ++w->links > LINKS_MOST)
        return err_set(w->err, "%.200s: %s", w->name, n < 0 ? strerror(errno) : "too many links");
    target[n] = 0;
    snprintf(rest, sizeof rest, "%s", w->rest);
    if (snprintf(w->rest, sizeof w->rest, "%s/%s", target, rest) >= (int)sizeof w->rest)
        return err_set(w->err, "%.200s: %s", w->name, strerror(ENAMETOOLONG));
    if (target[0] == '/')
        return to_root(w);
    *strrchr(w->name, '/') = 0;
    return 0;
}

/* Opens `component` of the folder at w->fd, made if it may be. */
static int open_component(struct walk *w, const char *component)
{
    int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, fd = openat(w->fd, component, flags);
    if (fd < 0 && errno == ENOENT && w->make) {
        if (mkdirat(w->fd, component, 0700) != 0 && errno != EEXIST)
            return err_set(w->err, "cannot make folder %.200s: %s", w->name, strerror(errno));
        fd = openat(w->fd, component, flags);
    }
    return fd >= 0 ? fd : err_set(w->err, "%.200s: %s", w->name, strerror(errno));
}

static int step(struct walk *w, const char *component)
{
    size_t n = strlen(w->name);
    if (strcmp(component, ".") == 0)
        return 0;
    if (!S_ISDIR(w->st.st_mode))
        return err_set(w->err, "%.200s: %s", w->name, strerror(ENOTDIR));
    if (snprintf(w->name + n, sizeof w->name - n, "%s%s",
                 n > 1 ? "/"
                 : n   ? ""
                       : "/",
                 component) >= (int)(sizeof w->name - n))
        return err_set(w->err, "%.200s: %s", w->name, strerror(ENAMETOOLONG));
    struct walk next = *w;
    next.shared = is_shared(&w->st);
    next.fd = open_component(w, component);
    if (next.fd < 0)
        return -1;
    int rc = fstat(next.fd, &next.st) == 0 ? check(&next) : -1;
    if (rc == 0 && S_ISLNK(next.st.st_mode)) {
        rc = follow(w, next.fd);
        close(next.fd);
    } else if (rc == 0) {
        close(w->fd);
        w->fd = next.fd;
        w->st = next.st;
        w->shared = next.shared;
    } else {
        close(next.fd);
    }
    return rc;
}

/* Leaves w->fd at the end of `path`, and open only if it returns 0. */
static int walk(struct walk *w, const char *path)
{
    char component[PATH_MAX], here[PATH_MAX] = "";
    w->fd = -1;
    if (path[0] != '/' && !getcwd(here, sizeof here))
        return err_set(w->err, "%.200s: %s", path, strerror(errno));
    if (snprintf(w->rest, sizeof w->rest, "%s/%s", here, path) >= (int)sizeof w->rest)
        return err_set(w->err, "%.200s: %s", path, strerror(ENAMETOOLONG));
    int rc = to_root(w);
    while (rc == 0 && next_component(w, component))
        rc = step(w, component);
    if (rc != 0 && w->fd >= 0)
        close(w->fd);
    if (rc != 0 && w->links > 0) /* then the name is not the one that was asked for */
        err_prefix(w->err, "%.200s", path);
    return rc;
}

/* ---- folders -------------------------------------------------------------------------------- */

/* An O_PATH descriptor of the folder, or -1. */
static int open_folder(const char *path, bool make, bool may_be_shared, struct err *err)
{
    struct walk w = {.make = make, .err = err};
    int rc = walk(&w, path);
    if (rc != 0)
        return -1;
    if (!S_ISDIR(w.st.st_mode))
        rc = err_set(err, "%.200s is no folder", w.name);
    else if (is_shared(&w.st) && !may_be_shared)
        rc = err_set(err,
                     "folder %.200s is shared by all users (mode %04o), who could put files "
                     "there: use a folder of its own, such as %.200s/whet",
                     w.name, (unsigned)(w.st.st_mode & 07777), w.name);
    if (rc == 0)
        return w.fd;
    close(w.fd);
    return -1;
}

static int close_folder(int fd)
{
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : -1;
}

int safe_folder(const char *path, struct err *err)
{
    return close_folder(open_folder(path, false, false, err));
}

int safe_folder_make(const char *path, struct err *err)
{
    return close_folder(open_folder(path, true, false, err));
}

const char *safe_temporary(void)
{
    const char *set = getenv("TMPDIR");
    bool usable = set && set[0] == '/' && close_folder(open_folder(set, false, true, NULL)) == 0;
    return usable ? set : "/tmp";
}

char *safe_folder_temporary(const char *prefix, struct err *err)
{
    const char *set = getenv("TMPDIR"), *base = set && *set ? set : "/tmp";
    if (close_folder(open_folder(base, false, true, err)) != 0)
        return NULL;
    char *path = xasprintf("%s/%sXXXXXX", base, prefix);
    if (mkdtemp(path))
        return path;
    err_set(err, "no temporary folder %.200s: %s", path, strerror(errno));
    free(path);
    return NULL;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

void safe_folder_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* ---- files ---------------------------------------------------------------------------------- */

int safe_open(const char *path, struct err *err)
{
    struct walk w = {.name = ""};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *folder = slash ? xasprintf("%.*s", (int)(slash - path) + 1, path) : xstrdup(".");
    int in = open_folder(folder, false, false, err);
    free(folder);
    if (in < 0)
        return -1;
    int fd = openat(in, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int why = errno;
    close(in);
    if (fd < 0)
        return err_set(err, "%.300s: %s", path,
                       why == ELOOP ? "it is a symbolic link" : strerror(why));
    w.err = err;
    snprintf(w.name, sizeof w.name, "%s", path);
    int rc = fstat(fd, &w.st) != 0 || !S_ISREG(w.st.st_mode)
                 ? err_set(err, "%.300s is no regular file", path)
                 : check(&w);
    if (rc == 0)
        return fd;
    close(fd);
    return -1;
}

int safe_file(const char *path, struct err *err)
{
    return close_folder(safe_open(path, err));
}

FILE *safe_create(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

/* Walks to a program or a folder of programs; what is there, or -1. */
static int find_program(const char *path, struct stat *out, struct err *err)
{
    struct walk w = {.rule = RULE_PROGRAM, .err = err};
    if (path[0] != '/')
        return err_set(err,
                       "%.200s is a relative path, which depends on where the server was "
                       "started: give the whole one",
                       path);
    if (walk(&w, path) != 0)
        return -1;
    *out = w.st;
    close(w.fd);
    return 0;
}

int safe_program(const char *path, struct err *err)
{
    struct stat st;
    if (find_program(path, &st, err) != 0)
        return -1;
    return S_ISREG(st.st_mode) ? 0 : err_set(err, "%.200s is no file", path);
}

int safe_programs(const char *folder, struct err *err)
{
    struct stat st;
    if (find_program(folder, &st, err) != 0)
        return -1;
    if (!S_ISDIR(st.st_mode))
        return err_set(err, "%.200s is no folder", folder);
    if (is_shared(&st))
        return err_set(err, "in folder %.200s all users can put programs", folder);
    return 0;
}
