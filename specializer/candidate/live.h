/* SPDX-License-Identifier: Apache-2.0 */
/* live.h - waiting for live traffic: what stages that need it share. Specializer thread. */
#ifndef WHET_SPECIALIZER_CANDIDATE_LIVE_H
#define WHET_SPECIALIZER_CANDIDATE_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "specializer/candidate/stage.h"

/* From here on live steps are waited for. */
static inline void live_expected(const struct stage_env *env)
{
    if (env->live)
        env->live(env->live_ctx);
}

/* True if c->kernel runs no more; it is explained at `stage`. */
bool live_broken(const struct stage_env *env, struct candidate *c, enum stage stage);

/* Sleeps a few milliseconds and lets the specializer look after its children. False once the
 * server stops. */
bool live_pause(const struct stage_env *env);

/* How long steps of a slot are waited for. No clock ends the wait alone, or a slow machine, which
 * takes the same steps later, would never find out what they have to say. */
struct patience {
    const struct stage_env *env;
    const struct slot *slot;
    int64_t least_ns, since_ns; /* how long at least; when it began */
    int64_t step_ns;            /* when the last step was seen, of whatever slot */
    uint64_t own, all, passed;  /* steps of the slot; of its region; of that at its own last one */
};
void patience_begin(struct patience *p, const struct stage_env *env, const struct slot *slot,
                    double seconds);
/* True once `seconds` are over and either traffic has no use for the slot (many steps in a row went
 * by without it), or there is no traffic. */
bool patience_over(struct patience *p);
/* True once `seconds` are over: for who has seen enough to end with. */
bool patience_spent(const struct patience *p);
/* Region's steps since the last of the slot: for a reason in words. */
uint64_t patience_passed(const struct patience *p);

#endif
