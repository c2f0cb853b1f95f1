/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a server with the toy engine on a thread, and a bare socket client, for tests. */
#ifndef WHET_TESTS_UNIT_SERVER_CLIENT_H
#define WHET_TESTS_UNIT_SERVER_CLIENT_H

#include "server/buf.h"
#include "server/server.h"

/* The configuration is at the defaults that matter; change it before serving_start. */
extern struct config serving_config;
extern struct server *serving;

/* Called between server_open and server_run unless it is NULL. */
extern void (*serving_prepare)(void);

void serving_start(void);
/* server_stop, then waits for the loop to end; returns its exit code. */
int serving_stop(void);

/* A connected socket whose reads give up after 5 s. */
int client_open(void);
/* Likewise, from 127.0.0.`host`. */
int client_open_from(int host);
/* Formats and sends. */
void client_send(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* POSTs JSON. */
void client_post(int fd, const char *path, const char *json);
/* One whole response (by Content-Length or chunks, dechunked), NUL-terminated in a static buffer:
 * head, blank line, body. Empty if the connection ended first. */
const char *client_response(int fd);
/* What comes until `text` has been seen, or the end; static buffer as above. */
const char *client_until(int fd, const char *text);
/* True if the server has closed: the next read is an end (not a timeout). */
bool client_closed(int fd);
/* Status of a response text; 0 if there is none. */
int client_status(const char *response);
const char *client_body(const char *response);

#endif
