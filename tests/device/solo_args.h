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
};

void solo_args(const struct question *q, const struct own *own, union any_args *a);

#endif
