/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c - CPU feature detection.
 *
 * The compiler's __builtin_cpu_supports() reads CPUID and checks that the operating system saves
 * the vector registers. F16C and AMX are not in its list everywhere, so they are asked directly:
 * CPUID leaf 7, then ARCH_REQ_XCOMP_PERM for the tile data, without which the first tile
 * instruction is a fault. On 64-bit ARM the kernel says what the processor has and it supports, in
 * the auxiliary vector. WHET_ISA lowers what was found, to try what a lesser CPU would run.
 */
#include "kernels/isa.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct isa_facts facts;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM, asm/prctl.h of Linux 5.16 and later */
    TILE_DATA = 18,              /* its XSAVE component */
    LEAF7_AMX_BF16 = 1 << 22,    /* edx */
    LEAF7_AMX_TILE = 1 << 24,
    LEAF7_AMX_INT8 = 1 << 25,
};

static bool amx_usable(void)
{
    const unsigned want = LEAF7_AMX_BF16 | LEAF7_AMX_TILE | LEAF7_AMX_INT8;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & want) != want)
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static void detect(void)
{
    facts.HAS_AVX2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c() &&
                     __builtin_cpu_supports("bmi2"); /* of x86-64-v3, as eager kernels are built */
    facts.HAS_AVX512 = facts.HAS_AVX2 && __builtin_cpu_supports("avx512f") &&
                       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
    facts.HAS_VNNI = facts.HAS_AVX512 && __builtin_cpu_supports("avx512vnni");
    facts.HAS_AMX = facts.HAS_VNNI && amx_usable();
}

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

static void detect(void)
{
    facts.HAS_NEON = (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
    facts.HAS_DOTPROD = facts.HAS_NEON && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
    facts.HAS_I8MM = facts.HAS_DOTPROD && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
}

#else

static void detect(void)
{
}

#endif

/* WHET_ISA=portable|avx2|avx512|vnni: this CPU is taken for one that has no more than that. */
static void limit(void)
{
    const char *most = getenv("WHET_ISA");
    int *const fact[] = {&facts.HAS_AVX2, &facts.HAS_AVX512, &facts.HAS_VNNI, &facts.HAS_AMX};
    static const char *const name[] = {"portable", "avx2", "avx512", "vnni"};
    int i = 0;
    while (most && i < 4 && strcmp(most, name[i]) != 0)
        i++;
    if (most && i == 4) {
        fprintf(stderr, "WHET_ISA=%s: not one of portable, avx2, avx512, vnni\n", most);
        exit(EXIT_FAILURE);
    }
    for (; most && i < 4; i++)
        *fact[i] = 0;
}

static void find(void)
{
    detect();
    limit();
}

const struct isa_facts *isa_facts(void)
{
    pthread_once(&once, find);
    return &facts;
}
