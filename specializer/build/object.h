/* SPDX-License-Identifier: Apache-2.0 */
/* object.h - what a freshly built shared object may contain, checked before anything loads it.
 *
 * Loading runs code: constructors, IFUNC resolvers, whatever the libraries it names bring along.
 * So the file is read as data first. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_BUILD_OBJECT_H
#define WHET_SPECIALIZER_BUILD_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

/* 0 if `path` is a 64-bit ELF shared object of this machine that exports `whet_kernel`, has no
 * constructors, destructors, IFUNCs, thread-locals, text relocations or needed libraries, asks the
 * loader for nothing else either (search paths, auditors, versions), wants a stack that cannot be
 * executed, and leaves undefined only functions of a short list (memcpy, memset, ... and libm). -1
 * with a message naming what was found. */
int object_inspect(const char *path, struct err *err);

/* What the frame says of a kernel whose body a language model wrote. */
struct object_frame {
    int32_t region, m_max;
    const char
        *layout; /* of its packed weights, if it has some: its own, by the hash of the text */
};

/* The object of a text has bytes that are a system call, or look like one (object_code.h). */
enum { OBJECT_CALLS = 1 };

/* The same; moreover no system-call instruction, no state between calls (writable data), no other
 * exports, no address of a function from outside, and its whet_kernel says what the frame would.
 * OBJECT_CALLS, with a message, where the first of these is not so. */
int object_inspect_text(const char *path, const struct object_frame *frame, struct err *err);

/* The same of a file that is in memory, aligned to 8 bytes; `frame` may be NULL. */
int object_inspect_bytes(const void *data, size_t n, const struct object_frame *frame,
                         struct err *err);

#endif
