/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_area.h - the shared memory of an area of reduce (kernels/args.h) on a CPU: its size, and
 * where in it a rank finds what. The memory is the caller's, zeroed, and mapped by all ranks.
 */
#ifndef WHET_ENGINE_CPU_REDUCE_AREA_H
#define WHET_ENGINE_CPU_REDUCE_AREA_H

#include <stddef.h>

#include "kernels/args.h"

/* A multiple of 64; of what a rank has in it, too. */
size_t reduce_area_bytes(int32_t world);
/* Where in it rank r's part begins: its flags and sleepers, then its two places. */
size_t reduce_area_part(int32_t r);
/* Fills rank, world, flag, place and sleepers for `memory`, 64-byte aligned; leaves the rest. */
void reduce_area_aim(struct reduce_area *a, void *memory, int32_t rank, int32_t world);

#endif
