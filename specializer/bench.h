/* bench.h - the decisions of the bench, apart from the engine that produces the samples. */
#ifndef WHET_SPECIALIZER_BENCH_H
#define WHET_SPECIALIZER_BENCH_H

#include <stdbool.h>

#include "engine/plan.h"
#include "specializer/candidate.h"

/* How often samples are looked at, and how many pairs there are at each look. */
enum { BENCH_LOOKS = 3, BENCH_QUICK_LOOKS = 2 };
extern const int bench_pairs[BENCH_LOOKS], bench_quick_pairs[BENCH_QUICK_LOOKS];

enum bench_verdict { BENCH_MORE, BENCH_FASTER, BENCH_SLOWER };
/* What a look says: surely at least `wanted` faster, surely not, or cannot say yet. At the last
 * look "cannot say" is BENCH_SLOWER. */
enum bench_verdict bench_look(const struct gain *g, double wanted, bool last);

/* Seconds in which nothing can do this work on this machine; 0 when nothing sure is known.
 * `resident` is the bytes that one round over all layers touches, `bandwidth` what reading so much
 * again and again reaches. */
double bench_floor_s(const struct machine *m, const struct region_cost *cost, int64_t resident,
                     double bandwidth);
/* Bytes a second of reading `bytes` of memory over and over, by `threads` threads if each is as
 * fast as this one. */
double bench_read_bandwidth(int64_t bytes, int32_t threads);

#endif
