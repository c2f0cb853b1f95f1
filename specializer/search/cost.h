/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - how fast a point will probably be.
 *
 *   predicted = (the larger, and a third of the smaller, of
 *                  bytes / bandwidth
 *                  operations / (peak of the instruction set x share of it in flight))
 *               x imbalance over threads or multiprocessors + boundary, times what was learned
 *
 * Machine constants are measured at start (backend). What the formula cannot know - how this CPU
 * likes a tile, a prefetch distance, a format - is learned from every measurement (cost_learn.c),
 * and with it how far a prediction may be off: points like those measured are known well, families
 * that nothing was measured of are not. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_SEARCH_COST_H
#define WHET_SPECIALIZER_SEARCH_COST_H

#include "engine/plan.h"
#include "specializer/search/space.h"

struct cost_fit;

struct cost_sample {
    int32_t template;
    float predicted, measured;
};

struct cost {
    const struct machine *machine;
    int threads;
    double octaves; /* two values of a knob this far apart tell nothing of each other (roles.h) */
    uint64_t blind; /* not 0: the formula knows nothing, points differ by a lot drawn from this
                       (what an ablation measures knowledge against) */
    struct cost_fit *fit[REGION_NODES]; /* what was learned; NULL: nothing yet */
    struct cost_sample *sample;         /* in the order they came, predicted before learning */
    int samples;
};

void cost_open(struct cost *c, const struct machine *machine, int threads);
void cost_close(struct cost *c);

/* Seconds of one run at the slot's largest m: by the formula alone, and with what was learned. */
double cost_formula(const struct cost *c, const struct template *t, const struct point *p,
                    const struct facts *f);
double cost_predict(const struct cost *c, const struct template *t, const struct point *p,
                    const struct facts *f);
/* A measurement of a run; returns what had been predicted. */
double cost_learn(struct cost *c, const struct template *t, const struct point *p,
                  const struct facts *f, double measured_s);

/* What is not known about some points of a space: with what it was predicted, how far the truth may
 * be from it. Borrows cost and space; cost must not learn meanwhile. */
struct cost_doubt;
struct cost_doubt *cost_doubt_open(const struct cost *c, const struct space *s, const int32_t *id,
                                   int n);
void cost_doubt_close(struct cost_doubt *d);
/* Standard deviation of log(measured / predicted) of the i-th point. */
double cost_doubt(const struct cost_doubt *d, int i);
/* The i-th will be measured: what that will tell about the others is no longer in doubt. */
void cost_doubt_settle(struct cost_doubt *d, int i);

/* Spearman's rank correlation of prediction and measurement for template `index` (-1: all); NaN
 * with fewer than 3 samples. */
double cost_correlation(const struct cost *c, int index);
double rank_correlation(const float *a, const float *b, int n);

#endif
