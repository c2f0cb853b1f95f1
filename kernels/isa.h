/* SPDX-License-Identifier: Apache-2.0 */
/* isa.h - what this CPU can run: the FACT rows of templates.def, filled in. */
#ifndef WHET_KERNELS_ISA_H
#define WHET_KERNELS_ISA_H

struct isa_facts {
    int HAS_AVX2, HAS_AVX512, HAS_VNNI, HAS_AMX;
    int HAS_NEON, HAS_DOTPROD, HAS_I8MM;
};

/* Detected once, static storage, any thread. The first call asks the operating system for the
 * use of AMX tiles by this process (Linux grants them on request only): call it before a kernel
 * with ISA amx runs, in probe processes too. The environment variable WHET_ISA (portable, avx2,
 * avx512 or vnni) sets the most that is found; the program's own kernels follow it. */
const struct isa_facts *isa_facts(void);

#endif
