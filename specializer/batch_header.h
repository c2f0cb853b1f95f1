/* SPDX-License-Identifier: Apache-2.0 */
/* batch_header.h - the precompiled header (build/header.h) that a batch's builds could use, made
 * beside the first of them, which goes without. Specializer thread.
 */
#ifndef WHET_SPECIALIZER_BATCH_HEADER_H
#define WHET_SPECIALIZER_BATCH_HEADER_H

#include <stdbool.h>

struct specializer;
/* A build of the batch could use one that is not there and is not being made. */
bool batch_header_wanted(struct specializer *s);
/* Begins to make it if it is wanted. It is one child more. */
void batch_header_start(struct specializer *s);
/* Looks after its process; with or without a batch. */
void batch_header_poll(struct specializer *s);

#endif
