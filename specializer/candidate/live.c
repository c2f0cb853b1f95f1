/* SPDX-License-Identifier: Apache-2.0 */
/* live.c - see live.h. */
#include "specializer/candidate/live.h"

#include <stdio.h>
#include <time.h>

#include "config/clock.h"
#include "engine/tuning.h"

/* Steps without the slot, in a row, after which it is too rare to wait for. */
enum { PASSED_MOST = 256 };
static const int64_t stuck_ns = INT64_C(30000000000); /* no step is that long */

bool live_pause(const struct stage_env *env)
{
    struct timespec nap = {0, 5000000};
    nanosleep(&nap, NULL);
    env->tick(env->tick_ctx);
    return !atomic_load(env->stop);
}

bool live_broken(const struct stage_env *env, struct candidate *c, enum stage stage)
{
    const char *why = env->ops->broken ? env->ops->broken(env->backend, c->kernel) : NULL;
    if (why)
        candidate_explain(c, stage, CAUSE_OTHER, 0, "its executor: %.200s", why);
    return why != NULL;
}

/* Steps that ran the region of `slot`, in whichever slot. A step runs a slot of every format class:
 * the first one counts for all. */
static uint64_t region_steps(const struct stage_env *env, const struct slot *slot)
{
    const struct formats *formats = dispatch_formats(env->dispatch);
    uint64_t all = 0;
    for (int i = 0; i < dispatch_slots(env->dispatch); i++) {
        const struct slot *s = dispatch_slot_at(env->dispatch, i);
        if (s->region == slot->region && s->formats == formats_class(formats, s->region, s->m, 0))
            all += atomic_load_explicit(&s->counters.steps, memory_order_relaxed);
    }
    return all;
}

void patience_begin(struct patience *p, const struct stage_env *env, const struct slot *slot,
                    double seconds)
{
    *p = (struct patience){.env = env, .slot = slot, .least_ns = (int64_t)(seconds * 1e9)};
    p->since_ns = p->step_ns = clock_ns();
    p->own = atomic_load(&slot->counters.steps);
    p->all = p->passed = region_steps(env, slot);
}

bool patience_spent(const struct patience *p)
{
    return clock_ns() - p->since_ns >= p->least_ns;
}

bool patience_over(struct patience *p)
{
    int64_t now = clock_ns();
    uint64_t own = atomic_load(&p->slot->counters.steps), all = region_steps(p->env, p->slot);
    if (all != p->all)
        p->step_ns = now;
    if (own != p->own)
        p->passed = all;
    p->all = all;
    p->own = own;
    if (!patience_spent(p))
        return false;
    bool working = engine_load(p->env->engine) > 0 && p->least_ns < stuck_ns;
    return patience_passed(p) >= PASSED_MOST ||
           now - p->step_ns >= (working ? stuck_ns : p->least_ns);
}

uint64_t patience_passed(const struct patience *p)
{
    return p->all - p->passed;
}
