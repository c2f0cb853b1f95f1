/* SPDX-License-Identifier: Apache-2.0 */
/* eager.c - picks the eager kernels for this machine, and owns their working memory.
 *
 * The same sources are built for plain x86-64, x86-64-v3 (AVX2, FMA) and x86-64-v4 (AVX-512), or
 * once for 64-bit ARM, all of which has NEON. For narrow steps those with fused multiply-adds give
 * the same bits (a test holds them to it), so moving a server to another machine moves no text;
 * plain x86-64 has none, and rounds products and sums apart: emulated in doubles they take 14 times
 * as long.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "config/err.h"
#include "engine/cpu/eager_impl.h"
#include "engine/quant.h"
#include "kernels/isa.h"

/* What one build of the sources offers. */
#define BUILD(isa)                                             \
    extern const struct cpu_kernel eager_##isa[REGION_LOCAL];  \
    extern const struct cpu_kernel halves_##isa[REGION_LOCAL]; \
    extern const struct eager_probe probe_##isa;               \
    static const struct build build_##isa = {{eager_##isa, halves_##isa}, &probe_##isa};
struct build {
    const struct cpu_kernel *kernel[2]; /* keys and values in floats, and in bf16 */
    const struct eager_probe *probe;
};
BUILD(base)
#if defined(WHET_EAGER_X86)
BUILD(v3)
BUILD(v4)
#endif

float eager_half[1 << 16];
__typeof__(cblas_sgemm) *eager_sgemm;
static const struct build *build;
static pthread_key_t arena_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const struct build *best_build(void)
{
#if defined(WHET_SANITIZED)
    /* Of the three copies only this one is instrumented (meson.build): unit tests ask for it. */
    if (getenv("WHET_EAGER_BASE"))
        return &build_base;
#endif
#if defined(WHET_EAGER_X86)
    if (isa_facts()->HAS_AVX512)
        return &build_v4;
    if (isa_facts()->HAS_AVX2)
        return &build_v3;
#endif
    return &build_base;
}

/* ---- working memory, one arena a thread and part -------------------------------------------- */

struct arena {
    struct {
        void *data;
        int64_t bytes;
    } part[EAGER_PARTS];
};

static void arena_free(void *p)
{
    struct arena *a = p;
    for (int i = 0; i < EAGER_PARTS; i++)
        free(a->part[i].data);
    free(a);
}

/* Threads free their arenas as they end; the main thread ends with the process. */
static void set_up(void)
{
    pthread_key_create(&arena_key, arena_free);
    eager_sgemm = openblas_open()->sgemm;
    for (int32_t i = 0; i < 1 << 16; i++)
        eager_half[i] = f16_to_f32((uint16_t)i);
    build = best_build();
}

void *eager_arena(enum eager_part part, int64_t bytes)
{
    static _Thread_local struct arena *mine;
    if (!mine) {
        pthread_once(&once, set_up);
        mine = xcalloc(1, sizeof *mine);
        pthread_setspecific(arena_key, mine);
    }
    if (mine->part[part].bytes < bytes) {
        free(mine->part[part].data);
        mine->part[part].data = xaligned((size_t)bytes);
        mine->part[part].bytes = bytes;
    }
    return mine->part[part].data;
}

const struct cpu_kernel *eager_cpu(enum region r)
{
    return eager_cpu_of(r, false);
}

const struct cpu_kernel *eager_cpu_of(enum region r, bool kv_bf16)
{
    pthread_once(&once, set_up);
    return &build->kernel[kv_bf16][r];
}

const struct eager_probe *eager_probe(void)
{
    pthread_once(&once, set_up);
    return build->probe;
}

void eager_share(const struct team *t, int32_t n, int32_t unit, int32_t *from, int32_t *to)
{
    int64_t units = (n + unit - 1) / unit;
    int64_t a = units * t->rank / t->size * unit, b = units * (t->rank + 1) / t->size * unit;
    *from = (int32_t)(a < n ? a : n);
    *to = (int32_t)(b < n ? b : n);
}
