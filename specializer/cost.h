/* cost.h - how fast a point will probably be.
 *
 *   predicted = (the larger, and a third of the smaller, of
 *                  bytes / bandwidth
 *                  operations / (peak of the instruction set x share of it in flight))
 *               x imbalance over threads or multiprocessors + boundary, times what was learned
 *
 * Machine constants are measured at start (backend). What the formula cannot know - how this CPU
 * likes a tile, a prefetch distance, a format - is learned: one log factor per template, class of
 * M, knob and value, corrected by every measurement. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_COST_H
#define WHET_SPECIALIZER_COST_H

#include "engine/plan.h"
#include "specializer/space.h"

enum { COST_CLASSES = 3 }; /* M = 1, narrow, wide: knobs act differently in each */

struct cost_effects {
    double bias;
    double knob[KNOBS_MAX][KNOB_VALUES];
};

struct cost_sample {
    int32_t template;
    float predicted, measured;
};

struct cost {
    const struct machine *machine;
    int threads;
    struct cost_effects *effects; /* [templates][COST_CLASSES] log(measured / formula) */
    struct cost_sample *sample;   /* in the order they came, predicted before learning */
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

/* Spearman's rank correlation of prediction and measurement for template `index` (-1: all); NaN
 * with fewer than 3 samples. */
double cost_correlation(const struct cost *c, int index);
double rank_correlation(const float *a, const float *b, int n);

#endif
