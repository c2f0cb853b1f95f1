/* SPDX-License-Identifier: Apache-2.0 */
/* case_random.h - the random numbers of cases: activations by kind of fill, weights by format. */
#ifndef WHET_ENGINE_CPU_CASE_RANDOM_H
#define WHET_ENGINE_CPU_CASE_RANDOM_H

#include "engine/cpu/case.h"

/* splitmix64: a stream of words from a seed. */
struct random {
    uint64_t state;
};
uint64_t random_u64(struct random *r);
double random_unit(struct random *r);  /* [0, 1) */
float random_normal(struct random *r); /* mean 0, deviation 1, within +-3.5 */
int32_t random_below(struct random *r, int32_t n);

/* rows x cols values as `fill` says; the outlier channel is the same in all rows. */
void random_rows(struct random *r, enum fill fill, float *dst, int64_t rows, int64_t cols);

/* Fills `dst` (dtype_bytes of the matrix) with blocks of w's format, deviation about
 * 1/sqrt(cols); `integers`: whole numbers instead, small enough that sums of 0/1 inputs are exact
 * in float. */
void random_weight(struct random *r, const struct weight *w, void *dst, bool integers);

#endif
