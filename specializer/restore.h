/* SPDX-License-Identifier: Apache-2.0 */
/* restore.h - winners of the store and pinned kernels come back, validated. Specializer
 * thread. */
#ifndef WHET_SPECIALIZER_RESTORE_H
#define WHET_SPECIALIZER_RESTORE_H

struct candidate;
struct record;
struct slot_search;
struct specializer;

void restore_winners(struct specializer *s);
void restore_pins(struct specializer *s); /* pinned kernels that are not loaded */
/* A candidate made from a stored row if its key still is what we would compute; NULL otherwise. */
struct candidate *restore_candidate(struct specializer *s, struct slot_search *p,
                                    const struct record *r);

#endif
