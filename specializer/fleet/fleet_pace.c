/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_pace.c - how often a server listens and makes others listen, by how many there are.
 *
 * A notification wakes every server of the environment, and each asks the database: with N servers
 * that say something now and then, N times N questions, and as many deliveries. So all together
 * listen LISTENS_S times a second at most because of notifications of kernels, and DELIVERIES_S of
 * those are made: who was just notified itself notifies nobody. Whoever listens hears all that is
 * new, so what is said without a notification is heard with the next one, and at the latest by who
 * listens every few seconds in any case.
 *
 * Of kernels that are wrong each notification is sent, and heard by itself, by one small statement;
 * only the moment is drawn by lot, so that hundreds do not ask at once.
 */
#include <sys/random.h>

#include "config/clock.h"
#include "specializer/fleet/fleet_private.h"

#define HEARD_S 0.2 /* between two times that one server listens: anybody may notify */
#define LISTENS_S 50.0
#define DELIVERIES_S 500.0
/* The moments in which servers hear of what is wrong: of 200 and more, and for each of fewer. */
#define SPREAD_S 1.0
#define SPREAD_EACH_S 0.005
#define BEAT_PAUSE_S 1.0
#define BEATS_EACH_S 0.02 /* and in which they say that they did */

double fleet_by_lot(double seconds)
{
    unsigned short random = 0;
    if (getrandom(&random, sizeof random, 0) < 0)
        random = 32768;
    return seconds * random / 65536.0;
}

double fleet_listen_pause(int servers)
{
    double s = servers / LISTENS_S;
    return s < HEARD_S ? HEARD_S : s < FLEET_PULL_S ? s : FLEET_PULL_S;
}

double fleet_hearing_spread(int servers)
{
    double s = servers * SPREAD_EACH_S;
    return s < SPREAD_S ? s : SPREAD_S;
}

static void not_later(int64_t *due_ns, int64_t last_ns, double pause_s, double lot_s)
{
    int64_t now = clock_ns(), soonest = last_ns + (int64_t)(pause_s * 1e9);
    int64_t at = (soonest > now ? soonest : now) + (int64_t)(lot_s * 1e9);
    *due_ns = *due_ns < at ? *due_ns : at;
}

void fleet_listen_soon(struct fleet *f, unsigned notes)
{
    double pause_s = fleet_listen_pause(f->servers);
    if (notes & FLEET_NOTE_WRONG)
        not_later(&f->wrong_due_ns, f->wrong_ns, HEARD_S,
                  fleet_by_lot(fleet_hearing_spread(f->servers)));
    if (notes & FLEET_NOTE_KERNEL) {
        f->noted_ns = clock_ns();
        not_later(&f->pull_due_ns, f->pulled_ns, pause_s, fleet_by_lot(pause_s - HEARD_S));
    }
}

void fleet_heard(struct fleet *f)
{
    not_later(&f->beat_due_ns, clock_ns(), BEAT_PAUSE_S, fleet_by_lot(BEATS_EACH_S * f->servers));
}

bool fleet_may_notify(struct fleet *f)
{
    int64_t pause_ns = (int64_t)(f->servers / DELIVERIES_S * 1e9), now = clock_ns();
    if (fleet_listen_pause(f->servers) >= FLEET_PULL_S || now < f->noted_ns + pause_ns)
        return false;
    f->noted_ns = now;
    return true;
}
