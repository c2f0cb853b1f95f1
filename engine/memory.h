/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - how much memory this process may still take. */
#ifndef WHET_ENGINE_MEMORY_H
#define WHET_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that can be used without swapping, as the kernel estimates it, and without coming to the
 * limit of a cgroup of this process or to its own (RLIMIT_AS, RLIMIT_DATA); 0 if nothing says.
 * Reads files; any thread. */
int64_t memory_available(void);
/* The same for a process whose /proc and cgroups are below `root` ("" for this one), and a clause
 * that says what decided, in why[size]. */
int64_t memory_available_in(const char *root, char *why, size_t size);

/* MiB for keys and values of each of so many processes that share the machine, when nobody says how
 * many: a quarter of what is available to all together, from 1 to 2048. available 0: not known. */
int64_t memory_usual_mib(int64_t available, int32_t processes);

/* Of so many pages that somebody asked for, those that there is memory for: all of them, or where
 * they take more than is available as many as three quarters of it hold. available 0: not known. */
int64_t memory_pages(int64_t asked, int64_t page_bytes, int64_t available);

/* Bytes that all compute threads will read, for free(): spread over their memory nodes (numa.h),
 * and from 2 MiB on in huge pages where the system has them. Contents unspecified; memory_fine()
 * keeps to pages of the usual size. */
void *memory_shared(size_t bytes);
void *memory_fine(size_t bytes);
/* The same in zeros, always at a multiple of 2 MiB and in huge pages where the system has them. */
void *memory_huge(size_t bytes);

#endif
