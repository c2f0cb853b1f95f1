/* SPDX-License-Identifier: Apache-2.0 */
/* Has its own epsilon, which only small inputs notice. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    struct mlp_in_args a = *(const struct mlp_in_args *)args;
    a.eps = 1.5e-5f;
    good_mlp_in(&a, t);
}
KERNEL(REGION_MLP_IN, 16, run, no_scratch);
