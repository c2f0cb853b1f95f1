/* SPDX-License-Identifier: Apache-2.0 */
/* order.h - in which order `whet tune` visits the slots it was given, and in which contexts. */
#ifndef WHET_TUNE_ORDER_H
#define WHET_TUNE_ORDER_H

#include "engine/dispatch.h"
#include "engine/plan.h"

/* The part that the slot's region must take of a step of its M (and context, for attention) on this
 * machine: its least time over that of all regions. */
double order_share(const struct model *model, const struct machine *machine,
                   const struct slot *slot);

/* Largest share first; of equals, as they were given. On a GPU attention before all others. Fused
 * regions of regions last: what they must beat is their parts as they were found. */
void order_slots(const struct model *model, const struct machine *machine, const struct slot **slot,
                 int n);

/* The context bucket in which to replay steps of a slot that has none: one of those whose attention
 * is among the n `searched` at the slot's M, another each `turn`; the shortest if there is none.
 * Not one that begins beyond `longest`, where the model ends. */
int order_context(const struct slot *const *searched, int n, const struct slot *slot, int longest,
                  int turn);

#endif
