/* SPDX-License-Identifier: Apache-2.0 */
/* slot_search.h - one slot as the specializer sees it, and its search. Specializer thread, but for
 * what is `locked`: that is changed under the specializer's lock and read by operators under it. */
#ifndef WHET_SPECIALIZER_SLOT_SEARCH_H
#define WHET_SPECIALIZER_SLOT_SEARCH_H

#include "specializer/fleet_loop.h"
#include "specializer/proposer.h"
#include "specializer/search/strategy.h"

struct specializer;

enum { SETS_REMEMBERED = 8, INPUTS = 2, WHY_TEXT = 120, KNOWN_FIRSTS = 2 };

/* What a slot waits for that nobody can give it but live steps. */
enum slot_wait {
    SLOT_WAITS_FOR_NOTHING,
    SLOT_WAITS_FOR_VERDICT, /* a candidate is in shadow or canary, or comes there next */
    SLOT_WAITS_FOR_STEPS,   /* a candidate would be, but no step reads the slot just now */
    SLOT_WAITS_FOR_INPUTS,  /* steps gave none to search on */
    SLOT_WAITS
};

/* One slot as the specializer sees it. */
struct slot_search {
    struct slot *slot;
    int index; /* in dispatch */

    struct {
        struct candidate *active;   /* NULL: eager */
        struct candidate *previous; /* admitted and still loaded, one step of rollback; or NULL */
        char pinned[24];            /* "", "eager", or a kernel's key */
        bool pin_missing;           /* the pinned kernel is not loaded (yet) */
        uint64_t swaps;             /* how often its kernel was exchanged since the start */
        bool stale;        /* it lost its kernel, or more may be proposed: the search begins anew */
        double gain_eager; /* of `active` over eager */
        double share, own, run_s, roofline_s, bytes, worth; /* copied from observe for operators */
        int32_t candidates, wins, refusals;                 /* since start */
        enum slot_wait waits;
        int32_t audits;  /* of `active` that found nothing */
        int32_t suspect; /* live steps of `active` that are still to be looked at (fleet_loop.c) */
        char label[96];  /* the adviser's */
        char label_by[32]; /* who the adviser was */
        struct {           /* who came farthest and did not stay (why.c) */
            int rank;
            double gain;
            char words[WHY_TEXT];
            char undecided[WHY_TEXT]; /* what kept the last one that was set aside from a verdict */
            char last[WHY_TEXT];      /* the last verdict against one since the last proposal */
        } why;
    } locked;

    /* The search; opened when the slot is chosen for the first time. */
    struct space *space;
    struct search search;
    void *strategy;
    struct advice advice;
    struct {
        int32_t id;
        const char *device; /* where that point won (search/known.h), */
        double speed;       /* by so much over eager there */
    } known[KNOWN_FIRSTS];
    int knowns;
    int32_t measured, dry; /* candidates benched, and of them since the last gain */
    int64_t not_before_ns;
    int inputless;         /* times in a row that live steps gave no inputs */
    int64_t ran_ns;        /* when live steps were last seen to read the slot */
    struct trial promoted; /* benched, waits for live steps */
    int64_t promoted_ns;   /* since when */
    uint64_t judged_at;    /* `swaps` when live steps began to judge it */

    /* Candidates that wait for other co-resident kernels (retrial.c). */
    struct {
        bool some, dirty;       /* there may be such; `key` is to be looked up again */
        uint64_t set;           /* hash of those beside which it was looked up; 0: never */
        char key[KEY_HEX + 1];  /* which is tried beside them next; "": none */
        double promise;         /* the part of this slot's time that it may save */
        struct coresident_set { /* the last ones beside which there were retrials */
            uint64_t hash;
            int held;
        } held_in[SETS_REMEMBERED];
        int next; /* of them to be overwritten */
    } retrial;

    struct slot_search_fleet fleet; /* what other servers have to do with the slot (fleet_loop.c) */

    struct capture *input[INPUTS];
    int inputs;
    bool left_out;   /* specializer.slots names others: never searched, but restored and watched */
    int32_t unequal; /* a rank that cannot run kernels of this region that rank 0 can; 0: none */
    bool offered;    /* it was looked at for an opening (opening.c) */
    bool unknown;    /* no point of it was known to be good when its first turn came */
    bool exhausted;  /* the strategy has nothing left to propose */

    /* The promise: how the slot did just after `active` was published. */
    struct window {
        uint64_t runs, ns, tokens, context; /* counters when the window began */
    } window;
    double promise_s, promise_tokens, promise_context; /* a run; 0: not yet known */
    int64_t rechecked_ns;
};

/* Whether live steps read the slot just now. */
bool slot_search_runs(const struct slot_search *p);
enum slot_wait slot_search_waits(const struct slot_search *p);
bool slot_search_open(struct specializer *s,
                      struct slot_search *p); /* false: nothing legal there */
void slot_search_forget(struct specializer *s, struct slot_search *p); /* closes the search */
/* Puts in front of the queue what won elsewhere, and what lost here to a kernel that is gone. */
void slot_search_firsts(struct specializer *s, struct slot_search *p);
/* Fresh inputs from live steps; keeps the old ones if none come. True if there are any. */
bool slot_search_inputs(struct specializer *s, struct slot_search *p);
void slot_search_inputs_free(struct slot_search *p);

/* Where a point of the space is known to have won, or NULL. */
const char *slot_search_known(const struct slot_search *p, int32_t id);
/* How much faster than eager it was there, or on another server; 0: nobody has measured it. */
double slot_search_known_speed(const struct slot_search *p, int32_t id);

/* A copy of the kernel that serves the slot, for the specializer thread to read: operators may
 * replace and free the candidate itself whenever the lock is not held. Of what the copy points to,
 * template, slot and kernel live on until this thread goes round again; nothing else is to be
 * followed. False: eager serves, and the copy is zero. */
bool slot_search_serving(struct specializer *s, const struct slot_search *p, struct candidate *out);

struct slot_search *slot_search_find(struct specializer *s, const char *slot);

#endif
