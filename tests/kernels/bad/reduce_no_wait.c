/* SPDX-License-Identifier: Apache-2.0 */
/* Adds what lies in the places, whether the others have come or not. */
#include "reduce.h"
static void run(const void *args, const struct team *t)
{
    const struct reduce_args *a = args;
    uint32_t call = *a->area->calls + 1, turn = call & 1;
    if (t->rank > 0)
        return;
    give(a, turn);
    arrive(a->area, REDUCE_MEETING(call, 0));
    add(a, turn);
}
KERNEL(REGION_REDUCE, 16, run, no_scratch);
