/* SPDX-License-Identifier: Apache-2.0 */
/* unbuilt.c - see unbuilt.h. What is always in the way of a text's compiler is the text's doing, or
 * might as well be: it makes the compiler say what it says when it was killed, or take all memory.
 * A full disk is in everybody's way and counts against nobody. Points are our own templates': what
 * is in their way is the machine, whose other work may keep a compiler from ending in time.
 *
 * A probe that is killed is of another kind: what it runs decides how much memory it takes, and the
 * system kills it in a cgroup that it shares with the server. So its deaths count for points, too,
 * and over restarts, which they may be the cause of. */
#include "specializer/unbuilt.h"

#include <stdio.h>
#include <string.h>

#include "config/log.h"
#include "specializer/build/build.h"

/* This time included. The one that was not built longest ago is forgotten first. */
static int count(struct unbuilts *u, const char *key)
{
    struct unbuilt *found = u->of;
    for (int i = 1; i < UNBUILT_KNOWN && strcmp(found->key, key) != 0; i++)
        if (strcmp(u->of[i].key, key) == 0 || u->of[i].at < found->at)
            found = &u->of[i];
    if (strcmp(found->key, key) != 0)
        found->n = 0;
    snprintf(found->key, sizeof found->key, "%s", key);
    found->at = ++u->all;
    return ++found->n;
}

enum stage_result unbuilt_came(struct unbuilts *u, struct candidate *c)
{
    char why[160];
    if (!c->body[0] || !build_has_room(c->object) || count(u, c->key) < UNBUILT_MOST)
        return STAGE_RETRY;
    snprintf(why, sizeof why, "%s", c->reason);
    candidate_explain(c, STAGE_BUILD, CAUSE_OTHER, 0, "not built in %d tries; %s", UNBUILT_MOST,
                      why);
    return STAGE_REFUSE;
}

enum stage_result unprobed_came(struct store *store, struct candidate *c)
{
    struct err err = {""};
    char why[160];
    int n = store_probe_death(store, c->key, &err);
    if (n < 0)
        log_warn("specializer", "%s: its probe died, which is not counted: %s", c->name, err.msg);
    if (n < PROBE_DEATHS_MOST)
        return STAGE_RETRY;
    snprintf(why, sizeof why, "%s", c->reason);
    candidate_explain(c, STAGE_PROBE, CAUSE_OTHER, 0, "died %d times without a verdict; %s", n,
                      why);
    return STAGE_REFUSE;
}
