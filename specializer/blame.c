/* SPDX-License-Identifier: Apache-2.0 */
/* blame.c - see blame.h.
 *
 * A kernel that is suspected of a crash serves on until it is suspected DEATHS_MOST times, because
 * several were in the step and the others are innocent. One that is alone under suspicion goes at
 * once: it was in its own code when the fault came, or no other kernel of the search was in that
 * step. That may be unjust, when another kernel had spoilt memory before, and then a slot is slower
 * than it could be; waiting for a second crash would cost all requests under way again.
 *
 * A process that was killed from outside has left no record, and nothing that served is blamed.
 */
#include "specializer/blame.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/crash.h"
#include "specializer/candidate/life.h"
#include "specializer/specializer_private.h"

static int move(struct store *store, struct record *r, enum life to)
{
    struct err err;
    if (!life_allowed(r->state, to))
        return -1;
    if (store_move(store, r, to, r->reason, NULL, &err) != 0) {
        log_error("specializer", "kernel %s is %s (%s), which is not stored yet: %s", r->key,
                  life_name(to), r->reason, err.msg);
        store_owe(store, r, to, r->reason, NULL, err.msg);
    }
    r->state = to;
    return 0;
}

/* Out of its slot by the way that kernels leave slots, then out for good. */
static void refuse(struct specializer *s, struct record *r, const struct crash_record *c)
{
    char often[24] = "";
    if (!c->inside && c->n > 1)
        snprintf(often, sizeof often, ", %d times", r->served_deaths);
    snprintf(r->reason, sizeof r->reason, "the server died of %.140s %s%s", c->what,
             c->inside   ? "in it"
             : c->n == 1 ? "with it alone in the step"
                         : "with it in the step",
             often);
    r->evidence.refusal = (struct refusal){.cause = CAUSE_WITHDRAWN};
    if (life_allowed(r->state, LIFE_ROLLED_BACK)) {
        r->rollbacks++;
        move(s->store, r, LIFE_ROLLED_BACK);
        atomic_fetch_add(&s->counts.rolled_back[ROLLBACK_CRASH], 1);
    }
    if (move(s->store, r, LIFE_REFUSED) == 0)
        log_warn("specializer", "%s: %s refused: %s", r->slot, r->name, r->reason);
}

/* 0, or -1 with why it is not counted. */
static int blame(struct specializer *s, const char *key, const struct crash_record *c,
                 struct err *err)
{
    struct record r;
    int known = store_get(s->store, key, &r, err), n = 0;
    if (known <= 0) { /* 0: an operator has cleared it away */
        log_warn("specializer", "the last process died of %s with kernel %s: %s", c->what, key,
                 known < 0 ? err->msg : "it is in the store no more");
        return known;
    }
    free(r.log);
    if ((n = store_served_death(s->store, key, err)) < 0 || store_get(s->store, key, &r, err) < 1)
        return -1;
    if (c->n == 1 || n >= DEATHS_MOST)
        refuse(s, &r, c);
    else
        store_trace(s->store, r.slot, key, "suspected", NULL,
                    "the server died of %s with %s in the step, %d times; %d are too many", c->what,
                    r.name, n, DEATHS_MOST);
    free(r.log);
    return 0;
}

static char *path_of(const struct specializer *s)
{
    return xasprintf("%s.crash", store_path(s->store));
}

static int blame_trials(struct specializer *s, struct err *err)
{
    int suspects = s->trials_blamed ? 0 : store_deaths(s->store, err);
    s->trials_blamed = suspects >= 0;
    if (suspects > 0)
        log_warn("specializer", "the last process ended while %d kernel%s on trial", suspects,
                 suspects == 1 ? " was" : "s were");
    return suspects < 0 ? -1 : 0;
}

/* Of those that served; goes on where it came to before. */
static int blame_serving(struct specializer *s, const struct crash_record *c, struct err *err)
{
    if (s->blamed == 0 && !s->crash_told)
        log_warn("specializer", "the last process died of %s with %d kernel%s of the search%s",
                 c->what, c->n, c->n == 1 ? "" : "s", c->inside ? ", in its code" : " in the step");
    s->crash_told = true;
    for (; s->blamed < c->n; s->blamed++)
        if (blame(s, c->kernel[s->blamed], c, err) != 0)
            return -1;
    return 0;
}

int blame_deaths(struct specializer *s, struct err *err)
{
    struct crash_record c;
    struct err why = {""};
    char *path = path_of(s);
    int rc = blame_trials(s, err);
    if (rc == 0 && crash_read(path, &c) > 0)
        rc = blame_serving(s, &c, err);
    if (rc == 0) {
        s->notes_crashes = crash_open(path, &why) == 0; /* in the place of what was read */
        if (!s->notes_crashes)
            log_warn("specializer", "a crash would not be noted: %s", why.msg);
    }
    free(path);
    return rc;
}

void blame_end(struct specializer *s)
{
    if (s->notes_crashes)
        crash_close();
    s->notes_crashes = false;
}
