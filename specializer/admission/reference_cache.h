/* SPDX-License-Identifier: Apache-2.0 */
/* reference_cache.h - answers that do not depend on the kernel, kept from one probe to the next.
 *
 * A folder of small files by key, each with a checksum; the server empties it when it starts. What
 * is missing, damaged or somebody else's is computed again. Bounded: what was not used for longest
 * goes first. Any number of probes may read and write: a file appears whole or not at all.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_REFERENCE_CACHE_H
#define WHET_SPECIALIZER_ADMISSION_REFERENCE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

/* Makes the folder, or empties it of what is kept there. 0, or -1 with a message. */
int reference_cache_clear(const char *dir, struct err *err);
/* Removes what was used least lately until no more than `most` bytes are kept. */
void reference_cache_shrink(const char *dir, int64_t most);
/* What is kept under `key`, malloc'ed, its size in *n; or NULL. `dir` NULL: nothing is kept. */
void *reference_cache_read(const char *dir, uint64_t key, size_t *n);
/* Keeps it if there is room on the disk; who cannot write computes again, and that is all. */
void reference_cache_write(const char *dir, uint64_t key, const void *data, size_t n);

#endif
