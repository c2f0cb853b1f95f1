/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeps through the C library. */
#include "kernel.h"
extern int usleep(unsigned us);
static void run(const void *args, const struct team *t)
{
    usleep(1000);
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
