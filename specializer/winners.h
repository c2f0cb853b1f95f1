/* SPDX-License-Identifier: Apache-2.0 */
/* winners.h - the store's winners without a specializer: for `whet bench` and other tools that
 * have a model, a backend and a dispatch table, but no engine thread.
 */
#ifndef WHET_SPECIALIZER_WINNERS_H
#define WHET_SPECIALIZER_WINNERS_H

#include "config/config.h"
#include "engine/backend.h"

/* Publishes every winner of the store (specializer.store of `c`) whose key is still valid and whose
 * object file is the one that passed. Nothing is compiled, probed or measured. Calls `each` (may be
 * NULL) for every published kernel. Returns how many, or -1 when the store cannot be opened. */
int winners_load(const struct config *c, const struct model *m, struct backend *b,
                 const struct backend_ops *ops, struct dispatch *d,
                 void (*each)(void *ctx, const struct slot *slot, const struct kernel *k),
                 void *ctx, struct err *err);

/* starts.c: builds (or finds built) and publishes, in every slot of a step of `sequences` tokens at
 * `context`, the point that a search of it starts from. Nothing is probed: for benches only. As
 * above otherwise; -1 also without a compiler. */
int starts_load(const struct config *c, const struct model *m, struct backend *b,
                const struct backend_ops *ops, struct dispatch *d, int32_t sequences,
                int32_t context,
                void (*each)(void *ctx, const struct slot *slot, const struct kernel *k), void *ctx,
                struct err *err);

#endif
