/* SPDX-License-Identifier: Apache-2.0 */
/* specializer_private.h - the inside of struct specializer, for the files of the loop.
 *
 * Ownership: the specializer thread owns everything and is the only one that changes it, but for
 * what is `locked`: that is changed under `lock` and read by operators' threads under it.
 * `lock` is held for moments (pointer swaps, a row in the store), never while something is built,
 * run or waited for. It is a plain mutex: a function that is named _locked expects it
 * held, no other does.
 */
#ifndef WHET_SPECIALIZER_SPECIALIZER_PRIVATE_H
#define WHET_SPECIALIZER_SPECIALIZER_PRIVATE_H

#include <pthread.h>

#include "specializer/adviser/adviser.h"
#include "specializer/adviser/cpu_facts.h"
#include "specializer/agent/agent.h"
#include "specializer/consult.h"
#include "specializer/counts.h"
#include "specializer/fleet_loop.h"
#include "specializer/observe.h"
#include "specializer/search/known.h"
#include "specializer/search_batch.h"
#include "specializer/slot_search.h"
#include "specializer/specializer.h"
#include "specializer/store/store.h"
#include "specializer/unbuilt.h"

enum { NAME_MOST = 40 };

struct specializer {
    const struct config *config;
    struct engine *engine;
    struct store *store;
    _Atomic uint64_t unwritten, unstarted; /* moves that the store did not take, builds; in a row */
    struct stage_env env;
    struct machine machine;     /* env's: the backend's, with what a language model is told */
    struct cpu_facts cpu_facts; /* of it, if one is asked */
    struct compiler compiler;
    bool has_compiler;
    bool notes_crashes;             /* of this process, for the next (engine/crash.h) */
    bool trials_blamed, crash_told; /* blame.c: how far it has come, */
    int32_t blamed;                 /* and with how many kernels that served */
    bool enabled;                   /* it is configured, and may exchange kernels of this backend */
    struct key_parts keys;
    enum numerics numerics;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* with lock: something changed */
    atomic_bool stop;
    atomic_bool interrupt; /* what env.stop points to: set by stop and by operators */
    _Atomic int mode;      /* enum specializer_mode */
    _Atomic int ready;     /* the slots are there: operators may look */
    _Atomic int doing;     /* enum doing */
    atomic_bool go_on;     /* an operator said so to one that is held back */

    struct observe observe;
    struct cost cost;
    struct adviser *adviser;
    struct consultation consultation;
    struct slot_search *ahead; /* to be asked about once the adviser is free (consult.h), or NULL */
    const struct strategy *strategy;
    struct known *known;  /* points of other machines, tried first */
    struct agent *agent;  /* NULL: nobody writes kernels */
    atomic_bool imported; /* a store was imported: the agent looks for texts in it */
    struct fleet *fleet;  /* NULL: this server is alone */
    struct fleet_loop fleet_loop;

    struct slot_search *slot_search; /* [slot_searches] one per slot of the dispatch table */
    int slot_searches;
    struct search_batch batch;
    struct header_work *header; /* being made beside builds */
    struct {
        struct {
            char what[NAME_MOST];
            char reason[200];
        } * disabled; /* [disables] what operators disabled */
        int disables;
        struct retired *retired; /* [retires] */
        int retires;
        int watch_at;       /* the slot audited last */
        double saved_s;     /* seconds of steps saved since start */
        double correlation; /* of predicted and measured times; below -1: not yet known */
    } locked;

    struct hook audit; /* the watch's, installed while `audited` is set */
    struct slot_search *audited;
    char audited_key[24]; /* of its kernel */
    int64_t audit_since_ns;

    int32_t build_jobs; /* compilers at once */
    int64_t hour_ns;    /* start of the hour whose builds are counted */
    int32_t hour_builds;
    struct unbuilts unbuilt;
    int64_t observed_ns, shares_ns; /* when counters were read, and shares stored */
    int64_t pruned_ns;              /* when old objects were deleted; 0: not yet */
    int64_t since_ns;               /* when the restored kernels were back */
    int64_t seen_ns;                /* when the first steps were seen; 0: not yet (opening.c) */
    bool asleep;
    _Atomic bool converged; /* asleep with nothing left to search for in what was observed */
    struct counts counts;
};

/* What the loop is at, or why it is at nothing. */
enum doing {
    DOING_WAIT, /* for the engine */
    DOING_HELD, /* its beginning ended the last processes (start_guard.h) */
    DOING_RESTORE,
    DOING_SEARCH,
    DOING_SLEEP,  /* nothing is worth looking at now */
    DOING_CAPPED, /* the builds of this hour are used up */
    DOING_PAUSED,
    DOING_FROZEN,
    DOING_HELPLESS, /* no compiler */
    DOING_YIELD,    /* idle_only, and there is traffic */
    DOING_OFF,
    DOINGS
};

#define NAP_S 0.25 /* between two looks, where there is nothing to do */

/* ---- beginning.c ---------------------------------------------------------------------------- */

/* Once, when the engine is ready. False: there is nothing to do, or the server stops. */
bool specializer_begin(struct specializer *s);

/* ---- specializer.c -------------------------------------------------------------------------- */

/* Whether the slot may be looked at now, whoever else does. */
bool slot_choosable_locked(struct specializer *s, const struct slot_search *p);
/* Whether, where slots take turns by their first candidates, one still has its turn. */
bool turns_left(struct specializer *s);
/* Waits up to `seconds` or until something changes; polls children meanwhile. */
void specializer_wait(struct specializer *s, double seconds);

/* ---- upkeep.c ------------------------------------------------------------------------------- */

/* What is done every time around. */
void specializer_upkeep(struct specializer *s);
/* Reads the counters if it is time, or now. */
void specializer_observe(struct specializer *s);
void specializer_observe_now(struct specializer *s);
/* What an operator interrupted may begin again; not if the server stops. */
void specializer_go_on(struct specializer *s);

#endif
