/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - the decisions of the bench, apart from the engine that produces the samples. */
#ifndef WHET_SPECIALIZER_PIPELINE_BENCH_H
#define WHET_SPECIALIZER_PIPELINE_BENCH_H

#include <stdbool.h>

#include "specializer/candidate/candidate.h"

/* A group sequential test: how many interim analyses, and how many pairs there are at each. */
enum { BENCH_ANALYSES = 3, BENCH_QUICK_ANALYSES = 2 };
extern const int bench_pairs[BENCH_ANALYSES];

enum bench_verdict { BENCH_MORE, BENCH_FASTER, BENCH_SLOWER };
/* What an interim analysis says: surely at least `wanted` faster, surely not, or cannot say yet. At
 * the last one "cannot say" is BENCH_SLOWER. */
enum bench_verdict bench_decide(const struct gain *g, double wanted, bool last);

#endif
