/* SPDX-License-Identifier: Apache-2.0 */
/* setup.h - what the loop stands on: store, compiler, keys. On the specializer's thread, or
 * before there is one. */
#ifndef WHET_SPECIALIZER_SETUP_H
#define WHET_SPECIALIZER_SETUP_H

#include "specializer/candidate/stage.h"
#include "specializer/store/store.h"

struct specializer;

/* Store, locks, adviser, strategy; no thread yet. `may_copy`: with a copy of the store if another
 * process has it, which a warning says; otherwise that is an error. */
struct specializer *specializer_new(const struct config *c, struct engine *e, bool may_copy,
                                    struct err *err);
/* Everything that needs a ready engine. What is missing is logged; serving goes on. */
void specializer_setup(struct specializer *s);
/* Eager everywhere; returns when no step can still run what was there. */
void slots_empty(struct specializer *s);
/* After the thread has ended: eager into every slot, kernels unloaded. */
void specializer_free(struct specializer *s);
enum numerics numerics_parse(const char *name);
/* Whether a checkpoint that is made for activations in FP8 lies on a device that could multiply
 * them, and the level allows none. */
bool fp8_forbidden(const struct model *m, const struct machine *machine, enum numerics n);
/* Threads that compute, on a CPU. */
int32_t machine_threads(const struct config *c);
/* Path of the running executable; static storage. */
const char *program_path(void);
/* The compiler there is for this machine's kernels, or the one the store was last used with. True
 * if one is there. */
bool compiler_known(const struct config *c, struct store *store, const struct machine *machine,
                    struct compiler *out, struct err *err);
void keys_open(struct key_parts *k, const struct store *store, const struct machine *machine,
               const struct compiler *compiler, const struct model *model, enum numerics numerics);
void keys_close(struct key_parts *k);
/* Behind specializer_setup(): reads what operators pinned and disabled into memory. From then on
 * the specializer is ready: nothing may be searched for or come back before. -1 with the store's
 * message if some of it cannot be read; it may be tried again. */
int operators_read(struct specializer *s, struct err *err);
/* Notes in memory what the store has been told. Lock held. */
void operators_disable_locked(struct specializer *s, const char *what, const char *reason);

#endif
