/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h - what the control groups of this process leave it of the machine.
 *
 * A container, a unit of systemd and a pod of Kubernetes are held to less than the machine has by
 * their cgroup and those above it. Versions 1 and 2 are read, and both where a system mounts both.
 * Groups above the mount (of a container that sees only its own) cannot be seen and do not count.
 *
 * `root` goes before every path that is read: "" for this process, a folder in tests. All: any
 * thread; they read files, so not for a hot path.
 */
#ifndef WHET_CONFIG_CGROUP_H
#define WHET_CONFIG_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_FILE = 1024 };

struct cgroup_limit {
    int64_t limit;          /* as the file says it: bytes, thousandths of a CPU, or tasks */
    int64_t room;           /* what of it is not used; of CPUs all of it */
    char file[CGROUP_FILE]; /* that says so, without root */
};

/* Of the process's group and those above it the one that leaves least; false without any limit. */

/* Bytes of memory: those that the group has charged count as used, but for the page cache that the
 * kernel takes back first. */
bool cgroup_memory(const char *root, struct cgroup_limit *out);
/* CPU time, in thousandths of a CPU. */
bool cgroup_cpu(const char *root, struct cgroup_limit *out);
/* Tasks (processes and threads). */
bool cgroup_tasks(const char *root, struct cgroup_limit *out);

#endif
