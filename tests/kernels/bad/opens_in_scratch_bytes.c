/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file where it is asked for its scratch. */
#include "kernel.h"
static int64_t scratch(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    system_call(2, (long)"/etc/passwd", 0, 0);
    return 0;
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
KERNEL(REGION_MLP_OUT, 16, run, scratch);
