/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_turns.h - when a slot is worth a question, and whose turn it is on the adviser's one
 * line.
 *
 * A question about a slot of which nothing is known can only be answered with the cost model's own
 * order, so it waits until something was measured there, or in a slot that can teach it; and it is
 * put again when a batch that was chosen since has disappointed. A batch asks for advice when it
 * begins and for moves when its points are chosen, so without turns moves would always find the
 * line taken: moves that did have the next turn. Used by the adviser and by the ablation's model of
 * it.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_TURNS_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_TURNS_H

#include "specializer/adviser/adviser.h"

/* How far a slot's search has come. */
struct standing {
    int decided; /* points measured or refused */
    double best; /* speed of the fastest */
};
struct standing standing_of(const struct advice_request *r);

/* There is something that a language model could know more from than the cost model does. */
bool is_worth_asking(const struct advice_request *r, const struct standing *now);
/* And of steps from its nodes: what other slots taught names points, not which knob of this one
 * pays.
 */
bool is_worth_asking_moves(const struct standing *now);
/* What came since an answer can change it: a batch without a gain, or many points. */
bool is_worth_asking_again(const struct standing *then, const struct standing *now);

struct turns {
    bool moves_wait; /* they found the line taken */
};
/* The line is free, and advice on a slot is wanted of which `decided` points are known. False: it
 * is the turn of moves, which this very batch will ask for. They have no use for a slot of which
 * nothing is known. */
bool turn_of_advice(struct turns *t, int decided);
/* Moves are wanted, and the line is taken, or not. */
void turn_of_moves(struct turns *t, bool taken);

#endif
