/* SPDX-License-Identifier: Apache-2.0 */
/* Packs more than it asked room for. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return float_rows_bytes(w) - 64;
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
PACKED_KERNEL(REGION_MLP_OUT, run, packed_bytes, pack_float_rows);
