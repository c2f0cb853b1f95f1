/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h - candidates on their way from a source to live steps: one table of stages, one
 * driver.
 *
 * A trial is one candidate and the stage that it is in. Build and probe are children, of which many
 * run at once: pipeline_advance() starts and polls them and never waits. The stages behind them use
 * the engine and block: pipeline_block() runs those of one trial. Which stages there are, in which
 * order, how one is begun and asked, is the table of pipeline.c; what differs between a batch, a
 * restore, a bench of starts and a table of measured points are the rules. Specializer thread, or
 * the one that a tool has.
 */
#ifndef WHET_SPECIALIZER_PIPELINE_PIPELINE_H
#define WHET_SPECIALIZER_PIPELINE_PIPELINE_H

#include "specializer/admission/probe.h"
#include "specializer/candidate/stage.h"
#include "specializer/pipeline/bench.h"

struct slot_search;
struct proposer;
struct store;

/* Who proposed it, and the number that it has there. */
struct proposal {
    const struct proposer *by;
    int32_t id;
};

struct trial {
    struct candidate *c; /* NULL: it has left */
    enum stage at;       /* what it is in or waits for; behind the last one: through */
    void *child;         /* the running process of a build or a probe */
    /* What its stages work on. */
    struct {
        enum probe_depth depth;
        const struct capture *const *input; /* live ones */
        int inputs;
    } probe;
    struct {
        const struct kernel *against;
        double base; /* speed of `against` over eager */
        const struct capture *input;
        enum bench_kind kind;
        int pairs; /* above 0: so many, and no verdict: bench_sample() */
    } bench;
    /* The pipeline does not look at these. */
    struct slot_search *slot_search;
    struct proposal from;
    int64_t since_ns; /* when its search began it: all that was proved of it is younger */
};

struct pipeline;
struct pipeline_rules {
    /* Whether one more child of the stage may run. NULL: always. */
    bool (*room)(const struct pipeline *p, enum stage stage);
    /* A stage is about to begin. RUNNING: let it; PASS: there is nothing to do, on to the next one;
     * else the trial stays where it is, or has left. */
    enum stage_result (*enter)(struct pipeline *p, struct trial *t);
    /* A child runs now, or could not be started (`err`): then the trial stays or has left. NULL: it
     * stays. */
    void (*began)(struct pipeline *p, struct trial *t, const struct err *err);
    /* The stage t->at has answered. True: on to the next one. False: as for enter(). */
    bool (*came)(struct pipeline *p, struct trial *t, enum stage_result r);
};

struct pipeline {
    const struct pipeline_rules *rules;
    void *ctx; /* the rules' */
    const struct stage_env *env;
    struct store *marks; /* takes the marks of load_run(); NULL: none are made */
    enum stage last;     /* who has passed this one is through */
    int children[STAGES];
};

/* Looks after the trial's child; begins the next one if `may_start`. Never waits. */
void pipeline_advance(struct pipeline *p, struct trial *t, bool may_start);
/* Runs the trial's stages as long as they are none of a child. */
void pipeline_block(struct pipeline *p, struct trial *t);
/* It waits for pipeline_block(). */
bool pipeline_ready(const struct pipeline *p, const struct trial *t);
/* It is through or has left. */
bool pipeline_over(const struct pipeline *p, const struct trial *t);
/* Ends the trial's child, if it has one. */
void pipeline_stop(struct pipeline *p, struct trial *t);

/* The state of a candidate that has passed the stage; that of a load is none of its own. */
enum life pipeline_reached(enum stage stage);
/* The object is there, whole, by a build that was seen to finish; c->object_sum is set. */
bool pipeline_has_object(struct store *store, struct candidate *c);

#endif
