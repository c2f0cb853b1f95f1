/* SPDX-License-Identifier: Apache-2.0 */
/* origin.h - which web pages may make a browser ask this server.
 *
 * A page of any site can have the browsers of its visitors send requests to addresses that only
 * they reach, this server's among them. Two things betray such a request. It names the page's
 * origin: then it may change nothing and generate nothing unless it is this server's own page or
 * one of server.cors_origins. Or, with a name that the attacker points at this server's address
 * (DNS rebinding), it looks like one of the server's own pages, but asks a Host that is the
 * attacker's: then it is not answered at all. With API keys the Host is not looked at, because a
 * page that knows none gets nowhere.
 *
 * Pure but for the log; loop thread.
 */
#ifndef WHET_SERVER_ORIGIN_H
#define WHET_SERVER_ORIGIN_H

#include <stdbool.h>

#include "server/error.h"
#include "server/http.h"

struct exchange;

/* 0, or -1 with a 421 (Host) or 403 (Origin) that names the option. */
int origin_check(const struct exchange *x, struct api_error *e);

/* `host` without a port, and without the brackets of an IPv6 address. */
struct slice host_name(struct slice host);
/* An IP address, localhost, a name below it, or one of the comma separated `names` (or "*"). A
 * name may end in a dot. */
bool host_is_known(struct slice name, const char *names);
/* Whether an origin ("https://name:port") is that of a page from `host` ("name:port"). The scheme
 * is not compared: a proxy may speak TLS for this server. */
bool origin_is_of_host(struct slice origin, struct slice host);

#endif
