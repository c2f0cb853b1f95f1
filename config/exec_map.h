/* SPDX-License-Identifier: Apache-2.0 */
/* exec_map.h - whether the system lets this process run code out of a file.
 *
 * A filesystem that is mounted noexec, a security module or a limit of address space may forbid it.
 * The loader then says "failed to map segment from shared object", as it does of a damaged file;
 * but it says nothing about the code, and who refuses a kernel for it refuses all of them.
 */
#ifndef WHET_CONFIG_EXEC_MAP_H
#define WHET_CONFIG_EXEC_MAP_H

#include "config/err.h"

/* 0: the file at `path` may be mapped to be run, or is not there to be asked about. -1: not, and
 * `err` says why, marked as outside of the file (err_outside). Nothing of the file is run. Any
 * thread. */
int exec_map_file(const char *path, struct err *err);

/* The same of files that are made in `folder`; 0, too, where none can be made now. */
int exec_map_folder(const char *folder, struct err *err);

#endif
