/* SPDX-License-Identifier: Apache-2.0 */
/* origin.c - the Host and Origin of a request.
 *
 * IP addresses are always right as a Host: an attacker's page cannot have one that is not its own,
 * because what rebinding turns around is what a *name* stands for.
 */
#include "server/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "server/auth.h"
#include "server/exchange.h"
#include "server/server.h"

static struct slice part(struct slice s, size_t from, size_t to)
{
    return (struct slice){s.p + from, to - from};
}

struct slice host_name(struct slice host)
{
    if (host.n && *host.p == '[') {
        const char *end = memchr(host.p, ']', host.n);
        return end ? part(host, 1, (size_t)(end - host.p)) : (struct slice){"", 0};
    }
    const char *colon = memchr(host.p, ':', host.n);
    return part(host, 0, colon ? (size_t)(colon - host.p) : host.n);
}

static bool is_address(struct slice name)
{
    char text[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    if (name.n >= sizeof(text))
        return false;
    memcpy(text, name.p, name.n);
    text[name.n] = '\0';
    return inet_pton(AF_INET, text, bytes) == 1 || inet_pton(AF_INET6, text, bytes) == 1;
}

static bool same(struct slice a, struct slice b)
{
    return a.n == b.n && strncasecmp(a.p, b.p, a.n) == 0;
}

static bool is_listed(struct slice name, const char *names)
{
    while (names && *names) {
        struct slice item = {names, strcspn(names, ",")};
        names += item.n + (names[item.n] == ',');
        while (item.n && *item.p == ' ')
            item = part(item, 1, item.n);
        while (item.n && item.p[item.n - 1] == ' ')
            item.n--;
        if (slice_is(item, "*") || (item.n && same(item, name)))
            return true;
    }
    return false;
}

bool host_is_known(struct slice name, const char *names)
{
    static const char below[] = ".localhost";
    size_t n = sizeof(below) - 1;
    if (name.n > 1 && name.p[name.n - 1] == '.')
        name.n--;
    return slice_is(name, "localhost") ||
           (name.n > n && slice_is(part(name, name.n - n, name.n), below)) || is_address(name) ||
           is_listed(name, names);
}

bool origin_is_of_host(struct slice origin, struct slice host)
{
    static const struct {
        const char *scheme, *port;
    } known[] = {{"http://", ":80"}, {"https://", ":443"}};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(known[i].scheme), m = strlen(known[i].port);
        if (origin.n <= n || strncasecmp(origin.p, known[i].scheme, n) != 0)
            continue;
        struct slice from = part(origin, n, origin.n);
        bool standard = host.n > m && memcmp(host.p + host.n - m, known[i].port, m) == 0;
        return same(from, host) || (standard && same(from, part(host, 0, host.n - m)));
    }
    return false;
}

static bool changes_nothing(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 ||
           strcmp(method, "OPTIONS") == 0;
}

int origin_check(const struct exchange *x, struct api_error *e)
{
    const struct server *s = x->srv;
    const struct slice *origin = http_header(&x->req, "origin");
    struct slice host = x->req.host;
    /* HTTP/1.0 knows requests without a Host, browsers do not. */
    bool nobody_asked = !host.p && x->req.minor == 0;
    struct slice name = host.p ? host_name(host) : (struct slice){"", 0};
    if (!s->auth.user.n && !nobody_asked && !host_is_known(name, s->config->server_hosts))
        return api_error_set(e, 421, NULL,
                             "this server is not known by the name %.*s: without API keys it "
                             "answers to IP addresses, localhost and the names in server.hosts",
                             (int)(name.n < 100 ? name.n : 100), name.p);
    if (!origin || changes_nothing(x->req.method) || auth_origin(&s->auth, &x->req).n ||
        (host.p && origin_is_of_host(*origin, host)))
        return 0;
    return api_error_set(e, 403, NULL,
                         "pages of %.*s may not call this server: its origin is not in "
                         "server.cors_origins",
                         (int)(origin->n < 100 ? origin->n : 100), origin->p);
}
