/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - see cores.h. */
#include "config/cores.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "config/cgroup.h"

int32_t cores_allowed(void)
{
    cpu_set_t set; /* of 1024 CPUs; a kernel that has more refuses it */
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
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

int32_t cores_or(int64_t threads)
{
    return threads > 0 ? (int32_t)threads : cores_usable();
}
