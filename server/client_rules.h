/* SPDX-License-Identifier: Apache-2.0 */
/* client_rules.h - server.key_limits: how much each client may have.
 *
 * A file, or (with a `=` in it) the lines themselves, separated by commas. A line is
 *
 *   WHO [running=N] [waiting=N] [tokens_per_minute=N]        # a comment
 *
 * WHO is the name that a key has in its key file, `sha256:` and the first 8 to 64 hex digits of a
 * key's SHA-256, or `*` for all clients, addresses included. Who has a line of its own has from `*`
 * what that line does not say. `any` lifts a limit. Keys themselves stand nowhere but in key files.
 *
 * A line counts for the clients whose keys it names, all their keys together:
 * client_rules_add_key() tells it of every key before limits are asked for.
 */
#ifndef WHET_SERVER_CLIENT_RULES_H
#define WHET_SERVER_CLIENT_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "config/sha256.h"
#include "engine/engine.h"
#include "server/limits.h"

/* The identity of a client: a name, the digest of a key, or an address. Padded with zeros. */
struct client_name {
    enum { CLIENT_NAMED = 1, CLIENT_KEY, CLIENT_ADDRESS } kind;
    unsigned char bytes[SHA256_BYTES]; /* at most CLIENT_NAME_MAX characters; IPv4: the first 4,
                                          IPv6: the first 8, and the family last */
};

struct client_limits {
    struct request_limits requests;
    int64_t tokens_per_minute; /* 0: any number */
};

struct client_rule {
    enum { RULE_ALL, RULE_NAME, RULE_DIGEST } kind;
    unsigned char bytes[SHA256_BYTES];
    int digits;        /* RULE_DIGEST: hex digits that are given */
    int64_t number[3]; /* running, waiting, tokens a minute; RULE_UNSAID, RULE_ANY */
    int line;
    struct client_name *client; /* whose keys it names */
    int clients;
};
enum { RULE_UNSAID = -2, RULE_ANY = -1 };

struct client_rules {
    struct client_rule *rule;
    int n;
    const char *origin; /* for messages: the option, or the file */
    char *path;
};

/* True if `n` characters can be a client's name: letters, digits, `-`, `_` and `.`, not too many,
 * and none of the words that metrics use. */
bool client_name_good(const char *s, size_t n);

/* Reads the option's value. -1 with option, file and line in `err`; `r` is then empty. */
int client_rules_read(struct client_rules *r, const char *value, struct err *err);
void client_rules_free(struct client_rules *r);

/* There is a key with this digest (SHA256_BYTES), and it is this client's. -1 with both lines in
 * `err` if two of them are for the client, by names of two of its keys. */
int client_rules_add_key(struct client_rules *r, const struct client_name *who,
                         const unsigned char *digest, struct err *err);
/* A line for nobody is a slip of the pen, and whoever it was meant for would have no limit: -1 with
 * the line in `err` if there is one. All keys have been added. */
int client_rules_check(const struct client_rules *r, struct err *err);
/* What `who` may have. Addresses have what `*` says. */
struct client_limits client_rules_limits(const struct client_rules *r,
                                         const struct client_name *who);

#endif
