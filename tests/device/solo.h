/* SPDX-License-Identifier: Apache-2.0 */
/* solo.h - one region of a model on the device, in memory of its own: a question with the oracle's
 * answer, and a cubin that is asked it.
 *
 * No backend, no arenas and no BLAS: every operand is an allocation of exactly its size, so
 * compute-sanitizer sees each byte too far, and outputs lie between guards when it is not there.
 * Launches are as engine/cuda/loaded.c makes them. One thread; errors of the device are reported
 * in words and leave the process unable to go on, as CUDA does.
 */
#ifndef WHET_TESTS_DEVICE_SOLO_H
#define WHET_TESTS_DEVICE_SOLO_H

#include <cuda_runtime.h>

#include "engine/backend.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/oracle.h"
#include "kernels/cuda.h"
#include "tests/kernels/cuda_build.h"

/* `why` is always of WHY_SIZE bytes. */

/* ---- kernels ------------------------------------------------------------------------------- */

struct solo_kernel {
    cudaLibrary_t library;
    cudaKernel_t entry[CUDA_LAUNCHES], pack;
    struct cuda_kernel_info info;
};

/* From a cubin in memory; false with a reason. */
bool solo_load(struct solo_kernel *k, const void *cubin, enum region r, char *why);
void solo_unload(struct solo_kernel *k);

/* ---- questions ----------------------------------------------------------------------------- */

/* How activations are drawn. */
enum numbers { NUMBERS_NORMAL, NUMBERS_OUTLIER, NUMBERS_ZERO, NUMBERS_COUNT };

struct device_copy {
    void *data;   /* on the device */
    void *master; /* the bytes it should hold, on the host; NULL: an output */
    size_t bytes;
};

enum operand {
    AT_X,
    AT_IN,
    AT_K,
    AT_V,
    AT_W,
    AT_NORM,
    AT_BIAS,
    AT_Q_NORM,
    AT_K_NORM,
    AT_COS,
    AT_SIN,
    AT_POSITION,
    AT_KV_AT,
    AT_PAGES_AT,
    AT_TABLE,
    AT_SPAN,
    AT_ROW,
    AT_COUNTS,
    AT_OUT_0,
    AT_OUT_K,
    AT_OUT_V,
    AT_BEST,
    OPERANDS
};

struct question {
    const struct model *model;
    enum region region;
    int32_t m, bucket, context;
    struct oracle_out want;
    int32_t *kv_at; /* [m] where attn_in writes, in AT_OUT_K and AT_OUT_V */
    struct device_copy at[OPERANDS];
    size_t guard; /* bytes before and after each output */
};

/* `exact`: no guards. Otherwise NaN lies behind every input, too. The model must have bf16 weights,
 * interleaved RoPE and two layers. `bucket` rows of activations exist, m of them hold something.
 * attn: sequences of up to `context` positions, their pages shuffled. */
struct question *question_new(const struct model *m, enum region r, int32_t tokens, int32_t bucket,
                              int32_t context, enum numbers numbers, uint64_t seed, bool exact);
void question_free(struct question *q);
/* Gives `q` the contents of `other`, drawn for the same shape, in the memory it has; and back. */
void question_swap(struct question *q, struct question *other);

/* ---- answers ------------------------------------------------------------------------------- */

enum { SOLO_LATE = 1 }; /* activations arrive while the kernel is already running */

/* Runs the kernel once on poisoned outputs. False with a reason if something was not written, is
 * not finite, was written where nothing should be, or differs from the oracle by more than `bound`
 * (relative RMS of a row; k and v: at least that of bf16). *worst: the worst row's. */
bool solo_ask(const struct solo_kernel *k, const struct question *q, double bound, int how,
              double *worst, char *why);
/* Bits of the first output's m rows, as last left by solo_ask(); malloc'ed, *bytes long. */
void *solo_bits(const struct question *q, size_t *bytes);

/* Once, before SOLO_LATE: `root` is where tests/device/late.cu is. */
bool solo_late_open(const char *root, const char *arch, char *why);

#endif
