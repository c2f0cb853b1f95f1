/* SPDX-License-Identifier: Apache-2.0 */
/* Only some ranks come to the barrier. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    if (t->rank == 0)
        t->barrier(t);
    good_mlp_in(args, t);
}
KERNEL(REGION_MLP_IN, 16, run, no_scratch);
