/* SPDX-License-Identifier: Apache-2.0 */
/* Right but for the order of additions: other bits. */
#include "reduce.h"
static void run(const void *args, const struct team *t)
{
    const struct reduce_args *a = args;
    uint32_t call = *a->area->calls + 1, turn = call & 1;
    if (t->rank > 0)
        return;
    give(a, turn);
    arrive(a->area, REDUCE_MEETING(call, 0));
    if (wait_for_all(a->area, REDUCE_MEETING(call, 0)))
        return;
    for (int64_t i = 0; i < (int64_t)a->m * a->n; i++) {
        a->out[i] = a->residual[i];
        for (int32_t r = 0; r < a->area->world; r++)
            a->out[i] += a->area->place[r][turn][i];
    }
}
KERNEL(REGION_REDUCE, 16, run, no_scratch);
