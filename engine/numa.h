/* SPDX-License-Identifier: Apache-2.0 */
/* numa.h - memory that all compute threads read, on machines with several memory nodes.
 *
 * Linux takes memory from the node of the thread that touches it first. Weights are touched by the
 * one thread that loads them, so all of them would lie on one node: its memory alone would feed the
 * threads of all sockets, by way of the links between them. They are spread over the nodes that the
 * threads run on instead, page by page in turn (MPOL_INTERLEAVE), which adds the bandwidths of
 * these nodes up. So are keys and values and repacked weights. What one thread uses alone stays
 * where that thread is.
 *
 * Rows on the node of the thread that computes them would cross no link at all. But which thread
 * that is changes from step to step: ranks come for rows (kernels/cpu/lib/taken.h), every slot has
 * its own split of them, and kernels are swapped. Who wants that runs one process a socket.
 *
 * A process-wide plan, made once before the model is opened; every other function does nothing
 * until then. Any thread.
 */
#ifndef WHET_ENGINE_NUMA_H
#define WHET_ENGINE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/cores.h"

enum { NUMA_NODES_MOST = 1024, NUMA_TEXT = 256 }; /* no kernel has more nodes */

struct numa_plan {
    bool spread;        /* over these nodes */
    int32_t nodes, all; /* how many they are, and the system has */
    uint64_t node[NUMA_NODES_MOST / 64];
};

/* The nodes that have memory which the process may take, and CPUs of `cpus`. A node of memory alone
 * (CXL) is not among them: it is slow; nor is one of CPUs alone. Spread if there are two or more.
 * /sys and /proc are read below `root` ("" for this process). */
void numa_plan_in(const char *root, const struct cores_set *cpus, struct numa_plan *out);

/* Makes the plan of this process from the calling thread's affinity, which must not be pinned yet;
 * with `wanted` false one that leaves everything to the system, as where somebody else has given
 * the process a policy (numactl), or the system allows none (seccomp). */
void numa_open(bool wanted);
/* The same with /sys and /proc below `root`. */
void numa_open_in(const char *root, bool wanted);
/* What numa_open() decided, a sentence for the log; "" on a machine of one node. */
void numa_words(char dst[NUMA_TEXT]);
/* The same with a plan from elsewhere. */
void numa_use(const struct numa_plan *plan);
/* Whether memory is spread. */
bool numa_spreads(void);

/* Whole pages within [at, at + bytes) will be taken from the plan's nodes in turn. Before they are
 * touched; those that were stay where they are. */
void numa_spread(void *at, size_t bytes);
/* Until it is called with false: what this thread touches first is spread, and so is what it reads
 * from files into the page cache. */
void numa_spread_thread(bool on);

/* "0-1,4": the plan's nodes, for people. */
void numa_names(const struct numa_plan *plan, char *dst, size_t n);

#endif
