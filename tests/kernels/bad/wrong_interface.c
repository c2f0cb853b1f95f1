/* SPDX-License-Identifier: Apache-2.0 */
/* Built for another interface. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    good_out(args, t);
}
const struct cpu_kernel whet_kernel = {.abi = WHET_CPU_ABI + 1,
                                       .region = REGION_MLP_OUT,
                                       .m_max = 16,
                                       .run = run,
                                       .scratch_bytes = no_scratch};
