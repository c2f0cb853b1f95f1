/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_facts.h - what somebody who writes or chooses kernels asks about a processor beyond its name:
 * which microarchitecture it is, how many of its cores are ours, its clock, what a vector unit does
 * in a cycle, how long a load takes and how fast one core reads, and in which pages the weights
 * lie.
 *
 * Everything is measured here or read from the system; what could not be found out is 0 or "". Used
 * for questions to a language model alone: the search has its own figures (struct machine).
 */
#ifndef WHET_SPECIALIZER_ADVISER_CPU_FACTS_H
#define WHET_SPECIALIZER_ADVISER_CPU_FACTS_H

#include <cjson/cJSON.h>

#include "engine/model.h"

enum { LOAD_SIZES = 4, CACHE_LEVELS = 3 };

struct cpu_facts {
    char family[96]; /* "AuthenticAMD, cpu family 26, model 2", as the system says it */
    int32_t cpus,
        cores; /* that this process may run on: logical processors, and cores they are of */
    int64_t cache_bytes[CACHE_LEVELS]; /* of the first level those of data */
    double clock_ghz;                  /* of dependent additions, one a cycle */
    int32_t vector_bits;               /* of the multiply-adds below */
    double fma_cycle; /* fused multiply-adds of such vectors that one core ends in a cycle */
    double dot_cycle; /* 512-bit dot products of bytes (VNNI), the same; 0: there are none */
    int64_t load_bytes[LOAD_SIZES]; /* working sets, ... */
    double load_ns[LOAD_SIZES]; /* ... and a dependent load in each, in pages as the weights have */
    /* Bytes/s that one core reads of 64 MiB: as the hardware foresees it, and with every line
     * fetched 2 KiB ahead into the first, or into the second, level of cache. */
    double read, read_first, read_second;
    int32_t page_bytes;
    double huge_share; /* part of the resident weights that lies in huge pages; below 0: unknown */
};

/* Takes about a fifth of a second, on the calling thread's core; a best of several rounds each, as
 * other threads may run. `model` may be NULL: nothing is said of pages. */
void cpu_facts_measure(struct cpu_facts *out, const struct model *model);
/* As fields of `device`. */
void cpu_facts_put(const struct cpu_facts *c, cJSON *device);

#endif
