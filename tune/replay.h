/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - traffic for one slot where no users are: requests of made-up tokens, in such numbers
 * and lengths that the engine's steps fall into the slot. They stand in for live steps in captures,
 * shadow and canary. A thread of its own between run and stop.
 */
#ifndef WHET_TUNE_REPLAY_H
#define WHET_TUNE_REPLAY_H

#include "engine/dispatch.h"
#include "engine/engine.h"

struct replay;
/* Slots of at most `sequences` tokens: as many sequences that decode, within the context bucket
 * that ends at `context`; of more: prompts of that length, one after the other. An attention slot
 * has a bucket of its own. NULL with a message if the model's context is too short. */
struct replay *replay_new(struct engine *e, const struct slot *slot, int sequences, int context,
                          uint64_t seed, struct err *err);
/* Requests from now on; does nothing where they come already. -1: there is no thread for them. */
int replay_run(struct replay *r, struct err *err);
/* Cancels what runs and waits for its end; frees. NULL is fine. */
void replay_stop(struct replay *r);

#endif
