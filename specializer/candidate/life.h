/* SPDX-License-Identifier: Apache-2.0 */
/* life.h - the life of a kernel as a table of legal transitions.
 *
 *   proposed -> built -> probed -> benched -> shadowed -> canary -> active -> retired
 *        \________\________\__________\__________\_________\  refused   \-> rolled_back
 *                                                      \-> deferred -> proposed
 *   any state -> disabled (operator)
 *
 * life_move() is the only code that changes a candidate's state, and it does so after the store
 * has the transition with its evidence. A crash between the two repeats a stage; it can never
 * leave a kernel running that the store does not know about.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_LIFE_H
#define WHET_SPECIALIZER_CANDIDATE_LIFE_H

#include "config/err.h"
#include "specializer/candidate/candidate.h"

const char *life_name(enum life s); /* "rolled_back" */
int life_parse(const char *name);   /* enum life, or -1 */
bool life_allowed(enum life from, enum life to);
/* It has passed every stage at some time: it may be pinned or put back. */
bool life_admitted(enum life s);

#endif
