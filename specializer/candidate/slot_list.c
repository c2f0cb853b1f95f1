/* SPDX-License-Identifier: Apache-2.0 */
/* slot_list.c - see slot_list.h.
 *
 * A name is a slot's ("mlp_in/m1") or a region's ("mlp_in"), which stands for all slots of it.
 * Where a region has format classes, the former stands for those of all of them, and
 * "mlp_in/m1/q6_k" for one. But for that the slots of a dispatch table are the same for every
 * model, so a list can be checked before one is there: a misspelt name is an error at start, not a
 * search that never begins.
 */
#include "specializer/candidate/slot_list.h"

#include <stdio.h>
#include <string.h>

#include "engine/plan.h"

enum { NAME_MOST = 64 };

/* The next name, without blanks around it; false at the end of the list. */
static bool next_name(const char **list, char out[NAME_MOST])
{
    *list += strspn(*list, ", ");
    size_t n = strcspn(*list, ",");
    snprintf(out, NAME_MOST, "%.*s", (int)n, *list);
    *list += n;
    for (n = strlen(out); n > 0 && out[n - 1] == ' ';)
        out[--n] = 0;
    return out[0] != 0;
}

bool slot_list_has(const char *list, const struct slot *slot)
{
    char name[NAME_MOST];
    bool empty = true;
    while (next_name(&list, name)) {
        empty = false;
        if (slot_named(slot, name) || strcmp(name, region_name(slot->region)) == 0)
            return true;
    }
    return empty;
}

int slot_list_check(const char *list, struct err *err)
{
    struct dispatch *d = dispatch_open_names();
    char name[NAME_MOST];
    bool known = true;
    while (known && next_name(&list, name)) {
        known = region_parse(name) >= 0 || dispatch_find_plain(d, name) != NULL;
    }
    dispatch_close(d);
    return known ? 0 : err_set(err, "specializer.slots: no slot or region is called \"%s\"", name);
}
