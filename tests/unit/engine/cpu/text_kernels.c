/* SPDX-License-Identifier: Apache-2.0 */
/* text_kernels.c - objects for the tests of executors: honest kernels of tests/kernels/bad, and
 * what a hostile text might do, chosen by -D. Compiled by the test, never linked into anything. */
#include "tests/kernels/bad/kernel.h"

#ifndef TEXT_REGION
#define TEXT_REGION REGION_MLP_OUT
#endif
#ifndef AFTER
#define AFTER 0 /* honest calls before EVIL */
#endif

static void honest(const void *args, const struct team *t)
{
#if TEXT_CODE == 1
    good_attn_in(args, t);
#elif TEXT_CODE == 2
    good_attn(args, t);
#elif TEXT_CODE == 4
    good_mlp_in(args, t);
#elif TEXT_CODE == 6
    good_head(args, t);
#else
    good_out(args, t);
#endif
}

__attribute__((unused)) static void create(const char *path)
{
#if defined(__x86_64__)
    system_call(2, (long)path, 0102 /* O_CREAT | O_RDWR */, 0600);
#else
    extern int creat(const char *path, unsigned mode);
    creat(path, 0600);
#endif
}

/* State between calls is what the admission refuses; here there is no admission. */
static int calls;

static void run(const void *args, const struct team *t)
{
    honest(args, t);
    t->barrier(t);
#ifdef EVIL
    if (t->rank == 0 && calls++ >= AFTER) {
        const struct out_args *a = args;
        (void)a;
        EVIL;
    }
#endif
}

static int64_t scratch(int32_t m, int32_t size)
{
#ifdef EVIL_SCRATCH
    EVIL_SCRATCH;
#endif
    return 64 * (int64_t)m * size;
}

#ifdef PACKS
static int64_t packed_bytes(const struct weight *w)
{
#ifdef EVIL_BYTES
    EVIL_BYTES;
#endif
    return (int64_t)w->rows * w->cols * 4;
}

static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
#ifdef EVIL_PACK
    EVIL_PACK;
#endif
    for (int32_t r = row0; r < row1; r++)
        row_float(w, r, (float *)packed + (int64_t)r * w->cols);
}

static void run_packed(const void *args, const struct team *t)
{
    struct out_args a = *(const struct out_args *)args;
    a.w.data = a.w.packed;
    a.w.type = DTYPE_F32;
    run(&a, t);
}
#endif

__attribute__((visibility("default"))) const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = TEXT_REGION,
    .m_max = 2048,
    .scratch_bytes = scratch,
#ifdef PACKS
    .run = run_packed,
    .layout = "a text's own",
    .packed_bytes = packed_bytes,
    .pack = pack,
#else
    .run = run,
#endif
};
