/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_loader.h - the kernels of another rank than 0: loaded when rank 0 says so, beside steps.
 *
 * A thread of its own loads and unloads, in the order in which it was told, as the specializer's
 * does on rank 0, and answers. It also asks the backend whether a kernel broke.
 */
#ifndef WHET_ENGINE_RANKS_LOADER_H
#define WHET_ENGINE_RANKS_LOADER_H

#include "engine/ranks.h"

struct loader;

/* All of them outlive it; `formats` are those of this rank's slots. NULL with a message. */
struct loader *loader_open(struct ranks *r, const struct backend_ops *ops, struct backend *b,
                           const struct formats *formats, struct err *err);
/* No step runs any more. Unloads all. NULL is fine. */
void loader_close(struct loader *l);

/* Copies what it is given, `bytes` are those of the object; rank 0 hears what became of it. */
void loader_load(struct loader *l, const struct wire_kernel *k, const char *bytes);
/* No slot has it any more. */
void loader_unload(struct loader *l, int32_t number);
/* NULL: it is not loaded. Any thread; the kernel lives until loader_unload(). */
const struct kernel *loader_kernel(struct loader *l, int32_t number);

#endif
