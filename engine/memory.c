/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. The estimates count page cache that can be given up, which is why they
 * are read from files and not taken from sysinfo(2).
 */
#include "engine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "config/cgroup.h"
#include "config/err.h"
#include "engine/numa.h"

enum { PAGE = 4096, HUGE = 2 << 20 };

/* The bytes of a line "NAME: 123 kB" of such a file; 0 if there is none. */
static int64_t kib_of(const char *root, const char *file, const char *name)
{
    char line[1024];
    long long kib = 0;
    size_t n = strlen(name);
    snprintf(line, sizeof line, "%s%s", root, file);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

struct answer {
    int64_t bytes; /* 0: nothing says */
    char *why;
    size_t size;
};

/* Takes it if it is less than what was known; nothing left is not the same as nothing known. */
static void take(struct answer *a, const char *who, int64_t limit, int64_t room)
{
    if (a->bytes > 0 && room >= a->bytes)
        return;
    a->bytes = room > 0 ? room : 1;
    snprintf(a->why, a->size, "%s is %.0f MiB", who, (double)limit / 1048576);
}

/* Limits of the process (ulimit -v and -d, those of a batch system): memory that it has asked for
 * counts there, used or not. */
static void take_limits(struct answer *a, const char *root)
{
    static const struct {
        int resource;
        const char *name, *used;
    } limits[] = {{RLIMIT_AS, "RLIMIT_AS", "VmSize"}, {RLIMIT_DATA, "RLIMIT_DATA", "VmData"}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit r;
        if (getrlimit(limits[i].resource, &r) == 0 && r.rlim_cur < INT64_MAX)
            take(a, limits[i].name, (int64_t)r.rlim_cur,
                 (int64_t)r.rlim_cur - kib_of(root, "/proc/self/status", limits[i].used));
    }
}

int64_t memory_available_in(const char *root, char *why, size_t size)
{
    struct cgroup_limit group;
    struct answer a = {kib_of(root, "/proc/meminfo", "MemAvailable"), why, size};
    snprintf(why, size, "%s", a.bytes > 0 ? "MemAvailable of the machine" : "nothing says");
    if (cgroup_memory(root, &group))
        take(&a, group.file, group.limit, group.room);
    take_limits(&a, root);
    return a.bytes;
}

int64_t memory_available(void)
{
    char why[CGROUP_FILE + 64];
    return memory_available_in("", why, sizeof why);
}

int64_t memory_usual_mib(int64_t available, int32_t processes)
{
    enum { MOST_MIB = 2048 };
    int64_t mib = available / 4 / processes / 1048576;
    if (available <= 0 || mib > MOST_MIB)
        return MOST_MIB;
    return mib > 0 ? mib : 1;
}

int64_t memory_pages(int64_t asked, int64_t page_bytes, int64_t available)
{
    if (available <= 0 || asked <= available / page_bytes)
        return asked;
    return available / 4 * 3 / page_bytes;
}

/* Advice and policy come before the first touch; both are wishes. */
static void *huge_room(size_t bytes, size_t *size)
{
    *size = (bytes + HUGE - 1) / HUGE * HUGE;
    *size = *size ? *size : HUGE;
    void *p = xaligned_to(HUGE, *size);
    madvise(p, *size, MADV_HUGEPAGE);
    numa_spread(p, *size);
    return p;
}

void *memory_shared(size_t bytes)
{
    size_t size;
    return bytes < HUGE ? memory_fine(bytes) : huge_room(bytes, &size);
}

void *memory_fine(size_t bytes)
{
    size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    if (bytes < PAGE)
        return xaligned(bytes);
    void *p = xaligned_to(PAGE, size);
    numa_spread(p, size);
    return p;
}

void *memory_huge(size_t bytes)
{
    size_t size;
    void *p = huge_room(bytes, &size);
    return memset(p, 0, size);
}
