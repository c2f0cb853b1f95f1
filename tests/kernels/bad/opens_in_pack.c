/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file where its weights are repacked, before it has run at all. */
#include "kernel.h"
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    system_call(2, (long)"/etc/passwd", 0, 0);
    pack_float_rows(w, packed, row0, row1);
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
PACKED_KERNEL(REGION_MLP_OUT, run, float_rows_bytes, pack);
