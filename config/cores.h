/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h - how many CPUs this process may use, which is what pools, compilers and probes are sized
 * by: those of the machine are not all its own in a container or under taskset. Any thread.
 */
#ifndef WHET_CONFIG_CORES_H
#define WHET_CONFIG_CORES_H

#include <stdbool.h>
#include <stdint.h>

/* A set of CPUs by their numbers. cpu_set_t ends at 1024, and a kernel that may have more refuses
 * to fill it; no kernel has more than these. */
enum { CORES_SET_MOST = 8192 };
struct cores_set {
    uint64_t word[CORES_SET_MOST / 64];
};

/* The calling thread's affinity mask; false, and an empty set, if the system does not say. */
bool cores_affinity(struct cores_set *out);
/* Has the calling thread keep to these; false if the system does not let it. */
bool cores_keep_to(const struct cores_set *set);
bool cores_has(const struct cores_set *set, int32_t cpu);
void cores_add(struct cores_set *set, int32_t cpu);
int32_t cores_count(const struct cores_set *set);
/* The member that has `n` smaller ones; -1 if there is none. */
int32_t cores_nth(const struct cores_set *set, int32_t n);
/* What a list of the kernel says, as "0-3,8,10-11"; false, and an empty set, if it is none. The
 * empty list is one. Numbers from CORES_SET_MOST on are left out. */
bool cores_parse(const char *list, struct cores_set *out);

/* Compute threads at most: with so many a kernel's checks are made. */
enum { CORES_THREADS_MOST = 256 };

/* All at least 1. */
int32_t cores_allowed(void); /* in the calling thread's affinity mask */
/* Those when it was first asked, or fewer if the CPU time of this process's cgroups is limited: a
 * quota of 2.5 CPUs is 3. Later pins (pool.h) do not change it. */
int32_t cores_usable(void);
/* As many threads as an option says; if it says 0 one for each of `cores`, but not more than
 * CORES_THREADS_MOST. */
int32_t cores_threads(int64_t asked, int32_t cores);
/* The same of cores_usable(). */
int32_t cores_or(int64_t threads);

#endif
