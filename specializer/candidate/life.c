/* life.c - see life.h. The table below is the law; everything else asks it.
 *
 * Beyond the forward path: most states may fall back to proposed (a stage is repeated after a
 * restart, what was rolled back or adjourned is looked at again, or an operator enabled the
 * kernel), and what is retired may become active again after it was re-validated (a pin, or a
 * rollback to the kernel before). A refusal is final.
 */
#include "specializer/candidate/life.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/candidate/evidence.h"
#include "specializer/search/space.h"
#include "specializer/store/store.h"

#define TO(s) (1u << LIFE_##s)

static const struct {
    const char *name;
    unsigned next;
} table[LIFE_COUNT] = {
    [LIFE_PROPOSED] = {"proposed", TO(BUILT) | TO(REFUSED) | TO(DISABLED)},
    [LIFE_BUILT] = {"built", TO(PROBED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_PROBED] = {"probed", TO(BENCHED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_BENCHED] = {"benched", TO(SHADOWED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_SHADOWED] = {"shadowed",
                       TO(CANARY) | TO(ADJOURNED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_CANARY] = {"canary", TO(ACTIVE) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_ACTIVE] = {"active", TO(RETIRED) | TO(ROLLED_BACK) | TO(DISABLED)},
    [LIFE_RETIRED] = {"retired", TO(ACTIVE) | TO(ROLLED_BACK) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_ADJOURNED] = {"adjourned", TO(PROPOSED) | TO(DISABLED)},
    [LIFE_REFUSED] = {"refused", TO(DISABLED)},
    [LIFE_ROLLED_BACK] = {"rolled_back", TO(PROPOSED) | TO(REFUSED) | TO(DISABLED)},
    [LIFE_DISABLED] = {"disabled", TO(PROPOSED)},
};

const char *life_name(enum life s)
{
    return (unsigned)s < LIFE_COUNT ? table[s].name : "unknown";
}

int life_parse(const char *name)
{
    for (int i = 0; i < LIFE_COUNT; i++)
        if (strcmp(name, table[i].name) == 0)
            return i;
    return -1;
}

bool life_allowed(enum life from, enum life to)
{
    return (unsigned)from < LIFE_COUNT && (unsigned)to < LIFE_COUNT && (table[from].next >> to & 1);
}

bool life_admitted(enum life s)
{
    return s == LIFE_CANARY || s == LIFE_ACTIVE || s == LIFE_RETIRED;
}

/* Moves that make serving safer must not wait for a disk. */
static bool safety_move(enum life to)
{
    return to == LIFE_REFUSED || to == LIFE_ADJOURNED || to == LIFE_ROLLED_BACK ||
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
    free(r);
    if (result != 0 && !safety_move(to)) {
        err_set(err, "kernel %s: not %s: %s", c->key, life_name(to), failed.msg);
        return -1;
    }
    if (result != 0)
        log_error("specializer", "kernel %s is %s (%s), which could not be stored: %s", c->key,
                  life_name(to), why ? why : "no reason given", failed.msg);
    c->state = to;
    return 0;
}
