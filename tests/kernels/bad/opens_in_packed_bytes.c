/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file where its weights are measured, before it has run at all. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    system_call(2, (long)"/etc/passwd", 0, 0);
    return float_rows_bytes(w);
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
PACKED_KERNEL(REGION_MLP_OUT, run, packed_bytes, pack_float_rows);
