/* specializer_private.h - the inside of struct specializer, for the files of the loop.
 *
 * Ownership: the specializer thread owns everything and is the only one that changes it, but for
 * what says "lock": those fields are changed under `lock` and read by operators' threads under it.
 * `lock` is held for moments (pointer swaps, a row in the store), never while something is built,
 * run or waited for. It is recursive.
 */
#ifndef WHET_SPECIALIZER_SPECIALIZER_PRIVATE_H
#define WHET_SPECIALIZER_SPECIALIZER_PRIVATE_H

#include <pthread.h>

#include "config/metrics.h"
#include "specializer/admission/probe.h"
#include "specializer/adviser/adviser.h"
#include "specializer/agent/agent.h"
#include "specializer/build/build.h"
#include "specializer/observe.h"
#include "specializer/search/cost.h"
#include "specializer/search/space.h"
#include "specializer/search/strategy.h"
#include "specializer/specializer.h"
#include "specializer/stages.h"
#include "specializer/store/life_move.h"
#include "specializer/store/store.h"

enum { BATCH = 6, COMPANIES = 8, INPUTS = 2, NAME_MOST = 40, WHY_TEXT = 72 };
/* A kernel that was on trial this many times when the process died is not tried again. */
enum { DEATHS_MOST = 3 };
/* A gain so clear does not wait for the rest of its batch, and is heard again if whole steps speak
 * against it. */
#define CLEAR_GAIN 0.10

/* One slot as the specializer sees it. */
struct place {
    struct slot *slot;
    int index;                  /* in dispatch */
    struct candidate *active;   /* lock; NULL: eager */
    struct candidate *previous; /* lock; admitted and still loaded, one step of rollback; or NULL */
    char pinned[24];            /* lock; "", "eager", or a kernel's key */
    bool pin_missing;           /* lock; the pinned kernel is not loaded (yet) */
    double gain_eager;          /* lock; of `active` over eager */
    /* lock; copied from observe for operators */
    double share, run_s, roofline_s, bytes, worth;
    int32_t candidates, wins, refusals; /* lock; since start */
    int32_t looks;                      /* lock; audits of `active` that found nothing */
    struct {                            /* lock; who came farthest and did not stay (why.c) */
        int rank;
        double gain;
        char words[WHY_TEXT];
        char undecided[WHY_TEXT]; /* what kept the last one that was set aside from a verdict */
    } why;

    /* The search; opened when the slot is chosen for the first time. */
    struct space *space;
    struct search search;
    void *strategy;
    struct advice advice;
    char label[96];        /* lock; the adviser's */
    char label_by[32];     /* lock; who the adviser was */
    int32_t measured, dry; /* candidates benched, and of them since the last gain */
    int64_t not_before_ns;
    struct candidate *finalist; /* benched, waits for live steps; id is its place in the space */
    int32_t finalist_id;        /* below 0: -1 - the node of the agent's tree */

    /* Kernels that wait for other company (hearing.c). */
    struct {
        bool some, dirty;      /* there may be such; `key` is to be looked up again */
        uint64_t company;      /* hash of the company in which it was looked up; 0: never */
        char key[KEY_HEX + 1]; /* who is to be heard in it next; "": nobody */
        double promise;        /* the part of this slot's time that it may save */
        struct company {       /* the last ones in which somebody was heard */
            uint64_t hash;
            int held;
        } company_held[COMPANIES];
        int next; /* of them to be overwritten */
    } hearing;

    struct capture *input[INPUTS];
    int inputs;
    bool left_out;  /* specializer.slots names others: never searched, but restored and watched */
    bool exhausted; /* the strategy has nothing left to propose */
    bool stale;     /* lock; it lost its kernel, or more may be proposed: the search begins anew */

    /* The promise: how the slot did just after `active` was published. */
    struct window {
        uint64_t runs, ns, tokens, context; /* counters when the window began */
    } window;
    double promise_s, promise_tokens, promise_context; /* a run; 0: not yet known */
    int64_t rechecked_ns;
};

/* One member of a batch on its way to the bench. */
enum item_stage { ITEM_BUILD, ITEM_BUILDING, ITEM_PROBE, ITEM_PROBING, ITEM_BENCH, ITEM_DONE };
struct item {
    struct candidate *c;
    int32_t id; /* in the place's space; below 0: -1 - the node of the agent's tree */
    bool again; /* a hearing (hearing.c), not a new candidate */
    enum item_stage stage;
    struct build *build;
    struct probe *probe;
};

/* The batch under way; at most one. */
struct round {
    struct place *place; /* NULL: none */
    struct item item[BATCH];
    int n;
    bool decided; /* of one at least: refused, or measured */
};

/* A kernel out of service, to be unloaded once no step can use it, and after a grace for those who
 * look at a slot's kernel without being a step (fingerprints, dashboards). */
struct retired {
    struct kernel *kernel;
    int64_t epoch, since_ns;
};

/* What the adviser is told about the slot under consideration; valid until the next consult(). */
enum { LIVES = 24, DEADS = 12, LESSONS = 18 };
struct consultation {
    struct advice_request request;
    struct live_shape live[LIVES];
    struct dead_end dead[DEADS];
    struct lesson lesson[LESSONS];
    struct mover mover;
};

/* Stages as metrics count them, and the outcomes of each. */
enum stage {
    STAGE_BUILD,
    STAGE_PROBE,
    STAGE_LOAD,
    STAGE_BENCH,
    STAGE_SHADOW,
    STAGE_CANARY,
    STAGES
};
enum { OUTCOMES = STAGE_STOPPED + 1 };
enum rollback {
    ROLLBACK_AUDIT,
    ROLLBACK_DRIFT,
    ROLLBACK_OPERATOR,
    ROLLBACK_RESTORE,
    ROLLBACK_EXECUTOR,
    ROLLBACKS
};

struct counts {
    _Atomic uint64_t stage[STAGES][OUTCOMES], impossible;
    _Atomic uint64_t published, restored, rolled_back[ROLLBACKS];
    _Atomic uint64_t looks, mismatches; /* audits by the watch */
    struct histogram build_seconds;
};

struct specializer {
    const struct config *config;
    struct engine *engine;
    struct store *store;
    _Atomic uint64_t unwritten, unstarted; /* moves that the store did not take, builds; in a row */
    struct stage_env env;
    struct compiler compiler;
    bool has_compiler;
    struct key_parts keys;
    enum numerics numerics;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* with lock: something changed */
    atomic_bool stop;
    atomic_bool interrupt; /* what env.stop points to: set by stop, pause, disable */
    _Atomic int mode;      /* enum specializer_mode */
    _Atomic int ready;     /* places exist: operators may look */
    _Atomic int doing;     /* enum doing */

    struct observe observe;
    struct cost cost;
    struct adviser *adviser;
    struct consultation consultation;
    const struct strategy *strategy;
    struct agent *agent;  /* NULL: nobody writes kernels */
    atomic_bool imported; /* a store was imported: the agent looks for texts in it */

    struct place *place; /* [places] one per slot of the dispatch table */
    int places;
    struct round round;
    struct {
        char what[NAME_MOST];
        char reason[200];
    } * disabled; /* lock */
    int disables;
    struct retired *retired;
    int retires;

    struct tap tap; /* the watch's, installed when tap.slot is set */
    struct place *tapped;
    char tapped_key[24]; /* of the kernel that is looked at */
    int watch_at;        /* lock; the place audited last */
    int64_t tap_since_ns;

    int64_t hour_ns; /* start of the hour whose builds are counted */
    int32_t hour_builds;
    int64_t observed_ns, shares_ns; /* when counters were read, and shares stored */
    int64_t pruned_ns;              /* when old objects were deleted; 0: not yet */
    int64_t since_ns;               /* when the restored kernels were back */
    bool asleep;
    double saved_s;     /* lock; seconds of steps saved since start */
    double correlation; /* lock; of predicted and measured times; below -1: not yet known */
    struct counts counts;
};

/* What the loop is at, or why it is at nothing. */
enum doing {
    DOING_WAIT, /* for the engine */
    DOING_RESTORE,
    DOING_SEARCH,
    DOING_SLEEP, /* nothing is worth looking at */
    DOING_PAUSED,
    DOING_FROZEN,
    DOING_HELPLESS, /* no compiler */
    DOING_YIELD,    /* idle_only, and there is traffic */
    DOING_OFF,
    DOINGS
};

/* ---- setup.c: what the loop stands on ------------------------------------------------------ */
/* Store, locks, adviser, strategy; no thread yet. `may_copy`: with a copy of the store if another
 * process has it, which a warning says; otherwise that is an error. */
struct specializer *specializer_new(const struct config *c, struct engine *e, bool may_copy,
                                    struct err *err);
/* Everything that needs a ready engine. What is missing is logged; serving goes on. */
void specializer_setup(struct specializer *s);
/* Eager everywhere; returns when no step can still run what was there. */
void slots_empty(struct specializer *s);
/* After the thread has ended: eager into every slot, kernels unloaded. */
void specializer_free(struct specializer *s);
enum numerics numerics_parse(const char *name);
/* Path of the running executable; static storage. */
const char *program_path(void);
/* The compiler there is for this machine's kernels, or the one the store was last used with. True
 * if one is there. */
bool compiler_known(const struct config *c, struct store *store, const struct machine *machine,
                    struct compiler *out, struct err *err);
void keys_open(struct key_parts *k, const struct store *store, const struct machine *machine,
               const struct compiler *compiler, const struct model *model, enum numerics numerics);
void keys_close(struct key_parts *k);
/* Reads the operators' disables and pins into memory. Lock held, or no other thread yet. */
void operators_read(struct specializer *s);

/* ---- place.c: one slot's search ------------------------------------------------------------ */
bool place_open(struct specializer *s, struct place *p);   /* false: nothing legal there */
void place_forget(struct specializer *s, struct place *p); /* closes the search */
/* Puts in front of the queue what won elsewhere, and what lost here to a kernel that is gone. */
void place_firsts(struct specializer *s, struct place *p);
/* Fresh inputs from live steps; keeps the old ones if none come. True if there are any. */
bool place_inputs(struct specializer *s, struct place *p);
void place_inputs_free(struct place *p);

/* ---- consult.c: asking for advice ---------------------------------------------------------- */
/* Predictions anew, and p->advice with what the adviser says now; never waits. */
void consult(struct specializer *s, struct place *p);
/* Asks a language model about a slot that may be searched next, so that it can think meanwhile. */
void consult_ahead(struct specializer *s, struct place *p);

/* ---- round.c: a batch from proposal to bench ----------------------------------------------- */
bool round_start(struct specializer *s, struct place *p); /* false: nothing left to propose */
void round_children(struct specializer *s);               /* starts and polls; never waits */
bool round_bench(struct specializer *s); /* benches one that is ready; false: none was */
bool round_over(const struct specializer *s);
bool round_may_build(struct specializer *s); /* the cap on builds an hour */
void round_close(struct specializer *s);     /* the best passing one becomes the place's finalist */
void round_abandon(struct specializer *s);
/* Abandons the round and every finalist: a search that nobody is going to take up again. */
void round_forget(struct specializer *s);
/* Tells whoever proposed it: the slot's search, or the agent's tree. `speed` 0: a refusal. */
void round_learn(struct specializer *s, struct place *p, int32_t id, const struct candidate *c,
                 double speed);
/* What the store and the operators say of a new candidate: 1 if it may be tried, 0 if not, -1 if
 * the store cannot say or take it now. Its row is there at 1, in state proposed; `why` goes into
 * the trace. */
int round_admit(struct specializer *s, struct candidate *c, const char *why);

/* ---- finalist.c: the best of a batch through shadow and canary ----------------------------- */
void finalist_try(struct specializer *s, struct place *p);
/* Nothing was decided about it: the point may be proposed again. */
void finalist_forget(struct specializer *s, struct place *p);

/* ---- hearing.c: what lost whole steps is heard again in other company ----------------------- */
/* Hash of the kernels that serve around the slot in a step. */
uint64_t hearing_company(const struct specializer *s, const struct place *p);
/* Never adjourned, or not too often and not in the company there is now. */
bool hearing_allowed(const struct specializer *s, const struct place *p, const struct heard *h);
/* Live steps spoke against c, or could not decide: notes the company. True: it may be heard again,
 * and is to be adjourned; false: it is not one for this, or has been heard often enough. */
bool hearing_adjourn(struct specializer *s, struct place *p, struct candidate *c);
/* Somebody there is to be heard now. */
bool hearing_due(struct specializer *s, struct place *p);
/* The slot whose hearing is worth most, and at least `than`; NULL: none. */
struct place *hearing_choose(struct specializer *s, double than);
/* Begins the round of the one who is due; the place is open and has inputs. False: it cannot. */
bool hearing_start(struct specializer *s, struct place *p);
/* After a start: which slots have somebody who waits. */
void hearings_recall(struct specializer *s);

/* ---- why.c: why a slot is on eager; lock held, but for why_recall() -------------------------- */
/* c left in that state, with its reason: it is remembered if nobody came farther. */
void why_note(struct place *p, enum life left, const struct candidate *c);
/* c was set aside without a verdict: its reason is told where nobody has come farther. */
void why_undecided(struct place *p, const struct candidate *c);
/* There is nothing to try there. */
void why_no_point(struct place *p);
/* After a start: what the store knows. */
void why_recall(struct specializer *s);
/* "canary: whole steps -0.6 % [-1.0, -0.3]", "not searched yet", ... */
void why_eager(struct specializer *s, const struct place *p, char out[WHY_TEXT]);

/* ---- agent_turn.c: texts that a language model writes -------------------------------------- */
/* Reads a reply and makes the agent's next move; never waits. */
void agent_turn(struct specializer *s);
/* Begins a round with the text that is ready; false: none is, or not now. */
bool agent_start(struct specializer *s);

/* ---- swap.c: what fills a slot ------------------------------------------------------------- */
bool is_disabled(struct specializer *s, const char *key, const char *template_id); /* lock held */
/* Loads c->object unless it is; marks the trial. Pass; refuse: it cannot be loaded; retry: the
 * store could not take the mark, without which a kernel that crashes the server would come back.
 * Both say why in c->reason. */
enum stage_result swap_load(struct specializer *s, struct candidate *c);
/* c becomes the slot's kernel: first in the store, then in the table. Takes `c` over. */
int swap_in(struct specializer *s, struct place *p, struct candidate *c, const char *why,
            const char *who);
/* The active kernel leaves for good (rolled_back or disabled); eager runs from the next step. */
void swap_out(struct specializer *s, struct place *p, enum life to, enum rollback kind,
              const char *why, const char *who);
/* The kernel before it comes back, or eager if there is none. 0, or -1: nothing to roll back. */
int swap_back(struct specializer *s, struct place *p, const char *who);
/* Eager serves while the active kernel stays loaded as the previous one (pin to eager). */
void swap_eager(struct specializer *s, struct place *p, const char *why, const char *who);
/* Refused or adjourned: stored, counted, unloaded, freed. */
void candidate_refuse(struct specializer *s, struct candidate *c, enum stage stage, enum life to);
/* Done with, whatever its state: unloads later, frees now. */
void candidate_drop(struct specializer *s, struct candidate *c);
void retire_poll(struct specializer *s, bool all);
void count_stage(struct specializer *s, enum stage stage, enum stage_result r);

/* ---- watch.c: active kernels against eager, and against their promise ------------------------ */
void watch_poll(struct specializer *s);
void watch_stop(struct specializer *s); /* removes the tap, so that a stage may use one */

/* ---- restore.c: winners of the store and pinned kernels ------------------------------------ */
void restore_winners(struct specializer *s);
void restore_pins(struct specializer *s); /* pinned kernels that are not loaded */

/* ---- admin.c and status.c: what operators are shown ---------------------------------------- */
extern const char *const mode_names[];    /* of enum specializer_mode, as the store has them */
cJSON *slots_json(struct specializer *s); /* lock held */

const char *stage_name(enum stage stage); /* metrics.c */
const char *outcome_name(enum stage_result r);
struct place *place_find(struct specializer *s, const char *slot);
/* A finished build of c->object is on disk, whole. */
bool have_object(struct specializer *s, struct candidate *c);
/* Reads the counters if it is time. */
void specializer_observe(struct specializer *s);
/* What an operator interrupted may begin again; not if the server stops. */
void specializer_go_on(struct specializer *s);
/* Waits up to `seconds` or until something changes; polls children meanwhile. */
void specializer_wait(struct specializer *s, double seconds);

#endif
