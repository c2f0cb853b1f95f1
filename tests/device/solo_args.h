/* SPDX-License-Identifier: Apache-2.0 */
/* solo_args.h - the argument struct that a kernel gets for a question. */
#ifndef WHET_TESTS_DEVICE_SOLO_ARGS_H
#define WHET_TESTS_DEVICE_SOLO_ARGS_H

#include "kernels/cuda.h"
#include "tests/device/solo.h"

union any_args {
    struct cuda_attn_in_args attn_in;
    struct cuda_attn_args attn;
    struct cuda_out_args out;
    struct cuda_mlp_in_args mlp_in;
    struct cuda_head_args head;
};

/* Memory that a kernel brings with it: its layout of the weights, its work and counters. */
struct own {
    void *packed;
    struct cuda_work work;
    struct cuda_wide wide; /* of a kernel for wide steps: rows of bf16, in and out */
    void *rounded;         /* what in16 should hold, on the host */
    size_t in_bytes, out_bytes;
    void *half; /* of one that leaves its floats in bf16, too: those */
};

void solo_args(const struct question *q, const struct own *own, union any_args *a);

/* solo_wide.c: memory of a kernel for wide steps, of which own->work is there already. */
bool solo_wide_open(const struct cuda_kernel_info *i, const struct question *q, struct own *own,
                    char *why);
/* What it left in bf16 becomes the question's output, as floats. False with a reason if it wrote
 * rows that the step does not have. */
bool solo_wide_take(const struct question *q, const struct own *own, char *why);
/* Memory for own->half; and whether that is the question's output, rounded, and no more. */
bool solo_half_open(const struct question *q, struct own *own, char *why);
bool solo_half_agrees(const struct question *q, const struct own *own, char *why);
void solo_wide_close(struct own *own);

#endif
