/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h - what can honestly be said about noisy paired timings.
 *
 * Pure functions; any thread.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_STATS_H
#define WHET_SPECIALIZER_CANDIDATE_STATS_H

#include <stdint.h>

#include "specializer/candidate/candidate.h"

/* Middle value (mean of the two middle ones); 0 for n = 0. Sorts `x`. */
double stats_median(double *x, int n);

/* z with P(N(0,1) < z) = p, for p in (0, 1). */
double stats_normal_quantile(double p);

struct interval {
    double mid, low, high;
};
/* Where the centre of the distribution behind x[0..n) lies: Hodges-Lehmann estimate and its
 * signed-rank confidence interval. low and high are -/+HUGE_VAL when n is too small to say. */
struct interval stats_centre(const double *x, int n, double confidence, uint64_t seed);

/* Gain a / b - 1 of paired times at the given confidence (two-sided, so `low` alone holds with
 * (1 + confidence) / 2). A low of -1 and a high of 1e9 mean "cannot say". */
struct gain stats_gain(const double *a, const double *b, int n, double confidence, uint64_t seed);

#endif
