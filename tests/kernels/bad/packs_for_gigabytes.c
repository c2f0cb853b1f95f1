/* SPDX-License-Identifier: Apache-2.0 */
/* Packs no more than it asked room for, but asks for 3 GiB a layer: six cases of a probe would
 * take 18. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return w ? 3LL << 30 : 0;
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
PACKED_KERNEL(REGION_MLP_OUT, run, packed_bytes, pack_float_rows);
