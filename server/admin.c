/* SPDX-License-Identifier: Apache-2.0 */
/* admin.c - /admin: HTTP onto specializer.h.
 *
 * All of it runs off the loop, because the specializer's store may be busy writing. Operators'
 * changes carry the request id into the decision trace. What the specializer answers becomes a
 * status here, and its reasons take the API's own shape, so that every route fails alike.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/table.h"
#include "server/job.h"
#include "server/json.h"
#include "server/router.h"
#include "server/server.h"

/* HTTP's status for each answer. */
static const int status_of[] = {
    [ANSWER_DONE] = 200,     [ANSWER_WRONG] = 400,  [ANSWER_UNKNOWN] = 404,
    [ANSWER_CONFLICT] = 409, [ANSWER_FAILED] = 500, [ANSWER_LOADING] = 503,
};
EVERY_ROW(status_of, ANSWERS);

/* Takes over the malloc'ed *text: JSON, or why there is none. A pointer to it, because the call
 * that fills it is an argument too and C does not say which is evaluated first. */
static void answer(struct job *j, enum specializer_answer a, char **text)
{
    j->status = status_of[a];
    if (a == ANSWER_DONE)
        json_put_made(&j->out, *text);
    else
        api_error_set(&j->error, j->status, NULL, "%s", *text);
    free(*text);
}

static bool available(struct job *j)
{
    if (!j->srv->specializer)
        api_error_set(&j->error, 503, NULL,
                      "the specializer is not running: its store could not "
                      "be opened (see the log)");
    return j->srv->specializer != NULL;
}

static void start(struct exchange *x, void (*run)(struct job *j))
{
    struct job *j = job_new(x, run);
    if (available(j) && strcmp(x->req.method, "GET") != 0 && strcmp(x->req.method, "HEAD") != 0)
        log_info("admin", "%s %s %s", x->id, x->req.method, x->req.path);
    job_start(j, LANE_ADMIN);
}

/* ---- reading ------------------------------------------------------------------------------- */

static void run_slots(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_slots(j->srv->specializer, j->rest, &text), &text);
}

static void run_kernels(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_kernels(j->srv->specializer, j->rest, &text), &text);
}

static void run_trace(struct job *j)
{
    char *text = NULL, *end = NULL;
    const char *slot = j->arg[0] && *j->arg[0] ? j->arg[0] : NULL;
    long long since = j->arg[1] ? strtoll(j->arg[1], &end, 10) : 0;
    if (end && (*end || end == j->arg[1]))
        api_error_set(&j->error, 400, "since", "`since` must be unix seconds");
    else if (available(j))
        answer(j, specializer_trace(j->srv->specializer, slot, since, j->number, &text), &text);
    if (j->number)
        j->type = "application/x-ndjson";
}

static void run_fleet(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_fleet(j->srv->specializer, &text), &text);
}

static void run_export(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_export(j->srv->specializer, &text), &text);
}

void admin_slots(struct exchange *x)
{
    start(x, run_slots);
}

void admin_slot(struct exchange *x)
{
    start(x, run_slots);
}

void admin_kernels(struct exchange *x)
{
    start(x, run_kernels);
}

void admin_kernel(struct exchange *x)
{
    start(x, run_kernels);
}

void admin_fleet(struct exchange *x)
{
    start(x, run_fleet);
}

/* ?slot= &since= &format=jsonl (or Accept: application/x-ndjson) */
void admin_trace(struct exchange *x)
{
    struct job *j = job_new(x, run_trace);
    const struct slice *accept = http_header(&x->req, "accept");
    char *format = http_query(&x->req, "format");
    j->arg[0] = http_query(&x->req, "slot"); /* "" is none */
    j->arg[1] = http_query(&x->req, "since");
    j->number = (format && strcmp(format, "jsonl") == 0) ||
                (accept && slice_is(*accept, "application/x-ndjson"));
    free(format);
    job_start(j, LANE_ADMIN);
}

void admin_export(struct exchange *x)
{
    start(x, run_export);
}

/* ---- changing ------------------------------------------------------------------------------ */

/* A string member of the body; NULL with j->error set if it is missing. An empty body is {}. */
static char *member(struct job *j, const char *name, bool needed)
{
    const char *value = NULL;
    cJSON *body = j->body.n ? json_parse(j->body.p, j->body.n, &j->error) : NULL;
    if (body && json_string(body, name, &value, &j->error) == 0 && needed)
        api_error_set(&j->error, 400, name, "`%s` is missing", name);
    if (!j->body.n && needed)
        api_error_set(&j->error, 400, name, "`%s` is missing", name);
    char *copy = value ? xstrdup(value) : NULL;
    cJSON_Delete(body);
    return copy;
}

static void run_pin(struct job *j)
{
    char *text = NULL;
    j->arg[0] = member(j, "kernel", true);
    if (!j->error.status && available(j))
        answer(j, specializer_pin(j->srv->specializer, j->rest, j->arg[0], j->who, &text), &text);
}

static void run_unpin(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_unpin(j->srv->specializer, j->rest, j->who, &text), &text);
}

static void run_rollback(struct job *j)
{
    char *text = NULL;
    j->arg[0] = member(j, "from", false);
    if (!j->error.status && available(j))
        answer(j, specializer_rollback(j->srv->specializer, j->rest, j->arg[0], j->who, &text),
               &text);
}

static void run_disable(struct job *j)
{
    char *text = NULL;
    j->arg[0] = member(j, "reason", false);
    if (!j->error.status && available(j))
        answer(j,
               specializer_disable(j->srv->specializer, j->rest, j->arg[0] ? j->arg[0] : "", j->who,
                                   &text),
               &text);
}

static void run_enable(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_enable(j->srv->specializer, j->rest, j->who, &text), &text);
}

static void run_mode(struct job *j)
{
    static const struct {
        const char *word;
        enum specializer_mode mode;
    } modes[] = {
        {"pause", SPECIALIZER_PAUSE}, {"resume", SPECIALIZER_RUN}, {"freeze", SPECIALIZER_FREEZE}};
    for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
        char *text = NULL;
        if (strcmp(j->rest, modes[i].word) != 0)
            continue;
        if (available(j))
            answer(j, specializer_set_mode(j->srv->specializer, modes[i].mode, j->who, &text),
                   &text);
        return;
    }
    api_error_set(&j->error, 404, NULL, "the specializer can pause, resume and freeze, not %.80s",
                  j->rest);
}

static void run_import(struct job *j)
{
    char *text = NULL;
    if (available(j))
        answer(j, specializer_import(j->srv->specializer, j->body.p, j->body.n, j->who, &text),
               &text);
}

void admin_pin(struct exchange *x)
{
    start(x, run_pin);
}

void admin_unpin(struct exchange *x)
{
    start(x, run_unpin);
}

void admin_rollback(struct exchange *x)
{
    start(x, run_rollback);
}

void admin_disable(struct exchange *x)
{
    start(x, run_disable);
}

void admin_enable(struct exchange *x)
{
    start(x, run_enable);
}

void admin_mode(struct exchange *x)
{
    start(x, run_mode);
}

void admin_import(struct exchange *x)
{
    start(x, run_import);
}
