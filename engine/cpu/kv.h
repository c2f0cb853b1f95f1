/* SPDX-License-Identifier: Apache-2.0 */
/* kv.h - elements of keys and values in host memory, as floats.
 *
 * For whoever looks at pages from outside of kernels: cases, hooks, the oracle. Templates have
 * kernels/cpu/lib/kv.h for it. Pure; any thread.
 */
#ifndef WHET_ENGINE_CPU_KV_H
#define WHET_ENGINE_CPU_KV_H

#include <stdbool.h>
#include <stdint.h>

/* n elements of `pages` from element `at` on: floats, or bf16. */
void kv_read(bool bf16, const void *pages, int64_t at, int32_t n, float *to);
/* The other way; bf16 is rounded to nearest even. */
void kv_write(bool bf16, const float *from, int64_t n, void *pages, int64_t at);

#endif
