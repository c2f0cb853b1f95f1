/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.h - two kernels timed in turns: what the benches of all backends have in common.
 *
 * Runs go A B B A. A pair is the means of its two A and its two B runs, so drift within a pair
 * cancels. The first pair warms up and is dropped. Engine thread.
 */
#ifndef WHET_ENGINE_PAIRS_H
#define WHET_ENGINE_PAIRS_H

#include "engine/backend.h"

/* How far the runs of a job are; all zero at first. */
struct pairs {
    int32_t runs; /* done */
    bool warm;
    float ns[4]; /* A B B A */
};

/* One run of the job's kernel a (side 0) or b (side 1); *ns is what it took. */
typedef int pair_run_fn(struct backend *b, struct bench_job *job, int side, float *ns,
                        struct err *e);

/* Runs until the job has all its pairs or a run ends after `until_ns`: 1, or 0 to go on from there
 * next time; -1 if a run fails. */
int pairs_run(struct pairs *p, struct backend *b, struct bench_job *job, int64_t until_ns,
              pair_run_fn *run, struct err *e);

#endif
