/* SPDX-License-Identifier: Apache-2.0 */
/* opening_share.h - how much of the time an opening may take from steps: as much as it gains.
 *
 * An opening that lasts T and takes the share x of the time loses x T of steps. If steps are faster
 * by the gain g afterwards, this is paid back after x T / g. So with x = g it is paid back within
 * as long as it lasted, whatever T is, and nobody is slowed down by more than what is coming.
 *
 * What is coming is not known before the benches. Each slot begins with a promise: a part of what
 * its point saved where it is known, or the little that a START row is good for. The benches
 * correct the promises of the slots that wait for theirs, so that after the first of them the
 * opening hurries or takes its time.
 *
 * Pure arithmetic; parts of the time are of what eager kernels take. Specializer thread.
 */
#ifndef WHET_SPECIALIZER_OPENING_SHARE_H
#define WHET_SPECIALIZER_OPENING_SHARE_H

#include <stdbool.h>

enum { OPENING_SLOTS = 6 };

struct opening_slot {
    int slot;       /* whose it is: the caller's number */
    double share;   /* of the time of steps */
    double saves;   /* part of the slot's time: promised, then measured */
    double promise; /* the former, which stays */
    bool measured;
};

struct opening_slots {
    struct opening_slot of[OPENING_SLOTS];
    int n;
};

/* The part of its time that a slot may save by a first point that was so much faster than eager
 * elsewhere; `speed` 0: nobody has measured it. `reads`: reading memory is the machine's limit for
 * the region. */
double opening_promise(double speed, bool reads);
/* Does nothing beyond OPENING_SLOTS slots. */
void opening_promised(struct opening_slots *o, int slot, double share, double promise);
/* Its candidate is so much faster than eager; 1, too, if it was refused. Slots that are not of the
 * opening change nothing. */
void opening_measured(struct opening_slots *o, int slot, double speed);
/* How much faster steps are expected to be in the end: 0.1 is 10 %. */
double opening_gain(const struct opening_slots *o);
/* What children may be given: the gain less what they cost without it, within what those of a
 * search are given anyway and what the operator lets an opening take. */
double opening_share(const struct opening_slots *o, double least, double most);

#endif
