/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. The estimate counts page cache that can be given up, which is why it is
 * read here and not taken from sysinfo(2).
 */
#include "engine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/err.h"

int64_t memory_available(void)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

int64_t memory_usual_mib(int64_t available, int32_t processes)
{
    enum { MOST_MIB = 2048 };
    int64_t mib = available / 4 / processes / 1048576;
    if (available <= 0 || mib > MOST_MIB)
        return MOST_MIB;
    return mib > 0 ? mib : 1;
}

void *memory_huge(size_t bytes)
{
    enum { HUGE = 2 << 20 };
    size_t size = (bytes + HUGE - 1) / HUGE * HUGE;
    void *p = xaligned_to(HUGE, size ? size : HUGE);
    madvise(p, size, MADV_HUGEPAGE); /* before the first touch; a wish */
    return memset(p, 0, size);
}
