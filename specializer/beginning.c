/* SPDX-License-Identifier: Apache-2.0 */
/* beginning.c - what the specializer's thread does before its first turn: it looks at the machine,
 * hears what operators and the last process left, and brings the store's winners back. If that
 * ended the processes before this one it is put off (start_guard.h).
 */
#include <stdlib.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/blame.h"
#include "specializer/operators.h"
#include "specializer/restore.h"
#include "specializer/retrial.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/start_guard.h"
#include "specializer/why.h"

/* What operators forbade and what the last process died of must not come back because a store could
 * not be used for a moment. Until it can, eager serves. */
static void hear_the_past(struct specializer *s)
{
    struct err err = {""};
    bool told = false;
    while (!atomic_load(&s->stop) && engine_state(s->engine, NULL, NULL, 0) != ENGINE_LOST &&
           (blame_deaths(s, &err) != 0 || operators_read(s, &err) != 0)) {
        if (!told)
            log_error(
                "specializer",
                "%s: no kernel is searched for or comes back until it is known what operators "
                "pinned and disabled, and noted what the last process died of",
                err.msg);
        told = true;
        specializer_wait(s, NAP_S);
    }
    if (told && atomic_load(&s->ready))
        log_info("specializer", "the store can be used again");
}

/* Whether there is anything to do, and all that has to be known for it. */
static bool prepare(struct specializer *s)
{
    specializer_setup(s);
    hear_the_past(s);
    if (!atomic_load(&s->ready))
        return false;
    if (!s->enabled) {
        if (s->config->specializer_enabled)
            log_info("specializer",
                     "off: backend %s has eager kernels where several ranks compute "
                     "a model",
                     s->env.ops->name);
        else
            log_info("specializer", "off (specializer.enabled): the eager kernels serve");
        return false;
    }
    atomic_store(&s->doing, DOING_RESTORE);
    restore_winners(s);
    retrials_recall(s);
    why_recall(s);
    return true;
}

/* Until an operator or the time says go on; false: the server stops. */
static bool hold_back(struct specializer *s, int ended)
{
    double wait_s = start_guard_wait_s(ended);
    int64_t until = clock_ns() + (int64_t)(wait_s * 1e9);
    char *why =
        xasprintf("the last %d processes ended before stored kernels were back; it tries again "
                  "in %.0f minutes, or after POST /admin/specializer/resume",
                  ended, wait_s / 60);
    log_error("specializer", "held back, eager kernels serve: %s", why);
    store_trace(s->store, NULL, NULL, "held_back", NULL, "%s", why);
    free(why);
    atomic_store(&s->go_on, false); /* said before anybody was told of this */
    atomic_store(&s->doing, DOING_HELD);
    while (!atomic_load(&s->stop) && !atomic_load(&s->go_on) && clock_ns() < until)
        specializer_wait(s, NAP_S);
    return !atomic_load(&s->stop);
}

bool specializer_begin(struct specializer *s)
{
    char *path = xasprintf("%s.start", store_path(s->store));
    int ended = start_guard_ended(path);
    bool began = false;
    if (ended < START_ENDS || hold_back(s, ended)) {
        if (start_guard_begin(path, ended) != 0)
            log_warn("specializer",
                     "%s cannot be written: processes that end while it begins are not counted",
                     path);
        atomic_store(&s->doing, DOING_WAIT);
        began = prepare(s);
        start_guard_end(path);
    }
    free(path);
    return began;
}
