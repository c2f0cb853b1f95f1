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

static int make_folder(const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? xasprintf("%.*s", (int)(slash - path) + 1, path) : xstrdup(".");
    int rc = safe_folder_make(folder, err);
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

int store_file_make(const char *path, struct err *err)
{
    static const char *const suffix[] = {"", "-wal", "-shm", "-journal", ".lock"};
    int rc = make_folder(path, err);
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix && rc == 0; i++)
        rc = check_file(path, suffix[i], err);
    if (rc != 0)
        return err_prefix(err, "store %.160s", path);
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

int store_file_move_aside(const char *path, const char *why, struct err *err)
{
    char *to = xasprintf("%s.damaged-%lld", path, (long long)clock_wall_s());
    int r = rename(path, to);
    if (r != 0)
        err_set(err, "store %s is damaged (%s) and cannot be moved aside: %s", path, why,
                strerror(errno));
    else
        log_warn("store", "%s is damaged (%s): moved to %s, starting a new one", path, why, to);
    static const char *const extra[] = {"-wal", "-shm"};
    for (int i = 0; i < 2 && r == 0; i++) {
        char *name = xasprintf("%s%s", path, extra[i]);
        unlink(name);
        free(name);
    }
    free(to);
    return r;
}
