/* SPDX-License-Identifier: Apache-2.0 */
/* slot_list.h - specializer.slots: which slots are searched. Any thread. */
#ifndef WHET_SPECIALIZER_CANDIDATE_SLOT_LIST_H
#define WHET_SPECIALIZER_CANDIDATE_SLOT_LIST_H

#include <stdbool.h>

#include "config/err.h"
#include "engine/dispatch.h"

/* Whether `list`, comma separated names of slots and regions, has this slot. An empty one has all.
 */
bool slot_list_has(const char *list, const struct slot *slot);
/* -1, with the name that no slot and no region has. */
int slot_list_check(const char *list, struct err *err);

#endif
