/* SPDX-License-Identifier: Apache-2.0 */
/* Asks for more memory for packed weights than machines have. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return w ? 8LL << 40 : 0;
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
PACKED_KERNEL(REGION_MLP_OUT, run, packed_bytes, pack_float_rows);
