/* SPDX-License-Identifier: Apache-2.0 */
/* life_move.c - see life_move.h. */
#include "specializer/store/life_move.h"

#include <stdlib.h>

#include "config/log.h"
#include "specializer/candidate/evidence.h"

/* Moves that make serving safer must not wait for a disk: the store owes them. */
static bool safety_move(enum life to)
{
    return to == LIFE_REFUSED || to == LIFE_DEFERRED || to == LIFE_ROLLED_BACK ||
           to == LIFE_DISABLED;
}

int life_move(struct store *store, struct candidate *c, enum life to, const char *why,
              const char *who, struct err *err)
{
    if (!life_allowed(c->state, to))
        return err_set(err, "kernel %s: no way from %s to %s", c->key, life_name(c->state),
                       life_name(to));
    struct record *r = xcalloc(1, sizeof *r);
    struct err failed;
    char words[EVIDENCE_WORDS];
    if (!why) {
        evidence_words(&c->evidence, to, words);
        why = words;
    }
    candidate_record(c, r);
    if (to == LIFE_ROLLED_BACK)
        r->rollbacks = ++c->rollbacks;
    int result = store_move(store, r, to, why, who, &failed);
    if (result != 0 && safety_move(to))
        store_owe(store, r, to, why, who, failed.msg);
    free(r);
    if (result != 0 && !safety_move(to)) {
        err_set(err, "kernel %s: not %s: %s", c->key, life_name(to), failed.msg);
        return -1;
    }
    if (result != 0)
        log_error("specializer", "kernel %s is %s (%s), which is not stored yet: %s", c->key,
                  life_name(to), why ? why : "no reason given", failed.msg);
    c->state = to;
    return 0;
}
