/* SPDX-License-Identifier: Apache-2.0 */
/* live.c - see live.h. */
#include "tune/live.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/adviser/adviser_limits.h"
#include "specializer/adviser/adviser_replay.h"

struct live {
    struct adviser_http *http;
    struct adviser_replay *known; /* what was said so far */
    FILE *record;                 /* NULL: it is not kept */
    struct limits limits;
    struct call_style style;
    const char *model; /* as adviser.model names it */
};

static int open_record(struct live *l, const char *path, struct err *err)
{
    if (access(path, F_OK) == 0) {
        l->known = adviser_replay_open(path, err);
        if (!l->known)
            return -1;
    }
    l->record = fopen(path, "a");
    return l->record ? 0 : err_set(err, "%s cannot be written: %s", path, strerror(errno));
}

struct live *live_open(const struct config *c, const char *record, struct err *err)
{
    struct live *l = xcalloc(1, sizeof *l);
    l->style = (struct call_style){.max_tokens = (int32_t)c->adviser_max_tokens,
                                   .timeout = c->adviser_timeout,
                                   .temperature = -1};
    limits_init(&l->limits, c->adviser_calls_per_hour, c->adviser_tokens_per_hour);
    l->model = c->adviser_model;
    l->http = adviser_http_open(c, err);
    if (l->http && (!record || open_record(l, record, err) == 0)) {
        l->known = l->known ? l->known : adviser_replay_new();
        return l;
    }
    live_close(l);
    return NULL;
}

void live_close(struct live *l)
{
    if (!l)
        return;
    adviser_http_close(l->http);
    adviser_replay_close(l->known);
    if (l->record)
        fclose(l->record);
    free(l);
}

static void keep(struct live *l, const char *document, const struct answer *a)
{
    char *line = adviser_replay_keep(l->known, document, a, l->model);
    if (l->record && (fprintf(l->record, "%s\n", line) < 0 || fflush(l->record) != 0))
        log_error("tune", "a reply could not be recorded: %s", strerror(errno));
    free(line);
}

/* About how many tokens the question and its reply are. */
static int64_t tokens_of(const struct live *l, const char *task, const char *document)
{
    enum { BYTES_A_TOKEN = 3 };
    return (int64_t)(strlen(task) + strlen(document)) / BYTES_A_TOKEN + l->style.max_tokens;
}

void live_ask(struct live *l, const char *task, const char *document, const char *schema,
              const char *name, struct answer *out)
{
    if (adviser_replay_find(l->known, document, out))
        return;
    int64_t tokens = tokens_of(l, task, document);
    enum hold hold = limits_ask(&l->limits, clock_ns(), tokens);
    if (hold != HOLD_NOT) {
        *out = (struct answer){.fault = CALL_STOPPED};
        snprintf(out->why, sizeof out->why, "not asked: %s", hold_name(hold));
        return;
    }
    struct call call = {
        .task = task, .document = document, .schema = schema, .name = name, .style = l->style};
    adviser_http_post(l->http, &call, out);
    int64_t counted = (int64_t)out->tokens_in + out->tokens_out;
    limits_spend(&l->limits, clock_ns(), out->calls, counted > 0 ? counted : tokens);
    if (out->fault == CALL_OK) {
        limits_good(&l->limits);
        keep(l, document, out);
        return;
    }
    limits_bad(&l->limits, clock_ns(), out->retry_after_s);
    log_warn("tune", "the model did not answer: %s: %s", call_fault_name(out->fault), out->why);
}
