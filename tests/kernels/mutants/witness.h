/* SPDX-License-Identifier: Apache-2.0 */
/* witness.h - does a mutant compute something else? Found out without any of the admission's rules.
 *
 * The original kernel runs first, on many inputs; what it answers is kept, bit for bit. A mutant
 * then gets the same inputs. Its seeds, shapes and teams are not those of the admission, there are
 * several times as many of them, and no tolerance decides: equal bits everywhere are no change.
 * Where bits differ, the distance of both to the double-precision oracle says whether the mutant is
 * wrong or rounds another way. One thread.
 */
#ifndef WHET_TESTS_KERNELS_MUTANTS_WITNESS_H
#define WHET_TESTS_KERNELS_MUTANTS_WITNESS_H

#include "specializer/admission/check_plan.h"

enum change {
    CHANGE_NONE,     /* the original's bits in every run */
    CHANGE_ROUNDING, /* other bits, as near to the truth as the original within twice its error */
    CHANGE_WRONG     /* a crash, a hang, damage, values not written, or farther from the truth */
};

struct witness;

/* Runs the original. NULL with what it did wrong. */
struct witness *witness_open(const struct model *model, const struct check_range *range,
                             const char *object, uint64_t seed, struct err *err);
void witness_close(struct witness *w);
/* Runs a mutant; `what` says on which input it was caught. */
enum change witness_look(struct witness *w, const char *object, struct err *what);

#endif
