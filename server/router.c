/* SPDX-License-Identifier: Apache-2.0 */
/* router.c - the table of routes, and the checks that need no body.
 *
 * The first row whose pattern matches the path decides the pattern; rows with that same pattern
 * are its methods. HEAD goes wherever GET goes, OPTIONS everywhere. Slot names and model names
 * contain slashes, so `*` matches them too, and the more specific patterns stand first.
 *
 * Checks run in the order in which a client meets them: whom it asks and from where, key,
 * existence, method, state, framing.
 */
#include "server/router.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/err.h"
#include "server/origin.h"
#include "server/server.h"

#define GENERATE (NEED_BODY | NEED_MODEL)

static const struct route routes[] = {
    {"POST", "/v1/completions", "/v1/completions", ACCESS_USER, GENERATE, api_completions},
    {"POST", "/completions", "/v1/completions", ACCESS_USER, GENERATE, api_completions},
    {"POST", "/v1/chat/completions", "/v1/chat/completions", ACCESS_USER, GENERATE, api_chat},
    {"POST", "/chat/completions", "/v1/chat/completions", ACCESS_USER, GENERATE, api_chat},
    {"GET", "/v1/models", "/v1/models", ACCESS_USER, NEED_MODEL, api_models},
    {"GET", "/v1/models/*", "/v1/models/{id}", ACCESS_USER, NEED_MODEL, api_model},
    {"GET", "/models", "/v1/models", ACCESS_USER, NEED_MODEL, api_models},
    {"GET", "/models/*", "/v1/models/{id}", ACCESS_USER, NEED_MODEL, api_model},
    {"POST", "/tokenize", "/tokenize", ACCESS_USER, GENERATE, api_tokenize},
    {"POST", "/detokenize", "/detokenize", ACCESS_USER, GENERATE, api_detokenize},
    {"GET", "/health", "/health", ACCESS_OPEN, 0, api_health},
    {"GET", "/ready", "/ready", ACCESS_OPEN, 0, api_ready},
    {"GET", "/version", "/version", ACCESS_OPEN, 0, api_version},
    {"GET", "/metrics", "/metrics", ACCESS_METRICS, 0, api_metrics},
    {"GET", "/dashboard", "/dashboard", ACCESS_OPEN, 0, api_dashboard},
    {"GET", "/specializer", "/specializer", ACCESS_USER, 0, api_specializer},
    {"GET", "/admin/slots", "/admin/slots", ACCESS_ADMIN, NEED_OPEN, admin_slots},
    {"POST", "/admin/slots/*/pin", "/admin/slots/{slot}/pin", ACCESS_ADMIN, NEED_OPEN | NEED_BODY,
     admin_pin},
    {"DELETE", "/admin/slots/*/pin", "/admin/slots/{slot}/pin", ACCESS_ADMIN, NEED_OPEN,
     admin_unpin},
    {"POST", "/admin/slots/*/rollback", "/admin/slots/{slot}/rollback", ACCESS_ADMIN, NEED_OPEN,
     admin_rollback},
    {"GET", "/admin/slots/*", "/admin/slots/{slot}", ACCESS_ADMIN, NEED_OPEN, admin_slot},
    {"GET", "/admin/kernels", "/admin/kernels", ACCESS_ADMIN, NEED_OPEN, admin_kernels},
    {"POST", "/admin/kernels/*/disable", "/admin/kernels/{id}/disable", ACCESS_ADMIN, NEED_OPEN,
     admin_disable},
    {"POST", "/admin/kernels/*/enable", "/admin/kernels/{id}/enable", ACCESS_ADMIN, NEED_OPEN,
     admin_enable},
    {"GET", "/admin/kernels/*", "/admin/kernels/{id}", ACCESS_ADMIN, NEED_OPEN, admin_kernel},
    {"POST", "/admin/specializer/*", "/admin/specializer/{mode}", ACCESS_ADMIN, NEED_OPEN,
     admin_mode},
    {"GET", "/admin/fleet", "/admin/fleet", ACCESS_ADMIN, NEED_OPEN, admin_fleet},
    {"GET", "/admin/trace", "/admin/trace", ACCESS_ADMIN, NEED_OPEN, admin_trace},
    {"GET", "/admin/store/export", "/admin/store/export", ACCESS_ADMIN, NEED_OPEN, admin_export},
    {"POST", "/admin/store/import", "/admin/store/import", ACCESS_ADMIN, NEED_OPEN | NEED_BODY,
     admin_import},
};
enum { ROUTES = sizeof(routes) / sizeof(*routes), LABEL_OTHER = ROUTES };
_Static_assert((int)ROUTES < (int)METRIC_ROUTES, "every route has a counter");

int router_labels(void)
{
    return ROUTES + 1;
}

int router_label(const struct route *r)
{
    if (!r)
        return LABEL_OTHER;
    int i = 0;
    while (strcmp(routes[i].label, r->label) != 0)
        i++;
    return i;
}

const char *router_label_text(int label)
{
    if (label == LABEL_OTHER)
        return "other";
    return router_label(&routes[label]) == label ? routes[label].label : NULL;
}

/* Whether `path` matches; what `*` stood for in *rest. */
static bool matches(const char *pattern, const char *path, struct slice *rest)
{
    const char *star = strchr(pattern, '*');
    if (!star)
        return strcmp(pattern, path) == 0;
    size_t before = (size_t)(star - pattern), behind = strlen(star + 1), n = strlen(path);
    if (n <= before + behind || strncmp(path, pattern, before) != 0 ||
        strcmp(path + n - behind, star + 1) != 0)
        return false;
    *rest = (struct slice){path + before, n - before - behind};
    return true;
}

/* Finds the row for path and method. x->allow lists the path's methods if there is one at all. */
static const struct route *find(struct exchange *x)
{
    const char *method = strcmp(x->req.method, "HEAD") == 0 ? "GET" : x->req.method;
    const char *pattern = NULL;
    const struct route *found = NULL;
    for (int i = 0; i < ROUTES; i++) {
        struct slice rest = {0};
        const struct route *r = &routes[i];
        if (pattern ? strcmp(r->pattern, pattern) : !matches(r->pattern, x->req.path, &rest))
            continue;
        if (!pattern && rest.n)
            x->rest = xasprintf("%.*s", (int)rest.n, rest.p);
        pattern = r->pattern;
        size_t n = strlen(x->allow);
        snprintf(x->allow + n, sizeof(x->allow) - n, "%s%s, ", r->method,
                 strcmp(r->method, "GET") ? "" : ", HEAD");
        if (strcmp(r->method, method) == 0)
            found = r;
    }
    size_t n = strlen(x->allow);
    if (pattern)
        snprintf(x->allow + n, sizeof(x->allow) - n, "OPTIONS");
    return found;
}

static int admit_key(struct exchange *x, enum access access, struct api_error *e)
{
    int status = auth_check(&x->srv->auth, &x->req, access, x->srv->config->server_metrics_open);
    if (status == 401)
        return api_error_set(e, 401, NULL, "%s key is needed: Authorization: Bearer KEY",
                             access == ACCESS_ADMIN ? "the admin" : "a valid API");
    if (status == 403)
        return api_error_set(e, 403, NULL,
                             x->srv->auth.admin.n ? "this needs the admin key"
                                                  : "no admin key is configured "
                                                    "(server.admin_key_file): /admin is closed");
    return 0;
}

/* A body says that it is JSON. What a page of another site can have a browser send without asking
 * first says something else, or nothing. */
static int admit_body(struct exchange *x, bool needed, struct api_error *e)
{
    if (!x->req.has_length && !x->req.chunked)
        return needed ? api_error_set(e, 411, NULL, "a body with Content-Length is needed") : 0;
    if (!needed && !x->req.chunked && !x->req.length)
        return 0;
    const struct slice *type = http_header(&x->req, "content-type");
    if (!type)
        return api_error_set(e, 415, NULL,
                             "a Content-Type is needed, and it must be application/json");
    const char *semicolon = memchr(type->p, ';', type->n);
    struct slice media = {type->p, semicolon ? (size_t)(semicolon - type->p) : type->n};
    while (media.n && (media.p[media.n - 1] == ' ' || media.p[media.n - 1] == '\t'))
        media.n--;
    bool json = slice_is(media, "application/json") ||
                (media.n > 5 && strncasecmp(media.p + media.n - 5, "+json", 5) == 0);
    if (!json)
        return api_error_set(e, 415, NULL, "Content-Type must be application/json, not %.*s",
                             (int)(media.n < 80 ? media.n : 80), media.p);
    const struct slice *coding = http_header(&x->req, "content-encoding");
    if (coding && coding->n && !slice_is(*coding, "identity"))
        return api_error_set(e, 415, NULL,
                             "a body in the Content-Encoding %.*s cannot be read: send it plain",
                             (int)(coding->n < 80 ? coding->n : 80), coding->p);
    return 0;
}

int router_admit(struct exchange *x, struct api_error *e)
{
    struct server *s = x->srv;
    x->route = find(x);
    if (origin_check(x, e))
        return -1;
    if (strcmp(x->req.method, "OPTIONS") == 0 && (x->allow[0] || !strcmp(x->req.path, "*")))
        return 0;
    bool known = x->route != NULL;
    bool admin = strncmp(x->req.path, "/admin", 6) == 0;
    if (admit_key(x, known ? x->route->access : admin ? ACCESS_ADMIN : ACCESS_USER, e))
        return -1;
    if (!known && x->allow[0])
        return api_error_set(e, 405, NULL, "%s is not allowed for %s", x->req.method, x->req.path);
    if (!known)
        return api_error_set(e, 404, NULL, "there is no route %s", x->req.path);
    unsigned needs = x->route->needs;
    if (s->draining && (needs & (NEED_MODEL | NEED_OPEN)))
        return api_error_set(e, 503, NULL, "the server is shutting down");
    if (!s->ready && (needs & NEED_MODEL))
        return api_error_code(e, 503, "model_loading", NULL, "the model is still loading");
    return admit_body(x, needs & NEED_BODY, e);
}

bool router_for_operators(const struct route *r)
{
    return !r || r->access != ACCESS_USER;
}

void router_run(struct exchange *x)
{
    if (strcmp(x->req.method, "OPTIONS") == 0)
        respond(x, 204, NULL, NULL, 0);
    else
        x->route->run(x);
}
