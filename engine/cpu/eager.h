/* SPDX-License-Identifier: Apache-2.0 */
/* eager.h - the trusted kernels of the CPU backend: plain C, and OpenBLAS for some wide M.
 *
 * Always loaded, never replaced, written to be read. Up to EAGER_NARROW tokens every dot product
 * is computed in the canonical order (kernels/cpu/lib/lanes.h): 16 lanes, fused multiply-adds,
 * a fixed reduction tree. A template that keeps that order gives the same bits whatever its
 * instruction set, unroll or thread split, which is what the `bit_equal` policy accepts.
 */
#ifndef WHET_ENGINE_CPU_EAGER_H
#define WHET_ENGINE_CPU_EAGER_H

#include <stdbool.h>

#include "kernels/args.h"

enum { EAGER_NARROW = 16 };

/* The eager kernel of a region, fused or not; static storage. */
const struct cpu_kernel *eager_cpu(enum region r);
/* The same for keys and values in bf16, if `kv_bf16` is set: other kernels of attn_in and attn. */
const struct cpu_kernel *eager_cpu_of(enum region r, bool kv_bf16);

/* Loops that load one core to its limit, in the instruction set of the eager kernels. */
struct eager_probe {
    double (*multiply_add)(int64_t loops);         /* returns the f32 FLOPs it did */
    void (*read)(const uint8_t *p, int64_t bytes); /* streams over memory */
    /* A matrix product as wide steps do it; returns its FLOPs. The thread's first writes the
     * numbers that later ones find in its memory. */
    double (*product)(bool first);
    int32_t vector_bits; /* of those multiply-adds */
};
const struct eager_probe *eager_probe(void);

#endif
