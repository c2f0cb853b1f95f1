/* SPDX-License-Identifier: Apache-2.0 */
/* auth.c - key files, constant-time comparison, the CORS allow-list.
 *
 * A presented key is copied into a zero-padded block and compared with every configured key over
 * the whole block, so the time taken says neither which key is near nor how long it is.
 */
#include "server/auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/key_file.h"
#include "config/sha256.h"

/* After a key: nothing, or its name. Otherwise the client is the key, known by its digest. */
static int read_name(struct key *key, const char *path, int line, const char *s, size_t n,
                     struct err *err)
{
    sha256(key->bytes, key->n, key->digest);
    key->name.kind = n ? CLIENT_NAMED : CLIENT_KEY;
    if (!n) {
        memcpy(key->name.bytes, key->digest, sizeof key->name.bytes);
        return 0;
    }
    if (n < 5 || memcmp(s, "name=", 5) != 0 || !client_name_good(s + 5, n - 5))
        return err_set(err,
                       "%s line %d: a key is printable ASCII without spaces; after it only "
                       "name=NAME may stand (letters, digits, - _ . and at most %d of them; not "
                       "`all`, not `other`)",
                       path, line, CLIENT_NAME_MAX);
    memcpy(key->name.bytes, s + 5, n - 5);
    return 0;
}

/* Characters before a comment, and before the blanks in front of it. */
static size_t until_comment(const char *s, size_t n)
{
    const char *mark = memchr(s, '#', n);
    n = mark ? (size_t)(mark - s) : n;
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    return n;
}

static int add_key(struct keys *k, const char *path, int line, const char *s, size_t all,
                   struct err *err)
{
    size_t n = 0, blank;
    while (n < all && s[n] != ' ' && s[n] != '\t')
        n++;
    for (blank = n; blank < all && (s[blank] == ' ' || s[blank] == '\t');)
        blank++;
    all = blank + until_comment(s + blank, all - blank);
    if (n > KEY_BYTES_MAX)
        return err_set(err, "%s line %d: a key has at most %d bytes", path, line, KEY_BYTES_MAX);
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] == 0x7f)
            return err_set(err, "%s line %d: a key is printable ASCII without spaces", path, line);
    k->key = xrealloc(k->key, (size_t)(k->n + 1) * sizeof(*k->key));
    struct key *key = &k->key[k->n++];
    memset(key, 0, sizeof(*key));
    memcpy(key->bytes, s, n);
    key->n = n;
    return read_name(key, path, line, s + blank, all - blank, err);
}

/* Reads a key file; an empty path means no keys. */
static int read_keys(struct keys *k, const char *option, const char *path, struct err *err)
{
    *k = (struct keys){0};
    if (!path || !*path)
        return 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(err, "%s: cannot read %s: %s", option, path, strerror(errno));
    key_file_warn(option, path);
    char *line = NULL;
    size_t room = 0;
    int number = 0, rc = 0;
    ssize_t n;
    while (rc == 0 && (n = getline(&line, &room, f)) >= 0) {
        number++;
        char *s = line;
        while (n > 0 && strchr(" \t\r\n", s[n - 1]))
            n--;
        while (n > 0 && (*s == ' ' || *s == '\t'))
            s++, n--;
        if (n > 0 && *s != '#')
            rc = add_key(k, path, number, s, (size_t)n, err);
    }
    free(line);
    fclose(f);
    if (rc == 0 && k->n == 0)
        rc = err_set(err, "%s: %s holds no key", option, path);
    if (rc) {
        free(k->key);
        *k = (struct keys){0};
    }
    return rc;
}

static void read_origins(struct auth *a, const char *list)
{
    a->origin = NULL;
    a->origins = 0;
    while (list && *list) {
        size_t n = strcspn(list, ",");
        const char *s = list;
        list += n + (list[n] == ',');
        while (n && *s == ' ')
            s++, n--;
        while (n && (s[n - 1] == ' ' || s[n - 1] == '/'))
            n--;
        if (!n)
            continue;
        a->origin = xrealloc(a->origin, (size_t)(a->origins + 1) * sizeof(*a->origin));
        a->origin[a->origins++] = xstrndup(s, n);
    }
}

/* Frees everything but the clients, which outlive a change of keys. */
static void free_keys(struct auth *a)
{
    for (int side = 0; side < 2; side++) {
        struct keys *keys = side ? &a->admin : &a->user;
        for (int i = 0; i < keys->n; i++)
            if (keys->key[i].client)
                clients_release(a->clients, keys->key[i].client);
        free(keys->key);
    }
    for (int i = 0; i < a->origins; i++)
        free(a->origin[i]);
    free(a->origin);
}

/* Finds out which clients each rule is for. */
static int bind_rules(struct client_rules *r, const struct auth *a, struct err *err)
{
    for (int side = 0; side < 2; side++) {
        const struct keys *keys = side ? &a->admin : &a->user;
        for (int i = 0; i < keys->n; i++)
            if (client_rules_add_key(r, &keys->key[i].name, keys->key[i].digest, err))
                return -1;
    }
    return client_rules_check(r, err);
}

static void hold_clients(struct clients *all, struct keys *k)
{
    for (int i = 0; i < k->n; i++)
        k->key[i].client = clients_get(all, &k->key[i].name);
}

int auth_load(struct auth *a, const struct config *c, struct err *err)
{
    struct auth fresh = {0};
    struct client_rules rules = {0};
    if (read_keys(&fresh.user, "server.api_keys", c->server_api_keys, err) ||
        read_keys(&fresh.admin, "server.admin_key_file", c->server_admin_key_file, err) ||
        client_rules_read(&rules, c->server_key_limits, err) || bind_rules(&rules, &fresh, err)) {
        client_rules_free(&rules);
        auth_free(&fresh);
        return -1;
    }
    read_origins(&fresh, c->server_cors_origins);
    fresh.clients = a->clients ? a->clients : clients_open();
    clients_set_rules(fresh.clients, &rules);
    hold_clients(fresh.clients, &fresh.user);
    hold_clients(fresh.clients, &fresh.admin);
    struct auth old = *a;
    *a = fresh;
    free_keys(&old);
    return 0;
}

void auth_free(struct auth *a)
{
    free_keys(a);
    clients_close(a->clients);
    *a = (struct auth){0};
}

/* The key that `s` is, or NULL. Time depends on the number of keys only. */
static const struct key *find_key(const struct keys *k, struct slice s)
{
    struct key given = {.n = s.n};
    memcpy(given.bytes, s.p, s.n < KEY_BYTES_MAX ? s.n : KEY_BYTES_MAX);
    size_t found = 0; /* one more than its place */
    for (int i = 0; i < k->n; i++) {
        const struct key *key = &k->key[i];
        size_t differ = key->n ^ given.n;
        for (int b = 0; b < KEY_BYTES_MAX; b++)
            differ |= (size_t)(key->bytes[b] ^ given.bytes[b]);
        found |= (size_t)(i + 1) & (0 - (size_t)((differ == 0) & (found == 0)));
    }
    return found ? &k->key[found - 1] : NULL;
}

static bool is_key(const struct keys *k, struct slice s)
{
    return find_key(k, s) != NULL;
}

/* The token of `Authorization: Bearer <token>`; empty if there is none. */
static struct slice bearer(const struct http_request *req)
{
    const struct slice *h = http_header(req, "authorization");
    if (!h || h->n < 7 || strncasecmp(h->p, "Bearer ", 7) != 0)
        return (struct slice){"", 0};
    struct slice s = {h->p + 7, h->n - 7};
    while (s.n && *s.p == ' ')
        s.p++, s.n--;
    return s;
}

int auth_check(const struct auth *a, const struct http_request *req, enum access access,
               bool metrics_open)
{
    struct slice token = bearer(req);
    switch (access) {
    case ACCESS_OPEN:
        return 0;
    case ACCESS_METRICS:
        if (metrics_open)
            return 0;
        break;
    case ACCESS_USER:
        break;
    case ACCESS_ADMIN:
        if (!a->admin.n)
            return 403;
        if (is_key(&a->admin, token))
            return 0;
        return is_key(&a->user, token) ? 403 : 401;
    }
    if (!a->user.n || is_key(&a->user, token) || is_key(&a->admin, token))
        return 0;
    return 401;
}

bool auth_is_admin(const struct auth *a, const struct http_request *req)
{
    return is_key(&a->admin, bearer(req));
}

struct client *auth_client(struct auth *a, const struct http_request *req,
                           const struct sockaddr *from)
{
    struct slice token = bearer(req);
    const struct key *user = find_key(&a->user, token), *admin = find_key(&a->admin, token);
    const struct key *key = user ? user : admin;
    struct client_name who = key ? key->name : clients_address(from);
    return clients_get(a->clients, &who);
}

struct slice auth_origin(const struct auth *a, const struct http_request *req)
{
    const struct slice *origin = http_header(req, "origin");
    for (int i = 0; origin && i < a->origins; i++)
        if (slice_is(*origin, a->origin[i]) || strcmp(a->origin[i], "*") == 0)
            return *origin;
    return (struct slice){"", 0};
}
