/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    system_call(2, (long)"/etc/passwd", 0, 0);
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
