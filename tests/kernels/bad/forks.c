/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a process. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    if (system_call(57, 0, 0, 0) >= 0)
        good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
