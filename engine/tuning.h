/* SPDX-License-Identifier: Apache-2.0 */
/* tuning.h - what the specializer may ask of a running engine (beside dispatch.h and backend.h).
 *
 * The engine lends time, never data of requests. All functions: specializer thread only, unless
 * they say otherwise.
 */
#ifndef WHET_ENGINE_TUNING_H
#define WHET_ENGINE_TUNING_H

#include "engine/backend.h"
#include "engine/engine.h"

const struct model *engine_model(const struct engine *e);
struct backend *engine_backend(const struct engine *e);
const struct backend_ops *engine_backend_ops(const struct engine *e);
struct dispatch *engine_dispatch(const struct engine *e);

/* Work in slices on the engine thread at step boundaries: `run` is called with a budget until it
 * returns non-zero (1 done, -1 failed), at most `share` of wall time under load. Blocks the caller
 * until then; returns run's last value, or -1 when the engine stops. */
typedef int slice_fn(void *ctx, int64_t budget_ns);
int engine_slices(struct engine *e, slice_fn *run, void *ctx);

/* Yield windows: from now on, while requests run, `share` of the time is slept away between steps,
 * a small part of a step at once, so that processes of the lowest priority get the cores; 0: no
 * longer. Half of specializer.share is left to slices in any case. */
void engine_yield_windows(struct engine *e, double share);

/* An opening begins or ends: slices are closer in it and have more of the time
 * (specializer.cpu_slice_steps, gpu_slice_steps, share). */
void engine_opening(struct engine *e, bool opening);

/* Canary: one candidate, or several that are judged together. A step that uses the slots of just
 * the candidates of one cell runs with all of them or with none, by a coin toss; any other step
 * runs with none. Where several ranks compute the model, there is one candidate. The engine thread
 * appends; the specializer polls `have` (acquire). Times are of whole steps, normalised by nothing:
 * `m` and `context` of each step are kept so that the caller can pair like with like. */
struct canary_step {
    int64_t ns;
    int32_t m, context;
    bool candidate; /* it ran with the cell's candidates */
    int8_t cell;
};
struct canary {
    struct overrides candidates;
    uint32_t cell[OVERRIDES_MOST]; /* [cells] candidates, as bits */
    int cells;
    _Atomic uint32_t decided; /* cells that get no more steps, as bits */
    uint64_t seed;
    int32_t want;
    _Atomic int32_t have;
    struct canary_step *step; /* [want] */
    _Atomic bool failed; /* a step with the candidates failed: they are used no more, and the steps
                            still recorded are the incumbents' */
};
/* Installs (or with NULL removes) the canary; returns once the engine thread uses it. */
void engine_canary(struct engine *e, struct canary *c);

/* How many ranks compute the model (engine.ranks); 1: this process alone. With several, what is
 * loaded is loaded on all of them, or nowhere, and every step runs with one table. Any thread. */
int32_t engine_ranks(const struct engine *e);
/* With several: the version of the dispatch table that the rank ran its last step with. */
int64_t engine_rank_table(const struct engine *e, int32_t rank);
/* A rank whose part of the model has another shape in this region than rank 0's, or whose machine
 * runs other kernels: the region has eager kernels. 0: none. */
int32_t engine_rank_unequal(const struct engine *e, enum region r);

/* To be called where a compiler is about to start. Counts it as `hot_path_compiles_total` if that
 * happens on an engine thread, which it never may. Any thread. */
void engine_note_compile(void);

/* Running + waiting requests: is there load? And steps since start. */
int32_t engine_load(const struct engine *e);
uint64_t engine_steps(const struct engine *e);
/* Nanoseconds lent in slices since start. Any thread. */
uint64_t engine_slice_ns(const struct engine *e);

#endif
