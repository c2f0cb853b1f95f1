/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_offer.h - which winner of other servers is worth its proof here.
 *
 * Plain data in and out; scripts/bench-fleet asks the same function as servers do.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_OFFER_H
#define WHET_SPECIALIZER_FLEET_FLEET_OFFER_H

#include <stdbool.h>
#include <stdint.h>

/* What one server says of a point: its speed over eager, and whether it is one to begin with
 * (fleet_row_offered()). */
struct fleet_word {
    int32_t id;
    double speed;
    bool won;
};

/* What is known here. */
struct fleet_offer_ask {
    const struct fleet_word *word; /* [words] of all servers but this */
    int words;
    int32_t serving; /* -1: eager, or a kernel that is no point of the space */
    double seen;     /* its speed over eager as measured here */
    /* How often this server measured a point, with the last speed; -1: it may not be tried. */
    int (*trials)(void *ctx, int32_t id, double *speed);
    void *ctx;
    /* Where eager serves so much is enough, over it: for drills and tests that are about something
     * else than speed (specializer.min_gain below 0). 0: nothing below what is a gain. */
    double enough;
};

/* The best winner of others: its point, or -1, and its speed over what serves here, each of them
 * the median of what all servers that measured it say. */
int32_t fleet_offer_best(const struct fleet_offer_ask *ask, double *gain);

/* Candidates of a batch where other servers search too: what they find arrives between batches. */
enum { FLEET_BATCH = 4 };

/* Whether offers (their gains, as above: 1 is none; for how long each has waited) are worth live
 * steps now, which all of them share: what waiting has cost, or the time of one, is enough. */
bool fleet_offers_due(const double *gain, const double *wait_s, int n);

#endif
