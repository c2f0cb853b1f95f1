/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h - how many CPUs this process may use, which is what pools, compilers and probes are sized
 * by: those of the machine are not all its own in a container or under taskset. Any thread.
 */
#ifndef WHET_CONFIG_CORES_H
#define WHET_CONFIG_CORES_H

#include <stdint.h>

/* All at least 1. */
int32_t cores_allowed(void); /* in the calling thread's affinity mask */
/* Those when it was first asked, or fewer if the CPU time of this process's cgroups is limited: a
 * quota of 2.5 CPUs is 3. Later pins (pool.h) do not change it. */
int32_t cores_usable(void);
/* What an option says, cores_usable() if it says 0. */
int32_t cores_or(int64_t threads);

#endif
