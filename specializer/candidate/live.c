/* live.c - see live.h. */
#include "specializer/candidate/live.h"

#include <stdio.h>
#include <time.h>

bool live_pause(const struct stage_env *env)
{
    struct timespec nap = {0, 5000000};
    nanosleep(&nap, NULL);
    env->tick(env->tick_ctx);
    return !atomic_load(env->stop);
}

bool live_broken(const struct stage_env *env, struct candidate *c, const char *stage)
{
    const char *why = env->ops->broken ? env->ops->broken(env->backend, c->kernel) : NULL;
    if (why)
        snprintf(c->reason, sizeof c->reason, "%s: its executor: %.200s", stage, why);
    return why != NULL;
}
