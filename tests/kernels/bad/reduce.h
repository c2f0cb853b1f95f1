/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - an honest kernel of reduce in the plainest form: rank 0 of a team does everything, in
 * one slice. Each bad one has a step of its own in the place of one of these. */
#ifndef WHET_TESTS_KERNELS_BAD_REDUCE_H
#define WHET_TESTS_KERNELS_BAD_REDUCE_H

#include "kernel.h"

static inline void give(const struct reduce_args *a, uint32_t turn)
{
    float *own = a->area->place[a->area->rank][turn];
    for (int64_t i = 0; i < (int64_t)a->m * a->n; i++)
        own[i] = a->x[i];
}

static inline void arrive(const struct reduce_area *a, uint32_t meeting)
{
    __atomic_store_n(a->flag[a->rank], meeting, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(a->sleepers[a->rank], __ATOMIC_SEQ_CST))
        a->wake(a, 0);
}

static inline int wait_for_all(const struct reduce_area *a, uint32_t meeting)
{
    for (int32_t r = 0; r < a->world; r++)
        if (a->wait(a, r, 0, meeting))
            return -1;
    return 0;
}

static inline void add(const struct reduce_args *a, uint32_t turn)
{
    for (int64_t i = 0; i < (int64_t)a->m * a->n; i++) {
        float sum = a->area->place[0][turn][i];
        for (int32_t r = 1; r < a->area->world; r++)
            sum += a->area->place[r][turn][i];
        a->out[i] = sum + a->residual[i];
    }
}

static inline void good_reduce(const struct reduce_args *a, const struct team *t)
{
    uint32_t call = *a->area->calls + 1, turn = call & 1;
    if (t->rank > 0)
        return;
    give(a, turn);
    arrive(a->area, REDUCE_MEETING(call, 0));
    if (wait_for_all(a->area, REDUCE_MEETING(call, 0)) == 0)
        add(a, turn);
}

#endif
