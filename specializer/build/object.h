/* object.h - what a freshly built shared object may contain, checked before anything loads it.
 *
 * Loading runs code: constructors, IFUNC resolvers, whatever the libraries it names bring along.
 * So the file is read as data first. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_OBJECT_H
#define WHET_SPECIALIZER_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"

/* 0 if `path` is a 64-bit ELF shared object of this machine that exports `whet_kernel`, has no
 * constructors, destructors, IFUNCs, thread-locals, text relocations or needed libraries, and
 * leaves undefined only functions of a short list (memcpy, memset, ... and libm). `agent`:
 * moreover no system-call instruction, no state between calls (writable data), no other exports. -1
 * with a message naming what was found. */
int object_inspect(const char *path, bool agent, struct err *err);

#endif
