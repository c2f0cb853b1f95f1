/* SPDX-License-Identifier: Apache-2.0 */
/* consult.h - asking for advice on a slot. Specializer thread. */
#ifndef WHET_SPECIALIZER_CONSULT_H
#define WHET_SPECIALIZER_CONSULT_H

#include "specializer/search/strategy.h"

struct specializer;
struct slot_search;

/* What the adviser is told about the slot under consideration; valid until the next consult(). */
enum { LIVES = 24, DEADS = 12, LESSONS = 18 };
struct consultation {
    struct advice_request request;
    struct live_shape live[LIVES];
    struct dead_end dead[DEADS];
    struct lesson lesson[LESSONS];
    struct mover mover;
};

/* Predictions anew, and p->advice with what the adviser says now; never waits. */
void consult(struct specializer *s, struct slot_search *p);
/* Asks a language model about a slot that may be searched next, so that it can think meanwhile:
 * now, or if it thinks about another question, when consult_meanwhile() finds that answered. */
void consult_ahead(struct specializer *s, struct slot_search *p);
/* While a batch runs. Asks what consult_ahead() could not. */
void consult_meanwhile(struct specializer *s);

#endif
