/* SPDX-License-Identifier: Apache-2.0 */
/* room.h - whether a probe has memory for what a kernel asks for besides its inputs and outputs:
 * repacked weights and scratch. Any thread; reads files. */
#ifndef WHET_SPECIALIZER_ADMISSION_ROOM_H
#define WHET_SPECIALIZER_ADMISSION_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"

/* 0 if `bytes` can be taken without coming to the end of the machine's memory or of a cgroup's, or
 * nothing says how much there is; else -1. The kernel is to blame if no machine like this one has
 * so much, or if a language model wrote it (`text`) and it asks for more than cases of any kernel
 * take; otherwise the cause lies outside (err_outside()). `root` goes before the paths of /proc and
 * cgroups: "" for this process. */
int room_for(const char *root, int64_t bytes, bool text, struct err *err);

#endif
