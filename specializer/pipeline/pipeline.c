/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c - see pipeline.h: the table of stages, and the driver.
 *
 * A trial has one state, the stage that it is at, and moves in one place, forward(). What the store
 * says of its candidate (enum life) follows: whoever keeps a store moves it in came(), to what the
 * table says was reached.
 */
#include "specializer/pipeline/pipeline.h"

#include <string.h>

#include "config/safe_path.h"
#include "config/table.h"
#include "specializer/build/build.h"
#include "specializer/pipeline/stages.h"
#include "specializer/store/store.h"

/* ---- the stages ------------------------------------------------------------------------------ */

static enum stage_result start_build(struct pipeline *p, struct trial *t, struct err *err)
{
    t->child = build_start(p->env, t->c, err);
    return t->child ? STAGE_RUNNING : STAGE_RETRY;
}

static enum stage_result poll_build(void *child)
{
    return build_poll(child);
}

static void end_build(void *child)
{
    build_end(child);
}

static enum stage_result start_probe(struct pipeline *p, struct trial *t, struct err *err)
{
    t->child = probe_start(p->env, t->c, t->probe.depth, t->probe.input, t->probe.inputs, err);
    return t->child ? STAGE_RUNNING : STAGE_RETRY;
}

static enum stage_result poll_probe(void *child)
{
    return probe_poll(child);
}

static void end_probe(void *child)
{
    probe_end(child);
}

static enum stage_result start_load(struct pipeline *p, struct trial *t, struct err *err)
{
    (void)err;
    return load_run(p->env, p->marks, t->c);
}

static enum stage_result start_bench(struct pipeline *p, struct trial *t, struct err *err)
{
    (void)err;
    if (t->bench.pairs > 0)
        return bench_sample(p->env, t->c, t->bench.against, t->bench.input, t->bench.pairs);
    return bench_run(p->env, t->c, t->bench.against, t->bench.input, t->bench.kind);
}

static enum stage_result start_shadow(struct pipeline *p, struct trial *t, struct err *err)
{
    (void)err;
    return shadow_run(p->env, t->c, SHADOW_TIMEOUT_S);
}

static enum stage_result start_canary(struct pipeline *p, struct trial *t, struct err *err)
{
    (void)err;
    return canary_run(p->env, t->c, CANARY_TIMEOUT_S);
}

/* A stage with poll() is a child: start() answers RUNNING, or RETRY with a message when it could
 * not be started. One without answers at once. */
static const struct {
    enum stage_result (*start)(struct pipeline *p, struct trial *t, struct err *err);
    enum stage_result (*poll)(void *child);
    void (*end)(void *child);
    enum stage next;
    enum life reached;
} table[] = {
    [STAGE_BUILD] = {start_build, poll_build, end_build, STAGE_PROBE, LIFE_BUILT},
    [STAGE_PROBE] = {start_probe, poll_probe, end_probe, STAGE_LOAD, LIFE_PROBED},
    [STAGE_LOAD] = {start_load, NULL, NULL, STAGE_BENCH, LIFE_PROBED},
    [STAGE_BENCH] = {start_bench, NULL, NULL, STAGE_SHADOW, LIFE_BENCHED},
    [STAGE_SHADOW] = {start_shadow, NULL, NULL, STAGE_CANARY, LIFE_SHADOWED},
    [STAGE_CANARY] = {start_canary, NULL, NULL, STAGES, LIFE_CANARY},
};
EVERY_ROW(table, STAGES);

enum life pipeline_reached(enum stage stage)
{
    return table[stage].reached;
}

/* A file under the object's name is its own proof of identity (the name hashes all that went into
 * it), but only the checksum of a build that was seen to finish is proof that it is whole. */
bool pipeline_has_object(struct store *store, struct candidate *c)
{
    char sum[17];
    return store_object_sum(store, c->object_key, c->object_sum) &&
           safe_file(c->object, NULL) == 0 && object_checksum(c->object, sum) == 0 &&
           strcmp(sum, c->object_sum) == 0;
}

/* ---- the driver ------------------------------------------------------------------------------ */

bool pipeline_over(const struct pipeline *p, const struct trial *t)
{
    return !t->c || t->at > p->last;
}

bool pipeline_ready(const struct pipeline *p, const struct trial *t)
{
    return !pipeline_over(p, t) && !table[t->at].poll;
}

static void forward(struct trial *t)
{
    t->at = table[t->at].next;
}

void pipeline_stop(struct pipeline *p, struct trial *t)
{
    if (!t->child)
        return;
    table[t->at].end(t->child);
    t->child = NULL;
    p->children[t->at]--;
}

/* False: the child runs on, or the trial goes no further. */
static bool collect(struct pipeline *p, struct trial *t)
{
    enum stage_result r = table[t->at].poll(t->child);
    if (r == STAGE_RUNNING)
        return false;
    pipeline_stop(p, t);
    if (!p->rules->came(p, t, r))
        return false;
    forward(t);
    return true;
}

static void begin(struct pipeline *p, struct trial *t)
{
    struct err err = {""};
    bool runs = table[t->at].start(p, t, &err) == STAGE_RUNNING;
    p->children[t->at] += runs;
    if (p->rules->began)
        p->rules->began(p, t, runs ? NULL : &err);
}

void pipeline_advance(struct pipeline *p, struct trial *t, bool may_start)
{
    if (t->child && !collect(p, t))
        return;
    while (may_start && !pipeline_over(p, t) && table[t->at].poll &&
           (!p->rules->room || p->rules->room(p, t->at))) {
        enum stage_result r = p->rules->enter(p, t);
        if (r == STAGE_RUNNING)
            begin(p, t);
        if (r != STAGE_PASS)
            return;
        forward(t);
    }
}

void pipeline_block(struct pipeline *p, struct trial *t)
{
    struct err err = {""};
    while (pipeline_ready(p, t)) {
        enum stage_result r = p->rules->enter(p, t);
        if (r == STAGE_RUNNING && !p->rules->came(p, t, table[t->at].start(p, t, &err)))
            return;
        if (r != STAGE_RUNNING && r != STAGE_PASS)
            return;
        forward(t);
    }
}
