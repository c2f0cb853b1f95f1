/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h - the text of the kernel templates, carried inside the program.
 *
 * The server writes these files out and compiles them at run time, so a binary without its source
 * tree can still specialize. Names are paths below kernels/ ("cpu/out.c", "args.h"); the text ends
 * with a zero byte that `size` does not count. Static storage.
 */
#ifndef WHET_KERNELS_SOURCES_H
#define WHET_KERNELS_SOURCES_H

#include <stddef.h>

struct kernel_source {
    const char *name;
    const char *text;
    size_t size;
};

extern const struct kernel_source kernel_sources[];
extern const int kernel_source_count;

#endif
