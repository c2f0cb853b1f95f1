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
 * NULL) for every published kernel. Returns how many, none where no store is named and there is
 * none yet, or -1 when it cannot be opened. */
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

/* A kernel that somebody names: "SLOT TEMPLATE NAME=value ...", knobs left out at the template's
 * defaults, or "SLOT start NAME=value ...", the others as the point has them that a search of the
 * slot starts from. */
struct named_kernel {
    struct slot *slot;
    struct candidate *candidate; /* until it is loaded, or cannot be */
    struct kernel *kernel;       /* loaded; the caller's to publish and to unload */
    struct err why;              /* without the two: what is wrong with it */
};

struct starts;
/* What kernels of that table are built with and where. NULL with a message: no store or no
 * compiler. */
struct starts *starts_open(const struct config *c, const struct model *m, struct backend *b,
                           const struct backend_ops *ops, struct dispatch *d, struct err *err);
void starts_close(struct starts *s);
void starts_named(const struct starts *s, const char *text, struct named_kernel *out);
/* Builds those that can be, as many at once as there are cores. */
void starts_build(const struct starts *s, struct named_kernel *const *k, int n);
/* Loads one, and builds it before if that was not done. -1: it has no kernel. */
int starts_load_named(const struct starts *s, struct named_kernel *k);
/* Gives back what named it; its kernel stays. */
void starts_forget(struct named_kernel *k);

#endif
