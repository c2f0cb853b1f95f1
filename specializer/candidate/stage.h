/* SPDX-License-Identifier: Apache-2.0 */
/* stage.h - what the stages between a proposal and a published kernel share: what they answer, and
 * what they work with. The stages: build/build.h, admission/probe.h, and stages.h for those that
 * need the running engine. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_STAGE_H
#define WHET_SPECIALIZER_CANDIDATE_STAGE_H

#include <stdatomic.h>

#include "config/config.h"
#include "config/process.h"
#include "engine/plan.h"
#include "engine/tuning.h"
#include "specializer/candidate/candidate.h"

enum stage_result {
    STAGE_RUNNING, /* only from the poll functions */
    STAGE_PASS,
    STAGE_REFUSE,  /* the candidate is at fault; candidate->reason says how */
    STAGE_RETRY,   /* nothing was decided: no traffic, no memory, a child that could not start */
    STAGE_STOPPED, /* env->stop was set or the engine stops */
};

struct compiler {
    enum machine_kind machine; /* whose kernels it makes */
    char path[512];
    char version[200];       /* first line of --version: part of every key */
    char arch[24];           /* "-arch=sm_90a", where it makes kernels for one device's kind */
    const atomic_bool *stop; /* compiler_find() gives up once it is set; NULL: never */
};

/* What the stages work with; the specializer owns all of it. */
struct stage_env {
    const struct config *config;
    enum numerics numerics;
    struct engine *engine;
    const struct model *model;
    struct backend *backend;
    const struct backend_ops *ops;
    struct dispatch *dispatch;
    const struct machine *machine;
    const struct compiler *compiler;
    const char *program;    /* this executable: `program probe` is the probe */
    const char *kernel_dir; /* holds args.h and cpu/ */
    /* Where probes of CPU kernels keep what an input should give (reference_cache.h); NULL:
     * nowhere. */
    const char *reference_dir;
    struct prober *prober;  /* the process that probes a device's kernels, or NULL */
    double cache_bandwidth; /* bytes/s out of a cache that cores share; 0: not measured */
    bool headers_apart;     /* builds make no precompiled header: header_work.h does */
    bool alone;             /* nobody else wants the cores: children run at normal priority */
    atomic_bool *stop;      /* stop what you do and return STAGE_STOPPED */
    /* Called at least every 20 ms while a blocking stage waits, so that children are reaped. */
    void (*tick)(void *ctx);
    void *tick_ctx;
    /* Called when a stage begins to wait for live steps; NULL: they come by themselves. */
    void (*live)(void *ctx);
    void *live_ctx;
};

/* Of children that work while the server serves: as little as there is, beside compute threads that
 * keep to their cores on all of these (enum process_priority). */
static inline enum process_priority stage_priority(const struct stage_env *env)
{
    if (env->alone)
        return PROCESS_NORMAL;
    return env->machine->pinned ? PROCESS_IDLE_ANYWHERE : PROCESS_IDLE;
}

#endif
