/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_loop.h - what other servers know, in the loop: which slots are whose, which points come
 * first and which last, which kernels to look at again. Specializer thread. */
#ifndef WHET_SPECIALIZER_FLEET_LOOP_H
#define WHET_SPECIALIZER_FLEET_LOOP_H

#include "specializer/fleet/fleet.h"
#include "specializer/pipeline/pipeline.h"

struct specializer;
struct slot_search;

/* Of a slot. */
struct slot_search_fleet {
    bool elsewhere;   /* another server searches the slot */
    bool adopt;       /* another server found a kernel that is to be tried first */
    int32_t offer;    /* id of its point in the space */
    double speed;     /* over eager, by all who measured it */
    double gain;      /* over what serves here */
    int64_t since_ns; /* when `adopt` was set */
    uint64_t news;    /* fleet_news() when `offer` was looked for */
    int tried;        /* search.tried then */
    int64_t serial;   /* of the last row that was learned from */
    struct behind {
        int32_t id;
        bool learned;     /* what it took there */
        int64_t trial_ns; /* since when it is on trial there; 0: something came of it */
    } * behind;           /* [behinds] points that others tried: here they come last */
    int behinds;
    struct again {
        int32_t id;
        int n;
    } * again; /* [agains] points that were measured here, and tried again because others serve them
                */
    int agains;
    int measured, dry; /* points that others measured; of them since the last gain anywhere */
    double top;        /* the fastest kernel that others told of, over eager */
};

/* Of the specializer. */
struct fleet_loop {
    int64_t due_ns;
    uint64_t news;
    bool checking; /* a retracted kernel that serves here */
    struct fleet_suspect suspect;
    struct slot_search *slot_search;
    struct pipeline pipeline; /* for one probe of it */
    struct trial trial;
    enum stage_result probed; /* RUNNING: not yet, or it could not be probed */
    int64_t until_ns;         /* live steps are waited for so long */
    double may_tell;          /* retractions that may still be told of, by told_ns */
    int64_t told_ns;
    _Atomic uint64_t untold;
    int64_t held_ns; /* since when promoted candidates wait for a set; 0: none does */
};

/* A few times a second. */
void fleet_advance(struct specializer *s);
/* Asks for leases on the slots that are worth most, and notes which are others' (fleet_leases.c).
 */
void fleet_leases_ask(struct specializer *s);
/* The connection and what is under way, before the store closes. */
void fleet_loop_close(struct specializer *s);
/* The point that another server found, free to be proposed. */
int32_t fleet_loop_take(struct slot_search *p);
/* Points that were left to others may be proposed; false: there are none. */
bool fleet_loop_undefer(struct slot_search *p);
/* The search of the slot closes. */
void fleet_loop_forget(struct slot_search *p);

#endif
