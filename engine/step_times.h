/* SPDX-License-Identifier: Apache-2.0 */
/* step_times.h - how long decode steps of a width take, learned from those that ran.
 *
 * A width is the number of tokens in a step. Widths that were never seen are interpolated between
 * those that were; beyond the widest, each token is thought to cost a little more, so that a width
 * is tried once. Engine thread only.
 */
#ifndef WHET_ENGINE_STEP_TIMES_H
#define WHET_ENGINE_STEP_TIMES_H

#include <stdbool.h>
#include <stdint.h>

/* Widths that are told apart; wider steps are taken for so many times this one. */
enum { STEP_TIMES_WIDTH = 64 };

struct step_times {
    double ns[STEP_TIMES_WIDTH + 1]; /* 0: not known */
};

void step_times_learn(struct step_times *t, int32_t width, int64_t ns);
void step_times_forget(struct step_times *t);
/* Whether any width is known. */
bool step_times_known(const struct step_times *t);
/* Nanoseconds; where no width is known, multiples of an unknown unit. */
double step_times_ns(const struct step_times *t, int32_t width);

#endif
