/* SPDX-License-Identifier: Apache-2.0 */
/* store_file.h - inside the store: the files that it is made of, and who has them. */
#ifndef WHET_SPECIALIZER_STORE_STORE_FILE_H
#define WHET_SPECIALIZER_STORE_STORE_FILE_H

#include <stdbool.h>

#include "config/err.h"

/* Makes the folder and the file, if they are missing, for us alone, and refuses what is not: a
 * link, another's file, a folder that others may write to, for the file and each that SQLite keeps
 * beside it. 0, or -1 with a message naming path and rule. */
int store_file_make(const char *path, struct err *err);

/* Takes the store for this process: a descriptor to close in the end, which is given back however
 * the process ends. -1 with a message; *taken says whether that is because another process has it,
 * whose number and start are in the message. */
int store_file_lock(const char *path, bool *taken, struct err *err);
/* Whether `path`, a store's file, was left behind by a process that is gone. */
bool store_file_left(const char *path);

/* Renames a damaged store, for whoever wants to look, with a line in the log. */
int store_file_move_aside(const char *path, const char *why, struct err *err);

#endif
