/* SPDX-License-Identifier: Apache-2.0 */
/* pack.h - repacked copies of weights, made by the kernels that want them (cpu_kernel.pack). The
 * weights are those of one region in one layer (bind_weights()). Any thread.
 */
#ifndef WHET_ENGINE_CPU_PACK_H
#define WHET_ENGINE_CPU_PACK_H

#include "kernels/args.h"

/* Bytes of the copies, each in whole cache lines; 0: `k` packs nothing. */
int64_t weights_packed_bytes(const struct cpu_kernel *k, struct weight *const weight[], int n);
/* Makes them from `at` on, which is 64-byte aligned, one behind the other. packed[i] is weight i's
 * copy, NULL if it has none. Returns their end. */
char *weights_pack(const struct cpu_kernel *k, struct weight *const weight[], int n, char *at,
                   void *packed[3]);

#endif
