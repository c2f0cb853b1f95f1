/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. The estimates count page cache that can be given up, which is why they
 * are read from files and not taken from sysinfo(2).
 */
#include "engine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/cgroup.h"
#include "config/err.h"

static int64_t machine_available(const char *root)
{
    char line[1024];
    long long kib = 0;
    snprintf(line, sizeof line, "%s/proc/meminfo", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

int64_t memory_available_in(const char *root, char *why, size_t size)
{
    struct cgroup_limit group;
    int64_t bytes = machine_available(root);
    if (cgroup_memory(root, &group) && (bytes == 0 || group.room < bytes)) {
        snprintf(why, size, "%s is %.0f MiB", group.file, (double)group.limit / 1048576);
        return group.room > 0 ? group.room : 1; /* 0 would say that nothing is known */
    }
    snprintf(why, size, "%s", bytes > 0 ? "MemAvailable of the machine" : "nothing says");
    return bytes;
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

void *memory_huge(size_t bytes)
{
    enum { HUGE = 2 << 20 };
    size_t size = (bytes + HUGE - 1) / HUGE * HUGE;
    void *p = xaligned_to(HUGE, size ? size : HUGE);
    madvise(p, size, MADV_HUGEPAGE); /* before the first touch; a wish */
    return memset(p, 0, size);
}
