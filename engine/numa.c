/* SPDX-License-Identifier: Apache-2.0 */
/* numa.c - see numa.h. By system calls: libnuma would be a dependency for three of them. */
#include "engine/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of the bits of a mask the kernel reads one less than it is told. */
enum { MASK_BITS = NUMA_NODES_MOST + 1, LIST = 8192 };

static struct numa_plan plan_now;
static char words_now[NUMA_TEXT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the plan ------------------------------------------------------------------------------- */

/* The list in a file, behind `name` at the beginning of a line (NULL: on its first line). */
static bool read_list(const char *root, const char *path, const char *name, struct cores_set *out)
{
    char line[LIST];
    bool found = false;
    size_t skip = name ? strlen(name) : 0;
    snprintf(line, sizeof line, "%s%s", root, path);
    FILE *f = fopen(line, "re");
    while (f && !found && fgets(line, sizeof line, f))
        if (!name || strncmp(line, name, skip) == 0)
            found = cores_parse(line + skip + strspn(line + skip, " \t"), out);
    if (f)
        fclose(f);
    return found;
}

/* Whether the node has a CPU of `cpus`. */
static bool has_cpus(const char *root, int32_t node, const struct cores_set *cpus)
{
    char path[96];
    struct cores_set own;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    if (!read_list(root, path, NULL, &own))
        return false;
    for (size_t i = 0; i < sizeof own.word / sizeof *own.word; i++)
        if (own.word[i] & cpus->word[i])
            return true;
    return false;
}

void numa_plan_in(const char *root, const struct cores_set *cpus, struct numa_plan *out)
{
    struct cores_set online, memory, allowed;
    bool bound = read_list(root, "/proc/self/status", "Mems_allowed_list:", &allowed);
    memset(out, 0, sizeof *out);
    if (!read_list(root, "/sys/devices/system/node/online", NULL, &online))
        return;
    if (!read_list(root, "/sys/devices/system/node/has_memory", NULL, &memory))
        memory = online;
    out->all = cores_count(&online);
    for (int32_t n = 0; n < NUMA_NODES_MOST; n++)
        if (cores_has(&online, n) && cores_has(&memory, n) && (!bound || cores_has(&allowed, n)) &&
            has_cpus(root, n, cpus)) {
            out->node[n / 64] |= (uint64_t)1 << (n % 64);
            out->nodes++;
        }
    out->spread = out->nodes > 1;
}

static bool has_node(const struct numa_plan *plan, int32_t n)
{
    return n < NUMA_NODES_MOST && (plan->node[n / 64] >> (n % 64) & 1);
}

void numa_names(const struct numa_plan *plan, char *dst, size_t n)
{
    size_t at = 0;
    dst[0] = 0;
    for (int32_t from = 0, to; from < NUMA_NODES_MOST; from = to + 1) {
        for (to = from; has_node(plan, to) && has_node(plan, to + 1); to++)
            ;
        if (!has_node(plan, from) || at + 16 > n)
            continue;
        at += (size_t)snprintf(dst + at, n - at, to > from ? "%s%d-%d" : "%s%d", at ? "," : "",
                               from, to);
    }
}

/* ---- the process ---------------------------------------------------------------------------- */

static int bind_pages(void *at, size_t bytes, const struct numa_plan *plan)
{
    return (int)syscall(SYS_mbind, at, bytes, MPOL_INTERLEAVE, plan->node, MASK_BITS, 0);
}

/* Whether the process may say where a page is; errno tells why not. */
static bool may_bind(const struct numa_plan *plan)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return false;
    int failed = bind_pages(at, page, plan), why = errno;
    munmap(at, page);
    errno = why;
    return failed == 0;
}

/* A policy that the process was started with, by numactl for instance. */
static bool has_policy(void)
{
    int mode = MPOL_DEFAULT;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0 && mode != MPOL_DEFAULT;
}

/* Whether memory is spread, and a sentence about that. */
static bool decide(const struct numa_plan *plan, bool wanted, char say[NUMA_TEXT])
{
    char names[NUMA_TEXT / 2];
    const char *first = "memory stays on the node of whoever touches it first";
    numa_names(plan, names, sizeof names);
    say[0] = 0;
    if (!plan->spread && plan->all > 1 && plan->nodes == 1)
        snprintf(say, NUMA_TEXT, "threads are on node %s of %d, and so is memory", names,
                 plan->all);
    if (!plan->spread)
        return false;
    if (!wanted)
        snprintf(say, NUMA_TEXT, "threads are on nodes %s; %s (engine.numa)", names, first);
    else if (has_policy())
        snprintf(say, NUMA_TEXT, "the policy that the process was started with is kept");
    else if (!may_bind(plan))
        snprintf(say, NUMA_TEXT, "threads are on nodes %s, but %s: mbind: %s", names, first,
                 strerror(errno));
    else {
        snprintf(say, NUMA_TEXT,
                 "threads are on nodes %s of %d: weights, keys and values are spread over these",
                 names, plan->all);
        return true;
    }
    return false;
}

void numa_open_in(const char *root, bool wanted)
{
    struct cores_set cpus;
    struct numa_plan plan = {.spread = false};
    char say[NUMA_TEXT];
    if (cores_affinity(&cpus))
        numa_plan_in(root, &cpus, &plan);
    plan.spread = decide(&plan, wanted, say);
    pthread_mutex_lock(&lock);
    plan_now = plan;
    memcpy(words_now, say, sizeof words_now);
    pthread_mutex_unlock(&lock);
}

void numa_open(bool wanted)
{
    numa_open_in("", wanted);
}

void numa_words(char dst[NUMA_TEXT])
{
    pthread_mutex_lock(&lock);
    memcpy(dst, words_now, sizeof words_now);
    pthread_mutex_unlock(&lock);
}

void numa_use(const struct numa_plan *plan)
{
    pthread_mutex_lock(&lock);
    plan_now = *plan;
    pthread_mutex_unlock(&lock);
}

static struct numa_plan plan_of_process(void)
{
    pthread_mutex_lock(&lock);
    struct numa_plan plan = plan_now;
    pthread_mutex_unlock(&lock);
    return plan;
}

bool numa_spreads(void)
{
    return plan_of_process().spread;
}

void numa_spread(void *at, size_t bytes)
{
    struct numa_plan plan = plan_of_process();
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)at + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)at + bytes) / page * page;
    if (plan.spread && to > from)
        bind_pages((char *)at + (from - (uintptr_t)at), to - from, &plan);
}

void numa_spread_thread(bool on)
{
    struct numa_plan plan = plan_of_process();
    if (plan.spread && on)
        syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, plan.node, MASK_BITS);
    else if (plan.spread)
        syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}
