/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - the region that ranks compute together, on GPUs: run, on trial beside a step, timed.
 *
 * Engine thread, but for reduce_run() in a capture, which is the builder's.
 */
#ifndef WHET_ENGINE_CUDA_REDUCE_H
#define WHET_ENGINE_CUDA_REDUCE_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "kernels/peer.h"

struct plan_node; /* engine/plan.h */
struct walk;      /* walk.h */

/* Graphs of kernels that were timed last, and which steps are on trial. */
enum { REDUCE_TIMED = 2 };
struct reduce_trials {
    struct timed_sum {
        const struct kernel *kernel;
        int32_t m, calls;
        cudaGraphExec_t exec; /* NULL: empty */
    } timed[REDUCE_TIMED];
    int32_t next; /* of timed, to be replaced */
    int32_t run;  /* of a step, to be tried next */
};

/* This rank's view of an area that kernels meet in; NULL: there is none, and no slot of reduce. */
const struct peer_area *reduce_area(const struct backend *b, enum reduce_use use);

/* A node `reduce` of the plan, on the walk's stream. */
int reduce_run(struct walk *w, const struct plan_node *n, struct err *e);
/* Where the sum behind a node is made in the projection itself, lets that do it; reduce_run() of
 * the node behind it does nothing then. */
void reduce_aim(struct walk *w, const struct plan_node *n);
/* The eager kernel on w->sum: the collective, whatever the size. */
int reduce_eager(struct walk *w, struct err *e);
/* The arguments of a loaded kernel on w->sum. */
void reduce_fill(const struct walk *w, struct peer_reduce_args *a);

/* Kernel k is about to be unloaded. */
void reduce_forget(struct backend *b, const struct kernel *k);
void reduce_close(struct backend *b);

#endif
