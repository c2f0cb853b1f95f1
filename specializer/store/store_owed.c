/* SPDX-License-Identifier: Apache-2.0 */
/* store_owed.c - what the store could not take and still has to say.
 *
 * A kernel that is rolled back, refused or disabled goes at once, whatever the disk says
 * (life_move.c). Its row would still call it active, and the next start would put it back, so such
 * a move is owed: it is written, in the order in which moves were made, before anything else is
 * written and when the store is closed. Until then store_get() answers as if it had been, and no
 * later move of the same kernel is taken. So are marks of kernels that left this process.
 *
 * Both lists are short: while nothing can be written no candidate begins, so only what was under
 * way or served can be on them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_sql.h"

struct owed {
    struct record r;
    enum life to;
    char *why, *who;
    char trouble[200]; /* what the store said when it did not take it */
};

static void forget(struct owed *o)
{
    free(o->r.log);
    free(o->why);
    free(o->who);
}

void store_owe(struct store *s, const struct record *r, enum life to, const char *why,
               const char *who, const char *trouble)
{
    pthread_mutex_lock(&s->lock);
    s->owed = xrealloc(s->owed, (size_t)(s->oweds + 1) * sizeof *s->owed);
    struct owed *o = &s->owed[s->oweds++];
    *o = (struct owed){.r = *r, .to = to, .why = xstrdup(why ? why : "")};
    o->who = who ? xstrdup(who) : NULL;
    o->r.log = r->log ? xstrdup(r->log) : NULL;
    snprintf(o->trouble, sizeof o->trouble, "%s", trouble);
    pthread_mutex_unlock(&s->lock);
}

/* The newest move of the kernel that is owed, or NULL. */
static const struct owed *newest(const struct store *s, const char *key)
{
    const struct owed *found = NULL;
    for (int i = 0; i < s->oweds; i++)
        if (strcmp(s->owed[i].r.key, key) == 0)
            found = &s->owed[i];
    return found;
}

const char *store_owes_locked(const struct store *s, const char *key)
{
    const struct owed *o = newest(s, key);
    return o ? o->trouble : NULL;
}

void store_overlay_owed(const struct store *s, struct record *r)
{
    const struct owed *o = newest(s, r->key);
    if (!o)
        return;
    r->state = o->to;
    r->rollbacks = o->r.rollbacks;
    r->evidence = o->r.evidence;
    memcpy(r->reason, o->r.reason, sizeof r->reason);
}

static int pay(struct store *s, const struct owed *o)
{
    int r = store_begin(s, NULL);
    if (r == 0)
        r = store_end(s, store_move_row(s, &o->r, o->to, o->why, o->who, NULL), NULL);
    return r;
}

void store_settle_locked(struct store *s)
{
    int paid = 0;
    while (paid < s->oweds && pay(s, &s->owed[paid]) == 0) {
        log_info("store", "that kernel %s is %s is stored now", s->owed[paid].r.key,
                 life_name(s->owed[paid].to));
        forget(&s->owed[paid++]);
    }
    s->oweds -= paid;
    if (paid > 0)
        memmove(s->owed, s->owed + paid, (size_t)s->oweds * sizeof *s->owed);
    store_unmark(s);
}

void store_settle(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->oweds > 0 || s->unmarkeds > 0)
        store_settle_locked(s);
    pthread_mutex_unlock(&s->lock);
}

bool store_owes(struct store *s, const char *key, struct err *why)
{
    pthread_mutex_lock(&s->lock);
    const char *trouble = store_owes_locked(s, key);
    if (trouble)
        err_set(why, "%s", trouble);
    pthread_mutex_unlock(&s->lock);
    return trouble != NULL;
}

void store_forget_owed(struct store *s)
{
    for (int i = 0; i < s->oweds; i++) {
        log_error("store", "%s: that kernel %s is %s was never stored: it cannot be written",
                  s->path, s->owed[i].r.key, life_name(s->owed[i].to));
        forget(&s->owed[i]);
    }
    free(s->owed);
}
