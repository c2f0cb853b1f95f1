/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_shm.c - the name under which ranks of a host find their memory, from make() to made().
 *
 * The memory has a name only until all ranks have opened it, but rank 0 may be killed before that,
 * and a name in /dev/shm holds its memory until the machine is started anew. So whoever makes such
 * memory holds a lock (flock) on it as long as it has a name, which ends with the process however
 * that ends, and the next one to make some removes what nobody holds.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/cpu/collective_shm.h"

#define FOLDER "/dev/shm" /* where Linux keeps what shm_open() names */
#define PREFIX "whet-"

enum { DRAWN = 32, TRIES = 8 }; /* hexadecimal digits of a name */

/* Of the memory that this process made last and that has a name still, or -1. */
static int held = -1;

static bool is_drawn(const char *name)
{
    size_t prefix = strlen(PREFIX);
    return strncmp(name, PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == DRAWN && !name[prefix + DRAWN];
}

/* A file of another user cannot be opened, and one that is held cannot be locked. */
static void remove_if_left(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, name, 0) == 0)
        log_info("ranks", "removed %s/%s, which a process that is gone has left", FOLDER, name);
    close(fd);
}

static void remove_leftovers(void)
{
    DIR *d = opendir(FOLDER);
    if (!d)
        return;
    for (struct dirent *at; (at = readdir(d));)
        if (is_drawn(at->d_name))
            remove_if_left(dirfd(d), at->d_name);
    closedir(d);
}

/* Holds the memory of this name; false where another process took it for a leftover, since it was
 * there before it was held. */
static bool hold(const char *name)
{
    struct stat st;
    held = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (held < 0)
        return false;
    bool refused = flock(held, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!refused && fstat(held, &st) == 0 && st.st_nlink > 0)
        return true;
    close(held);
    held = -1;
    return false;
}

static void made(const char id[RANKS_ID])
{
    shm_unlink(id);
    if (held >= 0)
        close(held);
    held = -1;
}

/* Nobody can guess the name, and nobody of another user may open it. */
static int make(char id[RANKS_ID], int32_t world, bool one_host, bool shared, struct err *e)
{
    (void)one_host;
    (void)shared; /* ranks of a machine share its cores as they like */
    uint64_t drawn[2];
    remove_leftovers();
    for (int i = 0; i < TRIES; i++) {
        if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
            return err_set(e, "no random numbers: %s", strerror(errno));
        snprintf(id, RANKS_ID, "/" PREFIX "%016llx%016llx", (unsigned long long)drawn[0],
                 (unsigned long long)drawn[1]);
        if (collective_shm_create(id, world, e))
            return -1;
        if (hold(id))
            return 0;
        shm_unlink(id);
    }
    return err_set(e, "shared memory of the ranks: whatever is made in %s is gone at once", FOLDER);
}

static struct collective *open_by_id(const char id[RANKS_ID], int32_t rank, int32_t world,
                                     double timeout_s, struct err *e)
{
    return collective_shm_open(id, rank, world, timeout_s, e);
}

const struct ranks_ops collective_shm_ranks = {
    .reduces = true, .searched = true, .make = make, .open = open_by_id, .made = made};
