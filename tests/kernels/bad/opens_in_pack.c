/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file where its weights are repacked, before it has run at all. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return (int64_t)w->rows * w->cols * 4;
}
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    system_call(2, (long)"/etc/passwd", 0, 0);
    for (int32_t r = row0; r < row1; r++)
        row_float(w, r, (float *)packed + (int64_t)r * w->cols);
}
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI,
                                       .region = REGION_MLP_OUT,
                                       .m_max = 16,
                                       .run = run,
                                       .scratch_bytes = no_scratch,
                                       .layout = "float rows",
                                       .packed_bytes = packed_bytes,
                                       .pack = pack};
