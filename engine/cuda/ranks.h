/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h - what a backend of one rank of several has more. All do nothing for a rank alone. */
#ifndef WHET_ENGINE_CUDA_RANKS_H
#define WHET_ENGINE_CUDA_RANKS_H

#include "engine/backend.h"
#include "engine/cuda/memory.h"

struct walk; /* walk.h */

/* Its buffers; once there are all: what the collective sets up before its first call. */
void ranks_carve(struct backend *b, int32_t world, struct arena *a);
int ranks_prepare(struct backend *b, struct err *e);
/* What an out region adds. */
const float *ranks_residual(const struct walk *w);
/* Points a walk that is aimed at the residual stream to where out regions leave what is summed. */
void ranks_aim(struct walk *w, enum region r);
/* A node `reduce` or `gather` of the plan, on the walk's stream. */
int ranks_put_together(struct walk *w, const struct plan_node *n, struct err *e);
/* The same for a rank's part of the model by itself: what the others would have is nothing. */
int ranks_alone(struct walk *w, const struct plan_node *n, struct err *e);
/* -1 with the reason when the world is over. */
int ranks_check(const struct backend *b, struct err *e);

#endif
