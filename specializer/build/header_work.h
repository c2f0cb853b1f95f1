/* SPDX-License-Identifier: Apache-2.0 */
/* header_work.h - a precompiled header (header.h) made by a process of its own, beside builds.
 *
 * It takes longer than what it spares the first build, so a build that somebody waits for does not
 * make it: stage_env.headers_apart. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_BUILD_HEADER_WORK_H
#define WHET_SPECIALIZER_BUILD_HEADER_WORK_H

#include "specializer/candidate/stage.h"

struct header_work;
/* Whether builds with these defines could use a header that is not there. */
bool header_work_wanted(const struct stage_env *env, char *const *define);
/* Begins to make it, as it is wanted. NULL with a message when no process could be started. */
struct header_work *header_work_start(const struct stage_env *env, char *const *define,
                                      struct err *err);
/* PASS: the header is there. REFUSE: it is of no use to this compiler, and is not wanted any more.
 * RETRY: the process was ended by others. */
enum stage_result header_work_poll(struct header_work *w);
/* Ends the process if it still runs; frees. NULL is fine. */
void header_work_end(struct header_work *w);

#endif
