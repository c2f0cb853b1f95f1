/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_room.c - which word of others is missed least, where a slot has more than are kept.
 *
 * A winner that is told of must always find room: with many servers all that a slot has are winners
 * and those that were, for months.
 */
#include <string.h>

#include "specializer/fleet/fleet_private.h"

bool fleet_distrusted(const struct fleet *f, const char *server)
{
    for (int i = 0; i < f->peers; i++)
        if (strcmp(f->peer[i].server, server) == 0)
            return f->peer[i].misses >= MISSES_ENOUGH && f->peer[i].misses > f->peer[i].hits;
    return false;
}

bool fleet_serves(const struct serving *s, const char *key)
{
    bool so = false;
    for (int i = 0; i < s->n && !so; i++)
        so = strcmp(s->key[i], key) == 0;
    return so;
}

/* How many servers' words about a kernel that serves here are kept before any of them is too many.
 */
enum { WORDS_ENOUGH = 3 };

static int words_about(const struct slot_rows *s, const char *key)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += memcmp(s->row[i].key, key, KEY_HEX) == 0;
    return n;
}

/* What is missed least, first. */
enum use { OF_NO_USE, NEVER_WON, RETIRED, WON, SERVES_HERE };

static enum use use_of(const struct fleet *f, const struct fleet_row *r,
                       const struct serving *serving)
{
    return fleet_distrusted(f, r->server)  ? OF_NO_USE
           : !fleet_row_won(r)             ? NEVER_WON
           : fleet_serves(serving, r->key) ? SERVES_HERE
           : r->state == LIFE_RETIRED      ? RETIRED
                                           : WON;
}

/* Of two rows of the same use: what was only measured goes by its age, a winner by its speed. */
static bool goes_before(const struct fleet_row *a, const struct fleet_row *b)
{
    return fleet_row_won(a) && a->speed != b->speed ? a->speed < b->speed : a->seq < b->seq;
}

/* One of the words about the kernel of which most is said: the oldest of them. NULL: of none, or of
 * none that serves here, is too much said. */
static struct fleet_row *one_of_many(struct slot_rows *s, const struct fleet_row *newest,
                                     const struct serving *serving)
{
    struct fleet_row *found = NULL;
    int most = 1;
    for (int i = 0; i < s->n; i++) {
        struct fleet_row *have = &s->row[i];
        int n = have == newest ? 0 : words_about(s, have->key);
        if (n < 2 || n < most || (fleet_serves(serving, have->key) && n <= WORDS_ENOUGH))
            continue;
        if (n > most || have->seq < found->seq)
            found = have;
        most = n;
    }
    return found;
}

/* The row that is missed least of those that `r` may displace. Lock held. */
static struct fleet_row *least_missed(const struct fleet *f, struct slot_rows *s,
                                      const struct fleet_row *newest, enum use most,
                                      const struct serving *serving)
{
    struct fleet_row *goes = NULL;
    enum use least = most;
    for (int i = 0; i < s->n; i++) {
        struct fleet_row *have = &s->row[i];
        enum use use = use_of(f, have, serving);
        if (have == newest || use > least)
            continue;
        if (!goes || use < least || goes_before(have, goes))
            goes = have;
        least = use;
    }
    return goes;
}

struct fleet_row *fleet_who_goes(const struct fleet *f, struct slot_rows *s,
                                 const struct fleet_row *r, const struct serving *serving)
{
    const struct fleet_row *newest = &s->row[0];
    enum use use = use_of(f, r, serving), most = use == SERVES_HERE ? WON : use;
    for (int i = 1; i < s->n; i++)
        newest = s->row[i].seq > newest->seq ? &s->row[i] : newest;
    struct fleet_row *goes = least_missed(f, s, newest, most, serving);
    if (most == WON && (!goes || use_of(f, goes, serving) == WON)) {
        struct fleet_row *spare = one_of_many(s, newest, serving);
        goes = spare ? spare : goes;
    }
    /* What was there when the connection began comes from the newest on. */
    bool behind = goes && r->seq < newest->seq && use_of(f, goes, serving) == use;
    return behind && goes_before(r, goes) ? NULL : goes;
}
