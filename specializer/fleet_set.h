/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_set.h - winners of other servers in several slots, proved together. Specializer thread. */
#ifndef WHET_SPECIALIZER_FLEET_SET_H
#define WHET_SPECIALIZER_FLEET_SET_H

#include <stdbool.h>

struct specializer;
struct slot_search;

/* The slot has a winner of others that waits for a set: it is not searched meanwhile. */
bool fleet_set_waits(const struct specializer *s, const struct slot_search *p);
/* Begins a batch of one winner each, if it is time for that; `idle`: there is nothing else to do,
 * so it is. False: no batch began. */
bool fleet_set_start(struct specializer *s, bool idle);
/* A set is being built, probed and benched, or will be before long: who is promoted goes to live
 * steps with it. Never true for long. */
bool fleet_set_gathers(struct specializer *s);

#endif
