/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - measures what this machine can do (struct machine of engine/plan.h). */
#ifndef WHET_ENGINE_CPU_MACHINE_H
#define WHET_ENGINE_CPU_MACHINE_H

#include <stddef.h>

#include "engine/cpu/pool.h"
#include "engine/plan.h"

struct blas; /* blas.h */

/* Measures with every thread of `pool`, reading the model's own weights (which also brings their
 * pages in). Takes 20-100 ms. */
void machine_measure(const struct model *model, struct pool *pool, struct machine *out);

/* For the bandwidth: bytes of weights that so many threads read, and that are read at a time. */
void machine_reads(int32_t threads, int64_t *all, int64_t *chunk);

/* What is wrong with the matrix products that `m` was measured with, in a sentence for operators;
 * "" if nothing is. An OpenBLAS that does not know this processor is the usual reason for slow
 * prompts. */
void machine_products_warning(const struct machine *m, const struct blas *blas, char *dst,
                              size_t n);

/* What the processor is called in `cpuinfo`, the text of /proc/cpuinfo: its model name, or on ARM,
 * whose kernels tell none, the numbers that stand for maker, part and revision ("ARM 0x41:0xd0c
 * r0x3p1": a Neoverse N1); of several kinds of cores the first. "CPU" if it says neither. Evidence
 * is kept under this name, so two processors must not share one. */
void machine_processor(const char *cpuinfo, char *dst, size_t n);

#endif
