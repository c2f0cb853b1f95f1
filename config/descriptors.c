/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.c - see descriptors.h. */
#include "config/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Runs in a child that shares our memory. */
#define CHILD_CODE __attribute__((no_sanitize("address", "thread", "undefined")))

CHILD_CODE int descriptor_nowhere(int flags)
{
    int fd = open("/dev/null", flags);
    return fd >= 0 ? fd : open("/", O_PATH | (flags & O_CLOEXEC));
}

/* Without close_range one by one: a list of those that are open would need /proc and memory. */
CHILD_CODE void descriptors_close_from(int first)
{
    enum { MOST = 1 << 20 }; /* what the limit usually is at most; a tenth of a second */
    struct rlimit r;
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0)
        return;
    int end = getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < MOST ? (int)r.rlim_cur : MOST;
    for (int fd = first; fd < end; fd++)
        close(fd);
}

bool descriptors_free(int n)
{
    int fd = n > 0 ? open("/", O_PATH | O_CLOEXEC) : -1;
    bool left = n <= 0 || (fd >= 0 && descriptors_free(n - 1));
    if (fd >= 0)
        close(fd);
    return left;
}
