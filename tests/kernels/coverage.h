/* coverage.h - how much a few points show of what there is to show.
 *
 * A point has a value for each knob, a model, a width: its features, as small numbers. What breaks
 * a kernel is nearly always one value or two that meet, so a sample is worth the values and pairs
 * of values that are in it. Of several random points the one that adds most is taken: eight so
 * chosen show more values than sixteen drawn blindly, and three quarters of their pairs, at half
 * the compiler's time. One thread.
 */
#ifndef WHET_TESTS_KERNELS_COVERAGE_H
#define WHET_TESTS_KERNELS_COVERAGE_H

#include <stdbool.h>

enum { FEATURES = 384 };

struct coverage {
    bool seen[FEATURES][FEATURES]; /* both ways; a value met itself when it was seen at all */
    int values, pairs;
};

/* What a point with these features would add: pairs, and a new value counts as much as ten. */
int coverage_gain(const struct coverage *c, const int *feature, int n);
void coverage_add(struct coverage *c, const int *feature, int n);

#endif
