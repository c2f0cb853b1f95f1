/* SPDX-License-Identifier: Apache-2.0 */
/* blas_core.c - see blas_core.h.
 *
 * A core is named only if all instructions are there that its kernels were compiled with, and the
 * operating system keeps their registers. Of several that run, the widest: on Zen 4, whose units
 * are half as wide as its vectors, SkylakeX is no slower than Zen. One name serves all processors
 * with AVX-512, because the later cores (Cooperlake, SapphireRapids) have the same product of
 * floats.
 */
#include "engine/cpu/blas_core.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- x86 ------------------------------------------------------------------------------------ */

#define BIT(n) (1u << (n))

enum {
    XCR0_YMM = 1 << 1 | 1 << 2,                     /* SSE and the upper halves of YMM */
    XCR0_ZMM = XCR0_YMM | 1 << 5 | 1 << 6 | 1 << 7, /* masks, the upper halves of ZMM, ZMM16-31 */
};
static const uint32_t vendor_intel = 0x756e6547; /* "Genu" */
static const uint32_t sse42 = BIT(20), osxsave = BIT(27), avx = BIT(28);
static const uint32_t fma_and_others = BIT(12) | BIT(22) | BIT(29); /* FMA, MOVBE, F16C */
static const uint32_t avx2_and_bmi = BIT(3) | BIT(5) | BIT(8);      /* BMI1, AVX2, BMI2 */
static const uint32_t avx512 = BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31); /* F DQ CD BW VL */
static const uint32_t lzcnt = BIT(5);

static bool has(uint32_t have, uint32_t wanted)
{
    return (have & wanted) == wanted;
}

const char *blas_core_x86(const struct x86_says *s)
{
    bool saved = has(s->leaf1_ecx, osxsave | avx) && (s->xcr0 & XCR0_YMM) == XCR0_YMM;
    bool v3 = saved && has(s->leaf1_ecx, fma_and_others) && has(s->leaf7_ebx, avx2_and_bmi) &&
              has(s->extended_ecx, lzcnt);
    if (v3 && has(s->leaf7_ebx, avx512) && (s->xcr0 & XCR0_ZMM) == XCR0_ZMM)
        return "SkylakeX";
    if (v3)
        return s->vendor_ebx == vendor_intel ? "Haswell" : "Zen";
    if (s->vendor_ebx != vendor_intel) /* AMD before Zen has kernels of its own, by its number */
        return NULL;
    if (saved)
        return "Sandybridge";
    return has(s->leaf1_ecx, sse42) ? "Nehalem" : NULL;
}

#ifdef __x86_64__

#include <cpuid.h>

/* Only where OSXSAVE is set: elsewhere the instruction is a fault. */
static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

const char *blas_core(void)
{
    struct x86_says s = {0};
    uint32_t a, b, c, d;
    if (__get_cpuid(0, &a, &b, &c, &d))
        s.vendor_ebx = b;
    if (__get_cpuid(1, &a, &b, &c, &d))
        s.leaf1_ecx = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        s.leaf7_ebx = b;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        s.extended_ecx = c;
    s.xcr0 = has(s.leaf1_ecx, osxsave) ? read_xcr0() : 0;
    return blas_core_x86(&s);
}

#endif

/* ---- aarch64 -------------------------------------------------------------------------------- */

enum {
    HW_ATOMICS = 1 << 8,
    HW_ASIMDHP = 1 << 10,
    HW_ASIMDDP = 1 << 20,
    HW_SVE = 1 << 22,
    NEOVERSE = HW_ATOMICS | HW_ASIMDHP | HW_ASIMDDP, /* ARMv8.2 as Neoverse N1 has it */
    ARM = 0x41,
    NEOVERSE_V1 = 0xd40,
};

/* Graviton 2 and 4, Altra, Grace, Axion: the product of N1 is NEON's and runs on all of them. V1
 * (Graviton 3) has vectors of 256 bits, which only its own core uses. */
const char *blas_core_arm(const struct arm_says *s)
{
    if ((s->hwcap & NEOVERSE) != NEOVERSE)
        return NULL;
    bool v1 = (s->midr >> 24 & 0xff) == ARM && (s->midr >> 4 & 0xfff) == NEOVERSE_V1;
    return v1 && (s->hwcap & HW_SVE) ? "NEOVERSEV1" : "NEOVERSEN1";
}

#ifdef __aarch64__

#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

const char *blas_core(void)
{
    char text[32] = "";
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "r");
    if (f && !fgets(text, sizeof text, f))
        text[0] = 0;
    if (f)
        fclose(f);
    const struct arm_says s = {strtoull(text, NULL, 0), getauxval(AT_HWCAP)};
    return blas_core_arm(&s);
}

#elif !defined(__x86_64__)

const char *blas_core(void)
{
    return NULL;
}

#endif
