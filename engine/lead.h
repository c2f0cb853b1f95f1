/* SPDX-License-Identifier: Apache-2.0 */
/* lead.h - rank 0 of several without an engine: for `whet bench`, which runs steps of its own.
 *
 * The other ranks are those of a server (engine_follow()). Calls in this order, on one thread, the
 * one that runs the steps; a process has one lead at most. The backend's functions are those of
 * lead_ops(), which take the other ranks along: a step is sent before it is started, a kernel
 * loaded on all or on none, and the table that was set last is the one that all run.
 */
#ifndef WHET_ENGINE_LEAD_H
#define WHET_ENGINE_LEAD_H

#include "config/config.h"
#include "engine/backend.h"
#include "engine/launcher.h"

struct lead;

/* Meets the others. NULL with a message. */
struct lead *lead_open(const struct config *c, const struct rank_place *place, struct err *err);
const struct backend_ops *lead_ops(struct lead *l);
/* This rank's part of the model, which is the caller's to close, after lead_close(). */
struct model *lead_model(struct lead *l, struct err *err);
/* What all open their backends with: sets `collective` and kv_pages, which may become fewer. */
int lead_agree(struct lead *l, struct backend_options *o, struct err *err);
/* The backend is open: waits until all others' are. */
int lead_begin(struct lead *l, struct backend *b, struct err *err);
/* A table of all slots that ranks have, those of reduce among them, with eager in each. The
 * caller's to close; once the backend is open. */
struct dispatch *lead_table(const struct lead *l);
/* After the backend is closed; the others end, too. NULL is fine. */
void lead_close(struct lead *l);

#endif
