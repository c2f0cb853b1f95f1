/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - the decisions of the bench, apart from the engine that produces the samples. */
#ifndef WHET_SPECIALIZER_PIPELINE_BENCH_H
#define WHET_SPECIALIZER_PIPELINE_BENCH_H

#include <stdbool.h>

#include "specializer/candidate/candidate.h"

/* Group sequential tests: how many interim analyses, and how many pairs there are at each. */
enum bench_kind {
    BENCH_FULL,    /* low >= specializer.min_gain */
    BENCH_OPENING, /* the same, with one look more, at the beginning */
    BENCH_QUICK,   /* a tenth of the pairs, not slower: restored winners, against eager; below zero
                      min_gain holds here, too */
    BENCH_KINDS
};
enum { BENCH_ANALYSES_MOST = 4 };
struct bench_plan {
    int analyses, pairs[BENCH_ANALYSES_MOST];
};
extern const struct bench_plan bench_plan[BENCH_KINDS];

enum bench_verdict { BENCH_MORE, BENCH_FASTER, BENCH_SLOWER };
/* What an interim analysis says: surely at least `wanted` faster, surely not, or cannot say yet. At
 * the last one "cannot say" is BENCH_SLOWER. */
enum bench_verdict bench_decide(const struct gain *g, double wanted, bool last);

#endif
