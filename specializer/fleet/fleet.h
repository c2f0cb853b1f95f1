/* SPDX-License-Identifier: Apache-2.0 */
/* fleet.h - what this server shares with others of its kind, and what it hears of them.
 *
 * One PostgreSQL between servers (specializer.fleet). A thread of its own sends what the store
 * learned and keeps in memory what others sent; everything here reads and writes that memory and
 * never waits for a database. The store stays the record of this server: without the database there
 * is nothing to hear, and that is all.
 *
 * What is heard is not believed. Winners of others are tried first and pass every stage here;
 * points that others tried are tried last; a kernel that somebody found wrong is looked at again.
 *
 * Any thread, unless it says otherwise; every call is a moment under a mutex of its own. What is
 * said of a kernel that is wrong is written to the store at once, and told whenever the database is
 * there (fleet_words.c).
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_H
#define WHET_SPECIALIZER_FLEET_FLEET_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "config/config.h"
#include "specializer/fleet/fleet_row.h"
#include "specializer/store/store.h"

struct fleet;

/* -1 when specializer.fleet is set and cannot be used. */
int fleet_check(const struct config *c, struct err *err);
/* Begins: NULL if specializer.fleet is empty. `env` and `device` as in key_parts; `slots` are
 * those that rows are of; the store must outlive it. `imported` is set when a text of others came
 * into the store. */
struct fleet *fleet_open(const struct config *c, struct store *store, const char *env,
                         const char *device, const struct dispatch *slots, atomic_bool *imported);
/* Waits two seconds at most for its thread; one that is still in the system's resolver then is left
 * to end by itself. NULL is fine, here and below. */
void fleet_close(struct fleet *f);

/* ---- specializer thread ----------------------------------------------------------------------*/

/* Grows when rows, leases or suspects changed. */
uint64_t fleet_news(struct fleet *f);
/* How many rows of others there are for a slot. */
int fleet_count(struct fleet *f, const char *slot);
typedef void fleet_row_fn(void *ctx, const struct fleet_row *r);
/* Rows of others for a slot with a serial above `after`, of servers that were right so far, without
 * retracted kernels; at most `most` of them (0: all). */
void fleet_each(struct fleet *f, const char *slot, int64_t after, int most, fleet_row_fn *fn,
                void *ctx);
/* The slots that this server would search, best first; it leases one of them. */
void fleet_wish(struct fleet *f, const char *const *slot, int n);
/* True if this server has the lease of the slot. */
bool fleet_leased(struct fleet *f, const char *slot);
/* True while the slot is somebody else's to search. Never for long without anybody's results. */
bool fleet_elsewhere(struct fleet *f, const char *slot);

/* A kernel that somebody found wrong. */
struct fleet_suspect {
    char key[KEY_HEX + 1], slot[40], by[100], reason[240];
    int64_t seq;     /* its number in the database: one that is found wrong again has another, */
    char at[32];     /* and another time, by the database's clock */
    int64_t came_ns; /* when this server heard of it */
};
/* The next that was not yet asked for; false: none. */
bool fleet_suspect_next(struct fleet *f, struct fleet_suspect *out);
/* True if this server heard after `since_ns` that somebody found the kernel wrong. */
bool fleet_retracted(struct fleet *f, const char *key, int64_t since_ns);
/* What came of looking at it again here. */
void fleet_verdict(struct fleet *f, const char *key, bool upheld, const char *words);
/* An audit found it wrong here: everybody is told. */
void fleet_wrong(struct fleet *f, const char *key, const char *slot, const char *reason);

/* ---- operators -------------------------------------------------------------------------------*/

/* {"state", "servers", "leases", "winners", "retractions", "totals", ...}; {"state": "off"} for
 * NULL. For operators also what is wrong in the database's words; for others, who ask every second,
 * the newest of each list. */
cJSON *fleet_json(struct fleet *f, bool operators);
void fleet_metrics(struct fleet *f, FILE *out);

#endif
