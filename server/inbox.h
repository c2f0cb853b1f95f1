/* SPDX-License-Identifier: Apache-2.0 */
/* inbox.h - events from the engine thread to the loop.
 *
 * The engine thread copies each event to the end of a byte buffer under a mutex held for that
 * copy; the loop swaps the buffer for an empty one and walks it. No allocation per event, no lock
 * held while anything is formatted, and one wake-up for however many events came together.
 */
#ifndef WHET_SERVER_INBOX_H
#define WHET_SERVER_INBOX_H

#include <uv.h>

#include "engine/engine.h"
#include "server/buf.h"

struct choice;

/* An engine_event with everything in it by value; strings point into the inbox's buffer. */
struct inbox_event {
    struct choice *choice;
    struct engine_event event;
    struct sampled sampled; /* event.sampled points here when the event has one */
    int64_t at_ns;          /* clock_ns() on the engine thread */
};
typedef void inbox_fn(void *ctx, const struct inbox_event *event);

struct inbox {
    uv_mutex_t lock;
    struct buf filling;  /* under lock */
    struct buf draining; /* the loop's */
    uv_async_t *wake;
};

void inbox_init(struct inbox *in, uv_async_t *wake);
void inbox_free(struct inbox *in);
/* Engine thread. */
void inbox_push(struct inbox *in, struct choice *choice, const struct engine_event *event);
/* Loop thread: calls fn for every event that has come, in order. */
void inbox_drain(struct inbox *in, inbox_fn *fn, void *ctx);

#endif
