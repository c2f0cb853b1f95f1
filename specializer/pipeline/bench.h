/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - the decisions of the bench, apart from the engine that produces the samples. */
#ifndef WHET_SPECIALIZER_PIPELINE_BENCH_H
#define WHET_SPECIALIZER_PIPELINE_BENCH_H

#include <stdbool.h>

#include "specializer/candidate/candidate.h"

/* How often samples are looked at, and how many pairs there are at each look. */
enum { BENCH_LOOKS = 3, BENCH_QUICK_LOOKS = 2 };
extern const int bench_pairs[BENCH_LOOKS];

enum bench_verdict { BENCH_MORE, BENCH_FASTER, BENCH_SLOWER };
/* What a look says: surely at least `wanted` faster, surely not, or cannot say yet. At the last
 * look "cannot say" is BENCH_SLOWER. */
enum bench_verdict bench_look(const struct gain *g, double wanted, bool last);

#endif
