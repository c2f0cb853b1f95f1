/* SPDX-License-Identifier: Apache-2.0 */
/* build_private.h - a compiler's process and how it ended, for build_cc.c and header_work.c. */
#ifndef WHET_SPECIALIZER_BUILD_BUILD_PRIVATE_H
#define WHET_SPECIALIZER_BUILD_BUILD_PRIVATE_H

#include "specializer/candidate/stage.h"

enum { COMPILER_ARGUMENTS = 128, COMPILER_FILE_MOST = 64 << 20 };

/* At the lowest priority, bounded by specializer.build_timeout; what the compiler's parts hand each
 * other lies in `folder`, which is made; NULL: where temporary files are. NULL with a message. */
struct process *compiler_process(const struct stage_env *env, const char *const *argv,
                                 const char *folder, struct err *err);
bool compiler_succeeded(const struct process_result *r);
/* By its own word: nothing else ended it, and the disk, where `object` was to lie, was not full. */
bool compiler_refused(const struct process_result *r, const char *object);
/* What it printed says that it could not do its work, whatever the kernel is like (build_blame.c).
 */
bool compiler_was_hindered(const char *log, const char *object);
/* Files that every build needs are there: the folder of objects, and the sources. Somebody may have
 * cleared them away while we run; then they are made again. 0, or -1 with a message. */
int build_files_restore(const struct stage_env *env, const struct candidate *c, struct err *err);
bool build_has_folder(const char *object);
/* A compiler that failed missed some of them. */
bool build_missed_files(const struct stage_env *env, const struct candidate *c, const char *log);

#endif
