/* SPDX-License-Identifier: Apache-2.0 */
/* auth.h - who may call, and who calls: API keys, the admin key, CORS origins, clients.
 *
 * Keys come from files: one a line, with `name=NAME` after it if the key is to have one (keys of
 * the same name are one client); # starts a comment. They are compared in constant time against
 * every key there is. auth_load() is also the reload: on failure the old keys and limits stay. Loop
 * thread.
 */
#ifndef WHET_SERVER_AUTH_H
#define WHET_SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "server/clients.h"
#include "server/http.h"
#include "server/limits.h"

struct key {
    unsigned char bytes[KEY_BYTES_MAX]; /* zero-padded */
    size_t n;
    unsigned char digest[SHA256_BYTES];
    struct client_name name;
    struct client *client; /* held */
};

struct keys {
    struct key *key;
    int n;
};

struct auth {
    struct keys user, admin; /* n == 0: none configured */
    char **origin;           /* CORS allow-list; "*" allows any */
    int origins;
    struct clients *clients;
};

enum access {
    ACCESS_OPEN,    /* everybody */
    ACCESS_USER,    /* a key if keys are configured */
    ACCESS_METRICS, /* open or USER, by server.metrics_open */
    ACCESS_ADMIN,   /* the admin key; refused if none is configured */
};

/* Reads the files that the options name. 0, or -1 with a message naming the file and line. */
int auth_load(struct auth *a, const struct config *c, struct err *err);
void auth_free(struct auth *a);

/* 0 allowed; otherwise the status to answer (401, 403). */
int auth_check(const struct auth *a, const struct http_request *req, enum access access,
               bool metrics_open);
/* True if it carries the admin key. */
bool auth_is_admin(const struct auth *a, const struct http_request *req);
/* The client that a request comes from, by its key or else by its address; held. */
struct client *auth_client(struct auth *a, const struct http_request *req,
                           const struct sockaddr *from);
/* The request's Origin if it is on the allow-list, else an empty slice. */
struct slice auth_origin(const struct auth *a, const struct http_request *req);

#endif
