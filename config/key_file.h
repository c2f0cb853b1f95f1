/* SPDX-License-Identifier: Apache-2.0 */
/* key_file.h - files that hold secrets. */
#ifndef WHET_CONFIG_KEY_FILE_H
#define WHET_CONFIG_KEY_FILE_H

#include <stdbool.h>

/* Warns in the log, naming option, file and mode, if others may read the key in `path`: everybody,
 * or the group of a file that is this process's own (of somebody else's, the group may well be how
 * we read it). True if it warned. An empty path, or one of no file, is no reason. Any thread. */
bool key_file_warn(const char *option, const char *path);

#endif
