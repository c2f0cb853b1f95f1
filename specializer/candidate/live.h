/* live.h - waiting for live traffic: what bench, shadow, canary and rehearsals share. Specializer
 * thread. */
#ifndef WHET_SPECIALIZER_CANDIDATE_LIVE_H
#define WHET_SPECIALIZER_CANDIDATE_LIVE_H

#include <stdbool.h>

#include "config/clock.h"
#include "specializer/candidate/stage.h"

/* From here on live steps are waited for. */
static inline void live_expected(const struct stage_env *env)
{
    if (env->live)
        env->live(env->live_ctx);
}

/* True if c->kernel runs no more; c->reason says at what stage and why. */
bool live_broken(const struct stage_env *env, struct candidate *c, const char *stage);

/* Sleeps a few milliseconds and lets the specializer look after its children. False once the
 * server stops. */
bool live_pause(const struct stage_env *env);

static inline int64_t live_deadline(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

#endif
