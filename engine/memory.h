/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - how much memory the machine has left. */
#ifndef WHET_ENGINE_MEMORY_H
#define WHET_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that can be used without swapping, as the kernel estimates it; 0 if it does not say. */
int64_t memory_available(void);

/* MiB for keys and values of each of so many processes that share the machine, when nobody says how
 * many: a quarter of what is available to all together, from 1 to 2048. available 0: not known. */
int64_t memory_usual_mib(int64_t available, int32_t processes);

/* Zeros, at a multiple of 2 MiB and in huge pages where the system has them. free() releases them.
 */
void *memory_huge(size_t bytes);

#endif
