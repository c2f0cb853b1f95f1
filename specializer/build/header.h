/* SPDX-License-Identifier: Apache-2.0 */
/* header.h - the vector intrinsics, read by the compiler once instead of for every candidate.
 *
 * A third of a build is spent on reading <immintrin.h>. So a precompiled header is made beside the
 * kernels' sources, by the first build for an instruction set or while that runs (header_work.h),
 * and later ones begin with it. Objects are the same byte for byte, so no key knows of it.
 * Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_BUILD_HEADER_H
#define WHET_SPECIALIZER_BUILD_HEADER_H

#include "specializer/candidate/stage.h"

struct header {
    enum { HEADER_NONE, HEADER_READY, HEADER_MISSING } state; /* NONE: build without */
    char path[512];                                           /* for -include */
};

/* What there is in `dir` for these flags of an instruction set (the -m of `define`). A header that
 * is missing can be written; where it cannot be, the answer is NONE. */
struct header header_look(const struct compiler *compiler, const char *dir, char *const *define);
/* The command that makes a MISSING one. `argv` has room for `n`; the strings are borrowed from
 * `define` and `temporary`, which it is written to. */
void header_command(const struct header *h, const struct compiler *compiler, char *const *define,
                    const char *temporary, const char **argv, int n);
/* That command succeeded: what it wrote becomes the header. */
void header_put(struct header *h, const char *temporary);
/* Removes from `dir` what other compilers made or this one tried in vain; at start. */
void header_prune(const struct compiler *compiler, const char *dir);
/* It is of no use to this compiler: neither it nor another for these flags is tried again. */
void header_give_up(struct header *h);

#endif
