/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.cuh - products of a warpgroup (128 threads) on Hopper's tensor cores, out of shared memory,
 * and what comes with them: named barriers, register shares, asynchronous copies.
 *
 * Shared operands are 128-byte rows of 64 bf16 in groups of 8 (1 KB, aligned to that), 16-byte
 * pieces swizzled by the row's number: swizzled() says where one lies. Wider rows are blocks of 64
 * columns, one after the other. Such a matrix can be read as [n, k] with k along a row (descriptor
 * `by_row`), or as [k, n] with n along a row (`by_column`).
 *
 * A product is asynchronous: between wgmma_begin() and the wgmma_wait() after its wgmma_commit()
 * neither its accumulators nor its operands may be touched. settle() keeps the compiler from moving
 * registers across those points.
 *
 * Only sm_90a has these; on other architectures this header is empty.
 */
#ifndef WHET_KERNELS_CUDA_LIB_WGMMA_CUH
#define WHET_KERNELS_CUDA_LIB_WGMMA_CUH

#include "cuda/lib/barrier.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- barriers ------------------------------------------------------------------------------ */

/* Named barriers of `threads` threads; arriving does not wait. */
__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Byte of the 16-byte piece `piece` of row `row`, in a block of 64 columns. */
__device__ __forceinline__ int swizzled(int row, int piece)
{
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

/* 16 bytes, or zeros. */
__device__ __forceinline__ void copy16(unsigned shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* What this thread wrote to shared memory is there for wgmma and for bulk copies, too. */
__device__ __forceinline__ void written_for_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* All of this thread's copies but those of the last N commits are there, for wgmma too. */
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    written_for_async();
}

/* ---- registers ----------------------------------------------------------------------------- */

template <int N> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ------------------------------------------------------------------------------ */

__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N> __device__ __forceinline__ void settle(float (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

/* Descriptors of a block of 64 columns. `apart`: bytes from one block of 64 columns to the next
 * (by_column: n may be wider than a block). 1 KB lies between groups of 8 rows. */
__device__ __forceinline__ unsigned long long by_row(unsigned at)
{
    return (unsigned long long)(at >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ unsigned long long by_column(unsigned at, int apart)
{
    return (unsigned long long)(at >> 4 & 0x3fff) | (unsigned long long)(apart >> 4) << 16 |
           64ull << 32 | 1ull << 62;
}

#define WGMMA_8(c, i)                                                                           \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define WGMMA_16(c, i) WGMMA_8(c, i), WGMMA_8(c, i + 8)
#define WGMMA_32(c, i) WGMMA_16(c, i), WGMMA_16(c, i + 16)
#define WGMMA_24(c, i) WGMMA_16(c, i), WGMMA_8(c, i + 16)
#define WGMMA_40(c, i) WGMMA_32(c, i), WGMMA_8(c, i + 32)
#define WGMMA_56(c, i) WGMMA_32(c, i), WGMMA_24(c, i + 32)
#define WGMMA_LIST_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_LIST_24 WGMMA_LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define WGMMA_LIST_32 WGMMA_LIST_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_LIST_40 WGMMA_LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_LIST_48 WGMMA_LIST_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_LIST_56 WGMMA_LIST_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_LIST_64 WGMMA_LIST_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_LIST_80 \
    WGMMA_LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_LIST_96 \
    WGMMA_LIST_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_LIST_112 \
    WGMMA_LIST_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_LIST_128 \
    WGMMA_LIST_112     \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
/* One product of n columns, in which the predicate `adds` is what `when` makes it: false overwrites
 * c. As one macro, so that its text is one argument of asm. */
#define WGMMA(n, when, operands)         \
    "{\n .reg .pred adds;\n " when ";\n" \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 " operands ";\n}"

/* c[64, 2 N] (+)= a[64, 16] b[2 N, 16]^T, both in shared memory, by rows. A thread has of rows
 * 16 warp + lane / 4 and that + 8 columns 8 i + 2 (lane % 4) + (0, 1): c[4 i .. 4 i + 3]. */
#define WGMMA_ROWS(half, n, d, e, f, outputs)                                           \
    __device__ __forceinline__ void wgmma_rows(float(&c)[half], unsigned long long a,   \
                                               unsigned long long b, bool adds)         \
    {                                                                                   \
        asm volatile(WGMMA(n, "setp.ne.b32 adds, %" f ", 0",                            \
                           "{" WGMMA_LIST_##half "}, %" d ", %" e ", adds, 1, 1, 0, 0") \
                     : WGMMA_32(c, 0) outputs                                           \
                     : "l"(a), "l"(b), "r"((int)adds));                                 \
    }
/* The same with a in registers, as mma.m16n8k16 wants it. */
#define WGMMA_FROM(half, n, d, e, f, g, h, i, outputs)                                      \
    __device__ __forceinline__ void wgmma_rows(float(&c)[half], const unsigned(&a)[4],      \
                                               unsigned long long b, bool adds)             \
    {                                                                                       \
        asm volatile(WGMMA(n, "setp.ne.b32 adds, %" i ", 0",                                \
                           "{" WGMMA_LIST_##half "}, {%" d ",%" e ",%" f ",%" g "}, %" h    \
                                                 ", adds, 1, 1, 0")                         \
                     : WGMMA_32(c, 0) outputs                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds)); \
    }
#define WGMMA_TO_48 , WGMMA_16(c, 32)
#define WGMMA_TO_64 , WGMMA_32(c, 32)
#define WGMMA_TO_80 WGMMA_TO_64, WGMMA_16(c, 64)
#define WGMMA_TO_96 WGMMA_TO_64, WGMMA_32(c, 64)
#define WGMMA_TO_112 WGMMA_TO_96, WGMMA_16(c, 96)
#define WGMMA_TO_128 WGMMA_TO_96, WGMMA_32(c, 96)
WGMMA_ROWS(32, "64", "32", "33", "34", )
WGMMA_ROWS(48, "96", "48", "49", "50", WGMMA_TO_48)
WGMMA_ROWS(64, "128", "64", "65", "66", WGMMA_TO_64)
WGMMA_ROWS(80, "160", "80", "81", "82", WGMMA_TO_80)
WGMMA_ROWS(96, "192", "96", "97", "98", WGMMA_TO_96)
WGMMA_ROWS(112, "224", "112", "113", "114", WGMMA_TO_112)
WGMMA_ROWS(128, "256", "128", "129", "130", WGMMA_TO_128)

WGMMA_FROM(32, "64", "32", "33", "34", "35", "36", "37", )
WGMMA_FROM(48, "96", "48", "49", "50", "51", "52", "53", WGMMA_TO_48)
WGMMA_FROM(64, "128", "64", "65", "66", "67", "68", "69", WGMMA_TO_64)
WGMMA_FROM(80, "160", "80", "81", "82", "83", "84", "85", WGMMA_TO_80)
WGMMA_FROM(96, "192", "96", "97", "98", "99", "100", "101", WGMMA_TO_96)
WGMMA_FROM(112, "224", "112", "113", "114", "115", "116", "117", WGMMA_TO_112)
WGMMA_FROM(128, "256", "128", "129", "130", "131", "132", "133", WGMMA_TO_128)

/* c[64, 2 N] (+)= a[64, 32] b[2 N, 32]^T of e4m3, a in registers, as mma.m16n8k32 wants it; b's 32
 * columns are as many bytes as 16 of bf16. Sums have fewer bits than a float's: whoever wants those
 * adds them up elsewhere after a few products. */
#define WGMMA_E4M3(half, n, d, e, f, g, h, i, outputs)                                      \
    __device__ __forceinline__ void wgmma_e4m3(float(&c)[half], const unsigned(&a)[4],      \
                                               unsigned long long b, bool adds)             \
    {                                                                                       \
        asm volatile("{\n .reg .pred adds;\n setp.ne.b32 adds, %" i ", 0;\n"                \
                     "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 "             \
                     "{" WGMMA_LIST_##half "}, {%" d ",%" e ",%" f ",%" g "}, %" h          \
                                           ", adds, 1, 1;\n}"                               \
                     : outputs                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds)); \
    }
WGMMA_E4M3(16, "32", "16", "17", "18", "19", "20", "21", WGMMA_16(c, 0))
WGMMA_E4M3(24, "48", "24", "25", "26", "27", "28", "29", WGMMA_24(c, 0))
WGMMA_E4M3(32, "64", "32", "33", "34", "35", "36", "37", WGMMA_32(c, 0))
WGMMA_E4M3(40, "80", "40", "41", "42", "43", "44", "45", WGMMA_40(c, 0))
WGMMA_E4M3(48, "96", "48", "49", "50", "51", "52", "53", WGMMA_32(c, 0) WGMMA_TO_48)
WGMMA_E4M3(56, "112", "56", "57", "58", "59", "60", "61", WGMMA_56(c, 0))
WGMMA_E4M3(64, "128", "64", "65", "66", "67", "68", "69", WGMMA_32(c, 0) WGMMA_TO_64)
WGMMA_E4M3(80, "160", "80", "81", "82", "83", "84", "85", WGMMA_32(c, 0) WGMMA_TO_80)

/* c[64, 2 N] += a[64, 16] b[16, 2 N], a in registers (as mma.m16n8k16 wants it), b by columns. */
__device__ __forceinline__ void wgmma_columns(float (&c)[32], const unsigned (&a)[4],
                                              unsigned long long b)
{
    asm volatile(WGMMA("64", "setp.eq.b32 adds, 0, 0",
                       "{" WGMMA_LIST_32 "}, {%32,%33,%34,%35}, %36, adds, 1, 1, 1")
                 : WGMMA_32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_columns(float (&c)[64], const unsigned (&a)[4],
                                              unsigned long long b)
{
    asm volatile(WGMMA("128", "setp.eq.b32 adds, 0, 0",
                       "{" WGMMA_LIST_64 "}, {%64,%65,%66,%67}, %68, adds, 1, 1, 1")
                 : WGMMA_32(c, 0), WGMMA_32(c, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
#endif
