/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - see cores.h. */
#include "config/cores.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/cgroup.h"

/* ---- sets ----------------------------------------------------------------------------------- */

bool cores_affinity(struct cores_set *out)
{
    memset(out, 0, sizeof *out);
    return syscall(SYS_sched_getaffinity, 0, sizeof out->word, out->word) > 0;
}

bool cores_keep_to(const struct cores_set *set)
{
    return syscall(SYS_sched_setaffinity, 0, sizeof set->word, set->word) == 0;
}

bool cores_has(const struct cores_set *set, int32_t cpu)
{
    return cpu >= 0 && cpu < CORES_SET_MOST && (set->word[cpu / 64] >> (cpu % 64) & 1);
}

void cores_add(struct cores_set *set, int32_t cpu)
{
    if (cpu >= 0 && cpu < CORES_SET_MOST)
        set->word[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

int32_t cores_count(const struct cores_set *set)
{
    int32_t n = 0;
    for (int32_t i = 0; i < CORES_SET_MOST / 64; i++)
        n += __builtin_popcountll(set->word[i]);
    return n;
}

int32_t cores_nth(const struct cores_set *set, int32_t n)
{
    for (int32_t cpu = 0; cpu < CORES_SET_MOST && n >= 0; cpu++)
        if (cores_has(set, cpu) && n-- == 0)
            return cpu;
    return -1;
}

/* A number of the list, of up to nine digits; -1 if there is none. */
static int32_t number(const char **at)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return -1;
    long n = strtol(*at, &end, 10);
    bool small = end - *at <= 9;
    *at = end;
    return small ? (int32_t)n : -1;
}

bool cores_parse(const char *list, struct cores_set *out)
{
    const char *at = list;
    memset(out, 0, sizeof *out);
    while (*at && *at != '\n') {
        int32_t from = number(&at), to = from;
        if (from >= 0 && *at == '-') {
            at++;
            to = number(&at);
        }
        if (from < 0 || to < from || (*at && !strchr(",\n", *at))) {
            memset(out, 0, sizeof *out);
            return false;
        }
        for (int32_t cpu = from; cpu <= to && cpu < CORES_SET_MOST; cpu++)
            cores_add(out, cpu);
        at += *at == ',';
    }
    return true;
}

/* ---- how many ------------------------------------------------------------------------------- */

int32_t cores_allowed(void)
{
    struct cores_set set;
    long n = cores_affinity(&set) ? cores_count(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

static int32_t usable;

static void find(void)
{
    struct cgroup_limit quota;
    usable = cores_allowed();
    int64_t n = cgroup_cpu("", &quota) ? (quota.limit + 999) / 1000 : usable;
    usable = n >= usable ? usable : n > 0 ? (int32_t)n : 1;
}

int32_t cores_usable(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return usable;
}

int32_t cores_threads(int64_t asked, int32_t cores)
{
    if (asked > 0)
        return (int32_t)asked;
    return cores < CORES_THREADS_MOST ? cores : CORES_THREADS_MOST;
}

int32_t cores_or(int64_t threads)
{
    return cores_threads(threads, cores_usable());
}
