/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_leases.c - which slots this server asks the fleet for.
 *
 * It asks for leases on the slots that may be searched, the worthiest first. The slot that is
 * leased already stands before others that are worth little more, so that servers do not trade
 * slots over noise; nothing else keeps it in front, not even a batch that is under way there: that
 * batch runs to its end, and meanwhile the lease moves on. Whoever gets the slot knows which of its
 * points are being tried.
 */
#include "specializer/fleet_loop.h"
#include "specializer/specializer_private.h"

#define HELD_WORTH 1.25 /* times its own: what a leased slot counts for among others */
enum { SLOTS_MOST = 64 };

/* The worth of a slot as in observe_worth(), with the measurements of others counted as own ones.
 * It only orders slots: whether a slot is searched at all depends on this server's measurements
 * alone, or a server that joins late would never prove what the others found. */
static double worth_of_all(struct specializer *s, const struct slot_search *p)
{
    return observe_worth(&s->observe, (int)(p - s->slot_search), p->measured + p->fleet.measured,
                         p->dry + p->fleet.dry);
}

struct wish {
    const char *slot;
    double worth;
};

/* Puts `w` among the `n` worthiest, in their order, if it is one; how many there are then. */
static int add(struct wish best[SLOTS_MOST], int n, struct wish w)
{
    if (n == SLOTS_MOST && best[n - 1].worth >= w.worth)
        return n;
    int at = n < SLOTS_MOST ? n++ : n - 1;
    for (; at > 0 && best[at - 1].worth < w.worth; at--)
        best[at] = best[at - 1];
    best[at] = w;
    return n;
}

void fleet_leases_ask(struct specializer *s)
{
    const char *slot[SLOTS_MOST];
    struct wish best[SLOTS_MOST];
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (!search_batch_has(s, p) &&
            (p->locked.worth < OBSERVE_LEAST || !slot_choosable_locked(s, p)))
            continue;
        double held = fleet_leased(s->fleet, p->slot->name) ? HELD_WORTH : 1;
        n = add(best, n, (struct wish){p->slot->name, held * worth_of_all(s, p)});
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n; i++)
        slot[i] = best[i].slot;
    fleet_wish(s->fleet, slot, n);
    for (int i = 0; i < s->slot_searches; i++)
        s->slot_search[i].fleet.elsewhere = fleet_elsewhere(s->fleet, s->slot_search[i].slot->name);
}
