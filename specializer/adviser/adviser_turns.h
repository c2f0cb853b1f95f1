/* adviser_turns.h - whose turn it is on the adviser's one line: a question for advice, or one for
 * moves.
 *
 * A round asks for advice when it begins and for moves when its points are chosen, so without turns
 * moves would always find the line taken. Moves that did have the next turn. Used by the adviser
 * and by the ablation's model of it.
 */
#ifndef WHET_SPECIALIZER_ADVISER_TURNS_H
#define WHET_SPECIALIZER_ADVISER_TURNS_H

#include <stdbool.h>

struct turns {
    bool moves_wait; /* they found the line taken */
};

/* The line is free, and advice on a slot is wanted of which `decided` points are known. False: it
 * is the turn of moves, which this very round will ask for. They have no use for a slot of which
 * nothing is known. */
static inline bool turn_of_advice(struct turns *t, int decided)
{
    bool yield = t->moves_wait && decided > 0;
    if (yield)
        t->moves_wait = false; /* once: the tree may have nothing left to ask about */
    return !yield;
}

/* Moves are wanted, and the line is taken, or not. */
static inline void turn_of_moves(struct turns *t, bool taken)
{
    t->moves_wait = taken;
}

#endif
