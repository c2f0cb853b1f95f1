/* SPDX-License-Identifier: Apache-2.0 */
/* inbox.c - events from the engine thread to the loop, one after the other in a byte buffer.
 *
 * What is stored of one is a fixed header, the alternatives that are really there (not all
 * SAMPLER_TOP_MAX), then the texts, each NUL-terminated. Events are copied out with memcpy, so
 * nothing depends on alignment. Order of events of one choice is the order of the calls.
 */
#include "server/inbox.h"

#include <string.h>

#include "config/clock.h"
#include "server/limits.h"

struct stored_event {
    struct choice *choice;
    struct engine_event event; /* its pointers are not valid; *_n below say what follows */
    int64_t at_ns;
    float logprob;
    int32_t token, tops; /* tops < 0: no sampled */
    uint32_t text_n, stop_n, error_n;
};

void inbox_init(struct inbox *in, uv_async_t *wake)
{
    *in = (struct inbox){.wake = wake};
    uv_mutex_init(&in->lock);
}

void inbox_free(struct inbox *in)
{
    uv_mutex_destroy(&in->lock);
    buf_free(&in->filling);
    buf_free(&in->draining);
}

static uint32_t length(const char *s)
{
    return s ? (uint32_t)strlen(s) + 1 : 0;
}

void inbox_push(struct inbox *in, struct choice *choice, const struct engine_event *event)
{
    const struct sampled *s = event->sampled;
    struct stored_event r = {.choice = choice,
                             .event = *event,
                             .at_ns = clock_ns(),
                             .tops = -1,
                             .text_n = event->text ? (uint32_t)event->text_n : 0,
                             .stop_n = length(event->stop_string),
                             .error_n = length(event->error)};
    if (s) {
        r.token = s->token;
        r.logprob = s->logprob;
        r.tops = s->tops;
    }
    uv_mutex_lock(&in->lock);
    buf_add(&in->filling, &r, sizeof(r));
    if (s) {
        buf_add(&in->filling, s->top_id, (size_t)r.tops * sizeof(*s->top_id));
        buf_add(&in->filling, s->top_logprob, (size_t)r.tops * sizeof(*s->top_logprob));
    }
    buf_add(&in->filling, event->text, r.text_n);
    buf_add(&in->filling, event->stop_string, r.stop_n);
    buf_add(&in->filling, event->error, r.error_n);
    uv_mutex_unlock(&in->lock);
    uv_async_send(in->wake);
}

/* Reads the event at p into *out; returns where the next one starts. */
static const char *read_event(const char *p, struct inbox_event *out)
{
    struct stored_event r;
    memcpy(&r, p, sizeof(r));
    p += sizeof(r);
    out->choice = r.choice;
    out->event = r.event;
    out->at_ns = r.at_ns;
    out->event.sampled = NULL;
    if (r.tops >= 0) {
        struct sampled *s = &out->sampled;
        s->token = r.token;
        s->logprob = r.logprob;
        s->tops = r.tops;
        memcpy(s->top_id, p, (size_t)r.tops * sizeof(*s->top_id));
        p += (size_t)r.tops * sizeof(*s->top_id);
        memcpy(s->top_logprob, p, (size_t)r.tops * sizeof(*s->top_logprob));
        p += (size_t)r.tops * sizeof(*s->top_logprob);
        out->event.sampled = s;
    }
    out->event.text = p;
    out->event.text_n = r.text_n;
    p += r.text_n;
    out->event.stop_string = r.stop_n ? p : NULL;
    p += r.stop_n;
    out->event.error = r.error_n ? p : NULL;
    return p + r.error_n;
}

void inbox_drain(struct inbox *in, inbox_fn *fn, void *ctx)
{
    uv_mutex_lock(&in->lock);
    buf_swap(&in->filling, &in->draining);
    uv_mutex_unlock(&in->lock);
    struct inbox_event event;
    for (size_t at = 0; at < in->draining.n;) {
        at = (size_t)(read_event(in->draining.p + at, &event) - in->draining.p);
        fn(ctx, &event);
    }
    if (in->draining.room > INBOX_KEEP_MAX)
        buf_free(&in->draining);
    buf_clear(&in->draining);
}
