/* SPDX-License-Identifier: Apache-2.0 */
/* safe_path.h - files and folders that no other user can touch.
 *
 * The server runs what lies in some of its folders (compiled kernels) and believes what lies in
 * others (evidence, requests to probes). So they must be its own: not merely now, but on the whole
 * way to them, since whoever may rename a folder on the way may put another in its place.
 *
 * "Ours" is: owned by the user we run as, by root, or by whoever owns "/" (inside a user namespace
 * root has another number), and not writable by group or others. On the way to such a folder there
 * may be folders that everybody writes to if they are sticky, as /tmp is: nobody can rename there
 * what is ours. Symbolic links are followed where only we or root can have made them. A path is
 * walked by descriptors, each thing looked at after it was opened, so nothing can be exchanged
 * between the look and the use; and a folder that passed once cannot be made unsafe by others.
 *
 * All: 0 (or a result), -1 (NULL) with a sentence that names the thing and the rule. Any thread.
 */
#ifndef WHET_CONFIG_SAFE_PATH_H
#define WHET_CONFIG_SAFE_PATH_H

#include <stdbool.h>
#include <stdio.h>

#include "config/err.h"

/* The folder is there, and it and the way to it are ours. */
int safe_folder(const char *path, struct err *err);
/* The same; what is missing of it is made first, mode 0700. */
int safe_folder_make(const char *path, struct err *err);
/* A new folder of an unused name for temporary files, under $TMPDIR, or /tmp if that is not set,
 * which may be sticky: "<there>/<prefix>XXXXXX". Caller frees. */
char *safe_folder_temporary(const char *prefix, struct err *err);
/* Removes a folder and all that is in it, as far as it can: a link, not what it leads to; nothing
 * of another file system. */
void safe_folder_remove(const char *path);
/* For those who would use it unseen: $TMPDIR if others cannot exchange what is made there, else
 * /tmp. */
const char *safe_temporary(void);

/* Opens a file for reading that is a regular one, ours, in a folder of ours, and no link. The
 * descriptor, or -1; the caller closes it. */
int safe_open(const char *path, struct err *err);
/* Is it such a file? */
int safe_file(const char *path, struct err *err);
/* A new file for writing (mode 0600) in the place of whatever had the name; a link is removed, not
 * followed. For folders that passed safe_folder(). NULL with errno. */
FILE *safe_create(const char *path);

/* A program or library that an operator named, or that was found on PATH: absolute, and nowhere on
 * the way can just anybody exchange it. Other owners and groups are the operator's to trust. */
int safe_program(const char *path, struct err *err);
/* A folder of such, as in PATH: moreover not one like /tmp, where anybody can add a program. */
int safe_programs(const char *folder, struct err *err);

#endif
