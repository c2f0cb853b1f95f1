/* SPDX-License-Identifier: Apache-2.0 */
/* Waits without an end: a rank that died would hang all others. */
#include "reduce.h"
static void run(const void *args, const struct team *t)
{
    const struct reduce_args *a = args;
    uint32_t call = *a->area->calls + 1, turn = call & 1;
    if (t->rank > 0)
        return;
    give(a, turn);
    arrive(a->area, REDUCE_MEETING(call, 0));
    for (int32_t r = 0; r < a->area->world; r++)
        while (!REDUCE_CAME(__atomic_load_n(a->area->flag[r], __ATOMIC_ACQUIRE),
                            REDUCE_MEETING(call, 0)))
            ;
    add(a, turn);
}
KERNEL(REGION_REDUCE, 16, run, no_scratch);
