/* SPDX-License-Identifier: Apache-2.0 */
/* api_misc.c - models, health, readiness, version: answers that need no engine work. */
#include <string.h>

#include "config/clock.h"
#include "server/json.h"
#include "server/router.h"
#include "server/server.h"

/* ---- models -------------------------------------------------------------------------------- */

static void put_model(struct buf *b, const struct engine_info *info)
{
    buf_str(b, "{\"id\":");
    json_put_text(b, info->model_name);
    buf_printf(b,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"whet\","
               "\"max_model_len\":%d}",
               (long long)info->created, info->max_context);
}

void api_models(struct exchange *x)
{
    struct buf b = {0};
    buf_str(&b, "{\"object\":\"list\",\"data\":[");
    put_model(&b, engine_info(x->srv->engine));
    buf_str(&b, "]}");
    respond_json(x, 200, &b);
}

void api_model(struct exchange *x)
{
    const struct engine_info *info = engine_info(x->srv->engine);
    if (strcmp(x->rest, info->model_name) != 0) {
        struct api_error e;
        api_error_code(&e, 404, "model_not_found", "model",
                       "the model `%.200s` does not exist; this server has `%s`", x->rest,
                       info->model_name);
        respond_error(x, &e);
        return;
    }
    struct buf b = {0};
    put_model(&b, info);
    respond_json(x, 200, &b);
}

/* ---- health -------------------------------------------------------------------------------- */

void api_health(struct exchange *x)
{
    double stalled = x->srv->ready ? engine_stalled_s(x->srv->engine) : 0;
    bool lost = engine_state(x->srv->engine, NULL, NULL, 0) == ENGINE_LOST;
    struct buf b = {0};
    bool draining = x->srv->draining, ok = stalled < STALL_S && !lost && !draining;
    buf_printf(&b, "{\"status\":\"%s\",\"stalled_seconds\":%.1f}",
               ok                   ? "ok"
               : lost               ? "lost"
               : stalled >= STALL_S ? "stalled"
                                    : "draining",
               stalled);
    respond_json(x, ok ? 200 : 503, &b);
}

/* A client that waits for /ready gets specialized speed from the first request on; one that does
 * not is served as well. */
static bool awaits_kernels(const struct server *s)
{
    double waited = (double)(clock_ns() - s->ready_ns) * 1e-9;
    return s->specializer && waited < s->config->specializer_restore_s &&
           specializer_restoring(s->specializer);
}

void api_ready(struct exchange *x)
{
    double progress = 0;
    char message[512] = "";
    struct buf b = {0};
    enum engine_state state = engine_state(x->srv->engine, &progress, message, sizeof(message));
    bool leaves = x->srv->leaving || x->srv->draining;
    bool serving = state == ENGINE_READY && x->srv->ready && !leaves;
    bool ready = serving && !awaits_kernels(x->srv);
    const char *status = leaves                   ? "draining"
                         : ready                  ? "ready"
                         : serving                ? "restoring"
                         : state == ENGINE_FAILED ? "failed"
                         : state == ENGINE_LOST   ? "lost"
                                                  : "loading";
    buf_printf(&b, "{\"status\":\"%s\",\"progress\":%.3f,\"message\":", status,
               ready ? 1.0 : progress);
    json_put_text(&b, message);
    buf_char(&b, '}');
    respond_json(x, ready ? 200 : 503, &b);
}

void api_version(struct exchange *x)
{
    struct buf b = {0};
    buf_str(&b, "{\"version\":\"" WHET_VERSION "\"}");
    respond_json(x, 200, &b);
}
