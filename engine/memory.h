/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - how much memory the machine has left. */
#ifndef WHET_ENGINE_MEMORY_H
#define WHET_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that can be used without swapping, as the kernel estimates it; 0 if it does not say. */
int64_t memory_available(void);

/* Zeros, at a multiple of 2 MiB and in huge pages where the system has them. free() releases them.
 */
void *memory_huge(size_t bytes);

#endif
