/* SPDX-License-Identifier: Apache-2.0 */
/* wider.h - one plain loop, compiled for several widths of vector registers.
 *
 * The program is built for any processor of its kind, so a loop that the compiler vectorizes would
 * use registers of 16 bytes. A function with FOR_WIDER_CORES is compiled three times, and the
 * loader takes the widest that this processor has. The bits are the same: neither contraction nor
 * another order of sums is allowed. For what must be simple to read but is run often; kernels
 * choose for themselves.
 *
 * By gcc alone (clang 14 loses such functions where they are static), and not under sanitizers: the
 * loader asks which one it shall be before they are ready.
 */
#ifndef WHET_ENGINE_WIDER_H
#define WHET_ENGINE_WIDER_H

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_WIDER_CORES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOR_WIDER_CORES
#endif

#endif
