/* SPDX-License-Identifier: Apache-2.0 */
/* capture_file.h - captured inputs on their way to another process. */
#ifndef WHET_SPECIALIZER_ADMISSION_CAPTURE_FILE_H
#define WHET_SPECIALIZER_ADMISSION_CAPTURE_FILE_H

#include "engine/backend.h"

/* Writes `c` to `path` (replaced). 0, or -1 with a message naming the path. */
int capture_save(const struct capture *c, const struct model_shape *shape, const char *path,
                 struct err *err);
/* Reads one; free with capture_free() and free(). NULL with a message naming path and field when
 * the file is damaged or does not fit `shape`. */
struct capture *capture_load(const char *path, const struct model_shape *shape, struct err *err);

#endif
