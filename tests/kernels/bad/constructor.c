/* SPDX-License-Identifier: Apache-2.0 */
/* Runs code when it is loaded. */
#include "kernel.h"
static int32_t loaded;
__attribute__((constructor)) static void load(void)
{
    loaded = 1;
}
static void run(const void *args, const struct team *t)
{
    if (loaded)
        good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
