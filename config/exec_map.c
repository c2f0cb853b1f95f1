/* SPDX-License-Identifier: Apache-2.0 */
/* exec_map.c - see exec_map.h.
 *
 * Asked by doing it: one mapping of the whole file. What mounts and modules say in /proc and /sys
 * would have to be interpreted, and need not be there.
 */
#include "config/exec_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* errno of the mapping, or 0. */
static int map(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size <= 0)
        return 0;
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return errno;
    munmap(at, (size_t)st.st_size);
    return 0;
}

static int say(const char *what, int why, struct err *err)
{
    const char *hint = why == EPERM || why == EACCES
                           ? " (a noexec mount, or a security module that forbids it)"
                           : "";
    return err_outside(err, "code in %.200s cannot be run: %s%s", what, strerror(why), hint);
}

int exec_map_file(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int why = fd >= 0 ? map(fd) : 0;
    if (fd >= 0)
        close(fd);
    return why ? say(path, why, err) : 0;
}

int exec_map_folder(const char *folder, struct err *err)
{
    char *path = xasprintf("%s/.exec-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC), why = 0;
    if (fd >= 0) {
        why = write(fd, "", 1) == 1 ? map(fd) : 0;
        unlink(path);
        close(fd);
    }
    free(path);
    return why ? say(folder, why, err) : 0;
}
