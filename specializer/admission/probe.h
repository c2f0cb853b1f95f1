/* SPDX-License-Identifier: Apache-2.0 */
/* probe.h - the second stage: a kernel's first execution, in a process of its own; asynchronous:
 * start, then poll. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_PROBE_H
#define WHET_SPECIALIZER_ADMISSION_PROBE_H

#include "specializer/admission/comparator.h"
#include "specializer/candidate/stage.h"

enum probe_depth {
    PROBE_FULL,  /* every check of docs/specializer.md on the region */
    PROBE_SHORT, /* a restored winner whose object is the very file that passed: seconds -> tens of
                    ms */
    PROBE_WHOLE, /* PROBE_FULL, then PROBE_END, in one process: for a point that is known to be good
                  */
    PROBE_END,   /* endcheck.h alone, the whole model's logits: shadow_run() does it for a promoted
                    candidate */
};

struct probe;
/* First execution, in a separate process with a watchdog; on a GPU one after the other. `captured`
 * are live inputs of the slot (may be 0 of them: seeded inputs only). */
struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err);
enum stage_result probe_poll(struct probe *p);
void probe_end(struct probe *p);

/* What the candidate's point declares to make of activations (PRECISION row of its knob table),
 * where the policy lets it. */
enum precision probe_precision(const struct stage_env *env, const struct candidate *c);

/* `whet probe`: reads the request, runs the candidate, reports. The process's exit status. */
int probe_main(int argc, char **argv);

#endif
