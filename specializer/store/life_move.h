/* SPDX-License-Identifier: Apache-2.0 */
/* life_move.h - a candidate goes on in its life (candidate/life.h): in the store first. */
#ifndef WHET_SPECIALIZER_STORE_LIFE_MOVE_H
#define WHET_SPECIALIZER_STORE_LIFE_MOVE_H

#include "specializer/candidate/life.h"
#include "specializer/store/store.h"

/* Writes the transition, the evidence and a trace line (`why`; NULL: the evidence in words; `who`:
 * operator's request id or NULL), then sets c->state. -1 with a message when the transition is not
 * legal or the store did not take it; the state is then unchanged. A safety move (rolled_back,
 * disabled, refused, deferred) is made even if the store fails, which is logged; the store then
 * owes it (store_owe()). */
int life_move(struct store *store, struct candidate *c, enum life to, const char *why,
              const char *who, struct err *err);

#endif
