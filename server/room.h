/* SPDX-License-Identifier: Apache-2.0 */
/* room.h - who has a place when connections are as many as there may be.
 *
 * Up to server.max_connections (or what the limit of descriptors leaves) everybody is let in.
 * Above that a newcomer takes the place of the connection that is missed least: one between two
 * requests, longest silent first, those of an address with more than its share
 * (server.address_connections) before all others. Where none is idle, a newcomer of an address
 * within its share may take the place of one beyond that has not sent a whole head yet, or leaves
 * its answer lying. A connection whose request is being received or answered is never closed.
 *
 * Who finds no place is let in to a few more (OPERATOR_CONNECTIONS) for one request, which may be
 * one of an operator's routes or come when there is room again; anything else gets 503.
 *
 * An address is an IPv4 address or the first 64 bits of an IPv6 address, as one customer gets
 * them. Loop thread.
 */
#ifndef WHET_SERVER_ROOM_H
#define WHET_SERVER_ROOM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct conn;
struct server;

/* An address with connections. */
struct peer {
    uint64_t bits; /* IPv4: the address; IPv6: its first half */
    bool v6;
    int connections;
    struct peer *next, **link;
};

enum { PEER_BUCKETS = 1024 };

struct room {
    int capacity;                      /* connections, without the operators' */
    int spare;                         /* a descriptor for bad times; -1: given up */
    int reserved;                      /* of the open ones, those let in for one request */
    struct peer *bucket[PEER_BUCKETS]; /* hashed with a secret, so that nobody fills one */
    uint64_t secret;
};

/* Capacity from the configuration and the limit of descriptors; warns when that is lower. */
void room_open(struct server *s);
void room_close(struct server *s);

/* Counts a connection to its address, and back. */
struct peer *peer_join(struct room *r, const struct sockaddr *address);
void peer_leave(struct peer *p);

/* Finds a place for `c`, just accepted and counted; closes another connection if need be. False:
 * there is none, not even an operator's. May set c->reserved. */
bool room_admit(struct conn *c);
/* Answers 503 and closes, where room_admit() found no place. */
void room_turn_away(struct conn *c);
/* Whether there is room by now for a connection that had been let in for one request. */
bool room_again(const struct server *s);
/* There are no descriptors left: gives up the spare one, so that accept() shows whether somebody
 * waits; without a spare one closes a connection that has sent no whole request. False if
 * all of them have: the loop has to wait for one to be answered. */
bool room_without_descriptors(struct server *s);
/* If `c` was accepted with the spare descriptor, closes an idle connection in its place. False: `c`
 * has to go. In either case room_take_spare() is next. */
bool room_for_spare(struct conn *c);
/* Takes a spare descriptor unless there is one. */
void room_take_spare(struct server *s);

#endif
