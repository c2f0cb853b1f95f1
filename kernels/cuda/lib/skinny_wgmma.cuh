/* SPDX-License-Identifier: Apache-2.0 */
/* skinny_wgmma.cuh - products of skinny.cu: 64 tokens times any of many numbers of rows of weights.
 *
 * wgmma.cuh has those that tiles of tokens need, and some of these; here the number of rows is what
 * deals a matrix evenly to all multiprocessors. Only sm_90a has them; on other architectures this
 * header is empty.
 */
#ifndef WHET_KERNELS_CUDA_LIB_SKINNY_WGMMA_CUH
#define WHET_KERNELS_CUDA_LIB_SKINNY_WGMMA_CUH

#include "cuda/lib/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define SKINNY_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SKINNY_12(c, i) WGMMA_8(c, i), SKINNY_4(c, i + 8)
#define SKINNY_20(c, i) WGMMA_16(c, i), SKINNY_4(c, i + 16)
#define SKINNY_28(c, i) WGMMA_24(c, i), SKINNY_4(c, i + 24)
#define SKINNY_64(c, i) WGMMA_32(c, i), WGMMA_32(c, i + 32)
#define WGMMA_LIST_20 WGMMA_LIST_16 ",%16,%17,%18,%19"
#define WGMMA_LIST_28 WGMMA_LIST_24 ",%24,%25,%26,%27"
#define WGMMA_LIST_36 WGMMA_LIST_32 ",%32,%33,%34,%35"
#define WGMMA_LIST_44 WGMMA_LIST_40 ",%40,%41,%42,%43"
#define WGMMA_LIST_52 WGMMA_LIST_48 ",%48,%49,%50,%51"
#define WGMMA_LIST_72 WGMMA_LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define WGMMA_LIST_76 WGMMA_LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75"
#define WGMMA_LIST_88 WGMMA_LIST_80 ",%80,%81,%82,%83,%84,%85,%86,%87"

/* c[64, 2 N] (+)= a[64, 16] b[2 N, 16]^T, as the others: of tokens 16 warp + lane / 4 and that +
 * 8 a thread has rows 8 i + 2 (lane % 4) + (0, 1). */
#define SKINNY(half, n, d, e, f, ...)                                                   \
    __device__ __forceinline__ void wgmma_rows(float(&c)[half], unsigned long long a,   \
                                               unsigned long long b, bool adds)         \
    {                                                                                   \
        asm volatile(WGMMA(n, "setp.ne.b32 adds, %" f ", 0",                            \
                           "{" WGMMA_LIST_##half "}, %" d ", %" e ", adds, 1, 1, 0, 0") \
                     : __VA_ARGS__                                                      \
                     : "l"(a), "l"(b), "r"((int)adds));                                 \
    }
SKINNY(16, "32", "16", "17", "18", WGMMA_16(c, 0))
SKINNY(20, "40", "20", "21", "22", SKINNY_20(c, 0))
SKINNY(24, "48", "24", "25", "26", WGMMA_24(c, 0))
SKINNY(28, "56", "28", "29", "30", SKINNY_28(c, 0))
SKINNY(36, "72", "36", "37", "38", WGMMA_32(c, 0), SKINNY_4(c, 32))
SKINNY(40, "80", "40", "41", "42", WGMMA_32(c, 0), WGMMA_8(c, 32))
SKINNY(44, "88", "44", "45", "46", WGMMA_32(c, 0), SKINNY_12(c, 32))
SKINNY(52, "104", "52", "53", "54", WGMMA_32(c, 0), SKINNY_20(c, 32))
SKINNY(56, "112", "56", "57", "58", WGMMA_32(c, 0), WGMMA_24(c, 32))
SKINNY(72, "144", "72", "73", "74", SKINNY_64(c, 0), WGMMA_8(c, 64))
SKINNY(76, "152", "76", "77", "78", SKINNY_64(c, 0), SKINNY_12(c, 64))
SKINNY(88, "176", "88", "89", "90", SKINNY_64(c, 0), WGMMA_24(c, 64))

#endif
#endif
