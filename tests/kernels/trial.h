/* SPDX-License-Identifier: Apache-2.0 */
/* trial.h - one point of one template: compiled, run on many inputs, held to eager and the oracle.
 *
 * Of each point it is demanded that
 *
 *   - its error against the oracle is at most twice the eager kernel's, or within the declared
 *     precision where fewer digits than float's are legal only under `reduced`
 *   - it damages nothing (guard bands, inputs, other tokens' cache rows)
 *   - the same inputs give the same bits again
 *   - where the table says BITEQ, the bits are the eager kernel's
 *
 * for M up to the bucket's edge and teams of 1 to 3 threads. A kernel may crash: run a trial in a
 * process of its own.
 */
#ifndef WHET_TESTS_KERNELS_TRIAL_H
#define WHET_TESTS_KERNELS_TRIAL_H

#include "specializer/search/space.h"

struct trial {
    const struct template *t;
    const struct model *model;
    struct facts facts;
    struct point point;
    int kind, width; /* which model, which bucket */
    uint64_t seed;
    char text[200];
};

/* Fills tr->text: template, model, M and knobs. */
void trial_describe(struct trial *tr);
/* `dir` holds the kernels' sources; the object is made there and removed. 0, or -1 with what was
 * wrong. What a failed check held stays allocated: the process ends with it. */
int trial_run(const struct trial *tr, const char *dir, struct err *err);

#endif
