/* SPDX-License-Identifier: Apache-2.0 */
/* object_code.h - system-call instructions in machine code. */
#ifndef WHET_SPECIALIZER_BUILD_OBJECT_CODE_H
#define WHET_SPECIALIZER_BUILD_OBJECT_CODE_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

/* -1, with a message, if the `n` bytes of code for this machine that are loaded at `address` hold a
 * system-call instruction anywhere, also in the middle of others, where a jump may lead.
 *
 * Immediates and displacements may hold the same bytes by accident, in about one kernel of a
 * hundred; compiled in another way, most are without them. */
int object_code_check(const unsigned char *code, size_t n, uint64_t address, struct err *err);

#endif
