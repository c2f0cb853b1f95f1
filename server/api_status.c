/* SPDX-License-Identifier: Apache-2.0 */
/* api_status.c - what watchers read: /metrics, /specializer, and the dashboard that draws it.
 *
 * The page itself is a constant without a secret in it and needs no key, so that a browser can
 * open it; it asks for one when /specializer, which it polls, wants one. Both work while the model
 * loads and while the server drains: that is when somebody looks.
 *
 * Answers that ask every module are put together off the loop. What only the loop may read (its
 * own counters and state) is written before.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "server/dashboard.h"
#include "server/job.h"
#include "server/json.h"
#include "server/router.h"
#include "server/server.h"

/* ---- the page ------------------------------------------------------------------------------ */

void api_dashboard(struct exchange *x)
{
    static char headers[1024];
    if (!headers[0])
        snprintf(headers, sizeof headers,
                 "Content-Security-Policy: %s\r\n"
                 "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
                 "Cross-Origin-Opener-Policy: same-origin\r\nCache-Control: no-cache\r\n",
                 dashboard_policy);
    x->headers = headers;
    respond(x, 200, "text/html; charset=utf-8", (const char *)dashboard_page, dashboard_size);
}

/* ---- the JSON behind it -------------------------------------------------------------------- */

static void put_member(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_text(b, value);
}

/* The server's own part. */
static void put_server(struct server *s, struct buf *b)
{
    double progress = 0;
    char message[512] = "";
    uint64_t answers[6];
    enum engine_state state = engine_state(s->engine, &progress, message, sizeof message);
    const char *name = s->leaving || s->draining ? "draining"
                       : state == ENGINE_LOST    ? "lost"
                       : s->ready                ? "ready"
                       : state == ENGINE_FAILED  ? "failed"
                                                 : "loading";
    metrics_answers(&s->metrics, answers);
    buf_printf(b,
               "{\"state\":\"%s\",\"progress\":%.3f,\"time\":%.3f,\"uptime_s\":%.1f,"
               "\"version\":\"" WHET_VERSION "\",\"admin\":%s,\"connections\":%d,"
               "\"answers\":{\"ok\":%llu,\"client_error\":%llu,\"server_error\":%llu}",
               name, s->ready ? 1.0 : progress, clock_wall(),
               (double)(clock_ns() - s->started_ns) * 1e-9, s->auth.admin.n ? "true" : "false",
               s->connections, (unsigned long long)answers[2], (unsigned long long)answers[4],
               (unsigned long long)answers[5]);
    put_member(b, "message", message);
    if (s->ready) {
        const struct engine_info *info = engine_info(s->engine);
        put_member(b, "model", info->model_name);
        put_member(b, "description", info->description);
        put_member(b, "backend", info->backend);
        put_member(b, "device", info->device);
        buf_printf(b, ",\"max_context\":%d", info->max_context);
    }
    buf_char(b, '}');
}

static void run_specializer(struct job *j)
{
    char *engine = engine_json(j->srv->engine);
    char *history = engine_history_json(j->srv->engine, j->number);
    char *spec = j->srv->specializer ? specializer_json(j->srv->specializer) : NULL;
    const char *const part[] = {
        ",\"engine\":",       engine, ",\"history\":", history, ",\"specializer\":",
        spec ? spec : "null", "}"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        json_put_made(&j->out, part[i]);
    free(engine);
    free(history);
    free(spec);
}

/* ?history=SECONDS of the series, one minute unless told otherwise. */
void api_specializer(struct exchange *x)
{
    enum { HISTORY_DEFAULT = 60 };
    struct job *j = job_new(x, run_specializer);
    char *end = NULL, *seconds = http_query(&x->req, "history");
    long n = seconds ? strtol(seconds, &end, 10) : HISTORY_DEFAULT;
    j->number = n < 0 || (end && *end) ? 0 : n > 3600 ? 3600 : (int)n;
    free(seconds);
    buf_str(&j->out, "{\"server\":");
    put_server(x->srv, &j->out);
    job_start(j, LANE_BOARD);
}

/* ---- metrics ------------------------------------------------------------------------------- */

/* The HTTP side's own counters were written on the loop; the other modules' are atomic. */
static void run_metrics(struct job *j)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = xmemstream(&text, &n);
    if (j->number)
        engine_metrics(j->srv->engine, out);
    if (j->srv->specializer)
        specializer_metrics(j->srv->specializer, out);
    metrics_process(out);
    fclose(out);
    buf_add(&j->out, text, n);
    free(text);
    j->type = "text/plain; version=0.0.4; charset=utf-8";
}

void api_metrics(struct exchange *x)
{
    struct job *j = job_new(x, run_metrics);
    char *text = NULL;
    size_t n = 0;
    FILE *out = xmemstream(&text, &n);
    metric_head(out, "ready", "gauge", "1 once the model is loaded and until the drain");
    metric_value(out, "ready", NULL, x->srv->ready && !x->srv->leaving && !x->srv->draining);
    server_measure(x->srv);
    metrics_write(&x->srv->metrics, out);
    /* Who is a client here, and how much each asks for, is nobody's business but the operator's. */
    clients_metrics(x->srv->auth.clients, auth_is_admin(&x->srv->auth, &x->req), out);
    fclose(out);
    buf_add(&j->out, text, n);
    free(text);
    j->number = x->srv->ready; /* the engine has nothing to say before */
    job_start(j, LANE_METRICS);
}
