/* SPDX-License-Identifier: Apache-2.0 */
/* clients.h - who the requests come from, what each may have, and what each had.
 *
 * A client is a key, all keys with one name, or, where no keys are set, an address: an IPv4 address
 * or an IPv6 /64, which is what one customer of a network is given. It has a number that is never
 * used again, by which the engine shares its work and keeps prompts apart. Loop thread only.
 */
#ifndef WHET_SERVER_CLIENTS_H
#define WHET_SERVER_CLIENTS_H

#include <stdio.h>
#include <sys/socket.h>

#include "server/client_rules.h"
#include "server/error.h"

enum client_refusal { REFUSED_QUEUE, REFUSED_DISPLACED, REFUSED_REQUESTS, REFUSED_TOKENS };

/* For metrics: of one named client, or of all others together. */
struct client_counts {
    uint64_t requests, refused[REFUSED_TOKENS + 1], prompt_tokens, generated_tokens;
    int64_t active;
};

struct client {
    uint64_t id;
    struct client_name name;
    struct client_limits limits;
    double tokens;     /* in its bucket: of a minute at most; below 0 after long answers */
    int64_t filled_ns; /* when the bucket was last filled up */
    int32_t active;    /* requests in the engine */
    struct client_counts own, *counts; /* counts: own, or those of all others */
    int32_t held;
    struct client *next_same;
    struct client *older, *newer; /* among those that nobody holds */
};

struct clients;
struct clients *clients_open(void);
void clients_close(struct clients *all); /* nobody holds any */

/* Takes the rules over: everybody's limits are set anew, counts stay, and of its bucket each has
 * the share that it had, or what it used of a lower limit is used of the new one. */
void clients_set_rules(struct clients *all, struct client_rules *rules);

/* Finds or makes it, and holds it: who is held is not forgotten. */
struct client *clients_get(struct clients *all, const struct client_name *who);
struct client_name clients_address(const struct sockaddr *addr);
void clients_release(struct clients *all, struct client *c);
int clients_remembered(const struct clients *all);

/* Seconds until `tokens` more fit into its tokens a minute: 0 now, INFINITY never. */
double client_wait_s(struct client *c, int64_t tokens, int64_t now_ns);
void client_charge(struct client *c, int64_t tokens, int64_t now_ns); /* below 0: gives back */
/* The x-ratelimit-* lines of its answers; empty where it has no limits. */
void client_headers(struct client *c, int64_t now_ns, char *out, size_t n);

/* whet_client_*: with `names` of each named client and of the others, else of all together. */
void clients_metrics(const struct clients *all, bool names, FILE *out);

#endif
