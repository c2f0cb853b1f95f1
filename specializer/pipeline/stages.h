/* SPDX-License-Identifier: Apache-2.0 */
/* stages.h - the stages that use the running engine: load, bench, shadow, canary. They block, and
 * call env->tick while they wait. Each answers pass, refuse (reason in the candidate), retry or
 * stopped, and fills the candidate's evidence. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_PIPELINE_STAGES_H
#define WHET_SPECIALIZER_PIPELINE_STAGES_H

#include "specializer/candidate/stage.h"
#include "specializer/pipeline/bench.h"

struct store;

/* ---- load (load.c) -------------------------------------------------------------------------- */

/* Loads c->object unless it is; marks the trial in `marks` (or NULL). Pass; refuse: it cannot be
 * loaded; retry: the store could not take the mark, without which a kernel that crashes the server
 * would come back. */
enum stage_result load_run(const struct stage_env *env, struct store *marks, struct candidate *c);

/* ---- bench (bench.c) ------------------------------------------------------------------------ */

/* The paired gain of c->kernel over `incumbent` in slices on the engine thread. It must have been
 * measured with confidence (bench.h has what `kind` wants). */
enum stage_result bench_run(const struct stage_env *env, struct candidate *c,
                            const struct kernel *incumbent, const struct capture *inputs,
                            enum bench_kind kind);

/* The same measurement over a given number of pairs and without a verdict (tables of measured
 * points): PASS with evidence.bench at 95 %, own_s and incumbent_s. */
enum stage_result bench_sample(const struct stage_env *env, struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs,
                               int pairs);

/* How long a stage waits at least for live steps before it leaves the candidate for later. */
#define SHADOW_TIMEOUT_S 30.0
#define CANARY_TIMEOUT_S 60.0

/* ---- shadow and canary ---------------------------------------------------------------------- */

/* The candidate runs beside the kernel in c->slot on live steps; outputs are compared. RETRY when
 * not enough matching steps came: at least `timeout_s` are waited for them, and longer as long as
 * there are some (live.h). */
enum stage_result shadow_run(const struct stage_env *env, struct candidate *c, double timeout_s);

/* Whole live steps alternate between the candidate and the incumbent. RETRY as above. c->steps says
 * whether their time was all there was to say against it. */
enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s);

/* As canary_run() of several at once, which canary_may_join() had join one another; r[n] is what
 * each hears. Those of one M bucket pass together or not at all; the evidence of each has the whole
 * steps that it was judged by, and how many candidates they ran with. RUNNING: its bucket did not
 * pass, and who is at fault is not known; REFUSE: it is at fault itself. */
void canary_run_set(const struct stage_env *env, struct candidate *const *c, int n,
                    double timeout_s, enum stage_result *r);

/* Judges a HOOK_COMPARE of two kernels of which `evidence` is the candidate's: NULL, or what is
 * wrong in words (static or in `buf`). Used by shadow_run and by the watch over active kernels. */
const char *compare_verdict(const struct stage_env *env, const struct hook *hook,
                            const struct evidence *evidence, char *buf, size_t n);

#endif
