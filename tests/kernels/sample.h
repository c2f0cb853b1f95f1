/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - how many points, kernels or mutants a test looks at.
 *
 * The usual samples are what every run of scripts/test can afford. $WHET_TEST_MORE=4 makes all of
 * them four times as large, and a variable of each one's own says its size by itself.
 */
#ifndef WHET_TESTS_KERNELS_SAMPLE_H
#define WHET_TESTS_KERNELS_SAMPLE_H

#include <stdlib.h>

/* How many times the usual sample is wanted; at least 1. */
static inline int sample_more(void)
{
    const char *more = getenv("WHET_TEST_MORE");
    return more && atoi(more) > 0 ? atoi(more) : 1;
}

static inline int sample_size(const char *variable, int usual)
{
    const char *wanted = getenv(variable);
    return wanted ? atoi(wanted) : usual * sample_more();
}

#endif
