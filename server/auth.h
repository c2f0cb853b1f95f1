/* auth.h - who may call: API keys, the admin key, CORS origins.
 *
 * Keys come from files (one a line, # starts a comment) and are compared in constant time against
 * every key there is. auth_load() is also the reload: on failure the old keys stay.
 */
#ifndef WHET_SERVER_AUTH_H
#define WHET_SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "server/http.h"
#include "server/limits.h"

struct key {
    unsigned char bytes[KEY_BYTES_MAX]; /* zero-padded */
    size_t n;
};

struct keys {
    struct key *key;
    int n;
};

struct auth {
    struct keys user, admin; /* n == 0: none configured */
    char **origin;           /* CORS allow-list; "*" allows any */
    int origins;
};

enum access {
    ACCESS_OPEN,    /* /health, /ready, /version */
    ACCESS_USER,    /* a key if keys are configured */
    ACCESS_METRICS, /* open or USER, by server.metrics_open */
    ACCESS_ADMIN,   /* the admin key; refused if none is configured */
};

int auth_load(struct auth *a, const struct config *c, struct err *err);
void auth_free(struct auth *a);

/* 0 allowed; otherwise the status to answer (401, 403). */
int auth_check(const struct auth *a, const struct http_request *req, enum access access,
               bool metrics_open);
/* The request's Origin if it is on the allow-list, else an empty slice. */
struct slice auth_origin(const struct auth *a, const struct http_request *req);

#endif
