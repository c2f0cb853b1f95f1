/* SPDX-License-Identifier: Apache-2.0 */
/* listener.h - the port that clients connect to.
 *
 * Connections are accepted here and not by libuv: when a process has no descriptor left,
 * it closes all that wait, or, as of 1.50 and without its spare descriptor, tries again for
 * ever and tells nobody. Here whoever comes then takes the place of an idle connection (room.h).
 *
 * Loop thread only.
 */
#ifndef WHET_SERVER_LISTENER_H
#define WHET_SERVER_LISTENER_H

#include "config/err.h"

struct server;

/* Listens on server.host and server.port (0: any; s->port says which) and hands each connection to
 * conn_accept(). Nonzero: s->listener was not begun, and listener_close() has nothing to do. */
int listener_open(struct server *s, struct err *err);
/* Who has not been accepted by now is refused. */
void listener_close(struct server *s);

#endif
