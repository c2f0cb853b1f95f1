/* SPDX-License-Identifier: Apache-2.0 */
/* store_file.c - see store_file.h.
 *
 * SQLite opens its files by name, follows links and takes whatever is there. So the folder must be
 * ours alone (safe_path.h): then nothing can appear in it between our look and SQLite's, and the
 * kernels beside the store are as safe as the folder is. A store directly in /tmp is refused for
 * that reason, since anybody could lay a journal beside it that SQLite would play back.
 *
 * Who has a store holds a lock on FILE.lock (flock, so the kernel gives it back with the process)
 * and has written its number into it. Readers and single changes need none: SQLite sees to those.
 */
#include "specializer/store/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/store/store.h"

char *store_default_path(const char *configured)
{
    if (configured && configured[0])
        return xstrdup(configured);
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        return xasprintf("%s/whet/store.db", cache);
    if (home && home[0] == '/')
        return xasprintf("%s/.cache/whet/store.db", home);
    return xasprintf("/tmp/whet-%ld/store.db", (long)getuid());
}

/* ---- ours ----------------------------------------------------------------------------------- */

/* The folder of the file: it is there, or made, for us alone. */
static int see_folder(const char *path, bool make, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? xasprintf("%.*s", (int)(slash - path) + 1, path) : xstrdup(".");
    int rc = make ? safe_folder_make(folder, err) : safe_folder(folder, err);
    free(folder);
    return rc;
}

/* One file of the store, if it is there. */
static int check_file(const char *path, const char *suffix, struct err *err)
{
    struct stat st;
    char *name = xasprintf("%s%s", path, suffix);
    int rc = lstat(name, &st) == 0 ? safe_file(name, err) : 0;
    free(name);
    return rc;
}

static int see_all(const char *path, bool make, struct err *err)
{
    static const char *const suffix[] = {"", "-wal", "-shm", "-journal", ".lock"};
    int rc = see_folder(path, make, err);
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix && rc == 0; i++)
        rc = check_file(path, suffix[i], err);
    return rc != 0 ? err_prefix(err, "store %.160s", path) : 0;
}

int store_file_find(const char *path, struct err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? err_set(err, "there is no store %s", path)
                   : err_set(err, "store %s: %s", path, strerror(errno));
    return see_all(path, false, err);
}

int store_file_make(const char *path, struct err *err)
{
    if (see_all(path, true, err) != 0)
        return -1;
    /* What is in it is nobody else's business; SQLite gives its other files the mode of this. */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == EEXIST ? 0 : err_set(err, "store %s: %s", path, strerror(errno));
}

/* ---- who has it ----------------------------------------------------------------------------- */

static int say_holder(const char *path, int fd, struct err *err)
{
    char text[64] = "", since[32] = "";
    long long pid = 0, start = 0;
    struct tm tm;
    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%lld %lld", &pid, &start) != 2 ||
        pid < 1)
        return err_set(err, "store %s is in use by another process", path);
    time_t at = (time_t)start;
    if (gmtime_r(&at, &tm))
        strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return err_set(err, "store %s is in use by process %lld since %s", path, pid, since);
}

/* False if the file has another name now, or none: somebody moved the store away. */
static bool is_still(int fd, const char *name)
{
    struct stat held, there;
    return fstat(fd, &held) == 0 && lstat(name, &there) == 0 && held.st_ino == there.st_ino &&
           held.st_dev == there.st_dev;
}

/* The lock of the file `name`: its descriptor; -1 with errno, EWOULDBLOCK and the descriptor in
 * *other if another process has it. */
static int try_lock(const char *name, int flags, int *other)
{
    *other = -1;
    for (;;) {
        int fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int why = errno;
            if (why == EWOULDBLOCK)
                *other = fd;
            else
                close(fd);
            errno = why;
            return -1;
        }
        if (is_still(fd, name))
            return fd;
        close(fd);
    }
}

int store_file_lock(const char *path, bool *taken, struct err *err)
{
    char *name = xasprintf("%s.lock", path), text[64];
    int other, fd = try_lock(name, O_CREAT, &other);
    *taken = other >= 0;
    if (*taken) {
        say_holder(path, other, err);
        close(other);
    } else if (fd < 0) {
        err_set(err, "store %s cannot be locked: %s", path, strerror(errno));
    } else {
        int n =
            snprintf(text, sizeof text, "%ld %lld\n", (long)getpid(), (long long)clock_wall_s());
        if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
            log_debug("store", "%s: %s", name, strerror(errno)); /* the disk is full: who, unsaid */
    }
    free(name);
    return fd;
}

bool store_file_left(const char *path)
{
    char *name = xasprintf("%s.lock", path);
    int other, fd = try_lock(name, 0, &other);
    if (fd >= 0)
        close(fd);
    if (other >= 0)
        close(other);
    free(name);
    return fd >= 0;
}

/* ---- damage --------------------------------------------------------------------------------- */

enum store_file_kind store_file_kind(const char *path)
{
    enum { ID_AT = 68, RESERVED_AT = 72, RESERVED_END = 92, HEADER = 100 };
    static const unsigned char zeros[RESERVED_END - RESERVED_AT] = {0};
    static const char magic[] = "SQLite format 3";
    unsigned char head[HEADER];
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? STORE_FILE_NONE : STORE_FILE_OTHER;
    int fd = safe_open(path, NULL);
    ssize_t n = fd >= 0 ? pread(fd, head, sizeof head, 0) : -1;
    if (fd >= 0)
        close(fd);
    if (n != HEADER)
        return n == 0 ? STORE_FILE_NONE : STORE_FILE_OTHER;
    uint32_t id = (uint32_t)head[ID_AT] << 24 | (uint32_t)head[ID_AT + 1] << 16 |
                  (uint32_t)head[ID_AT + 2] << 8 | head[ID_AT + 3];
    if (id == STORE_APPLICATION_ID && memcmp(head + RESERVED_AT, zeros, sizeof zeros) == 0)
        return STORE_FILE_OURS;
    if (memcmp(head, magic, sizeof magic) != 0)
        return STORE_FILE_OTHER;
    return id ? STORE_FILE_FOREIGN : STORE_FILE_UNSAID;
}

/* FILE.damaged-TIME, of which nothing is there yet. */
static char *name_aside(const char *path)
{
    struct stat st;
    for (long long at = (long long)clock_wall_s();; at++) {
        char *to = xasprintf("%s.damaged-%lld", path, at);
        if (lstat(to, &st) != 0)
            return to;
        free(to);
    }
}

int store_file_move_aside(const char *path, const char *why, struct err *err)
{
    /* The file last: one that is left beside a new store would be played back into it. */
    static const char *const suffix[] = {"-journal", "-wal", "-shm", ""};
    char *to = name_aside(path);
    int r = 0;
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix && r == 0; i++) {
        char *from = xasprintf("%s%s", path, suffix[i]), *aside = xasprintf("%s%s", to, suffix[i]);
        if (rename(from, aside) != 0 && (errno != ENOENT || !suffix[i][0]))
            r = err_set(err, "store %s is damaged (%s) and %s cannot be moved aside: %s", path, why,
                        from, strerror(errno));
        free(from);
        free(aside);
    }
    if (r == 0)
        log_warn("store", "%s is damaged (%s): moved to %s, starting a new one", path, why, to);
    free(to);
    return r;
}
