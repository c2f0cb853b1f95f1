/* SPDX-License-Identifier: Apache-2.0 */
/* life.c - see life.h. The table below is the law; everything else asks it.
 *
 * Beyond the forward path: most states may fall back to proposed (a stage is repeated after a
 * restart, what was rolled back or deferred is looked at again, or an operator enabled the
 * kernel), and what is retired may become active again after it was re-validated (a pin, or a
 * rollback to the kernel before). A refusal is final.
 */
#include "specializer/candidate/life.h"

#include <string.h>

#include "config/table.h"

#define TO(s) (1u << LIFE_##s)

static const struct {
    const char *name;
    unsigned next;
} table[] = {
    [LIFE_PROPOSED] = {"proposed", TO(BUILT) | TO(REFUSED) | TO(DISABLED)},
    [LIFE_BUILT] = {"built", TO(PROBED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_PROBED] = {"probed", TO(BENCHED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_BENCHED] = {"benched", TO(SHADOWED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_SHADOWED] = {"shadowed",
                       TO(CANARY) | TO(DEFERRED) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_CANARY] = {"canary", TO(ACTIVE) | TO(REFUSED) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_ACTIVE] = {"active", TO(RETIRED) | TO(ROLLED_BACK) | TO(DISABLED)},
    [LIFE_RETIRED] = {"retired", TO(ACTIVE) | TO(ROLLED_BACK) | TO(DISABLED) | TO(PROPOSED)},
    [LIFE_DEFERRED] = {"deferred", TO(PROPOSED) | TO(DISABLED)},
    [LIFE_REFUSED] = {"refused", TO(DISABLED)},
    [LIFE_ROLLED_BACK] = {"rolled_back", TO(PROPOSED) | TO(REFUSED) | TO(DISABLED)},
    [LIFE_DISABLED] = {"disabled", TO(PROPOSED)},
};
EVERY_ROW(table, LIFE_COUNT);

const char *life_name(enum life s)
{
    return (unsigned)s < LIFE_COUNT ? table[s].name : "unknown";
}

int life_parse(const char *name)
{
    if (strcmp(name, "adjourned") == 0) /* in stores written before 0.2 */
        return LIFE_DEFERRED;
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
