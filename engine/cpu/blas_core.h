/* SPDX-License-Identifier: Apache-2.0 */
/* blas_core.h - which of OpenBLAS's kernels ("cores") fits this processor.
 *
 * OpenBLAS goes by family and model, so a processor that is younger than the library gets what fits
 * any: 0.3.21 takes an x86 with AVX-512 and a number that it does not know for a "Prescott" and
 * multiplies by SSE3, a fifth as fast. What a processor can run does not depend on its number.
 */
#ifndef WHET_ENGINE_CPU_BLAS_CORE_H
#define WHET_ENGINE_CPU_BLAS_CORE_H

#include <stdint.h>

/* What an x86 says of itself: registers of CPUID, 0 for a leaf that it does not have, and XCR0, the
 * registers that the operating system saves (0 without OSXSAVE). */
struct x86_says {
    uint32_t vendor_ebx;   /* leaf 0 */
    uint32_t leaf1_ecx;    /* SSE4.2, FMA, AVX, OSXSAVE */
    uint32_t leaf7_ebx;    /* BMI, AVX2, AVX-512 */
    uint32_t extended_ecx; /* leaf 0x80000001: LZCNT */
    uint64_t xcr0;
};

/* What an aarch64 says: MIDR_EL1 (implementer and part), 0 if it is not to be had, and AT_HWCAP. */
struct arm_says {
    uint64_t midr, hwcap;
};

/* The name for OPENBLAS_CORETYPE of a core that this processor and its operating system can run;
 * NULL: OpenBLAS may choose, which knows processors of that age. Static storage. */
const char *blas_core_x86(const struct x86_says *s);
const char *blas_core_arm(const struct arm_says *s);

/* The same for the processor that this runs on. */
const char *blas_core(void);

#endif
