/* SPDX-License-Identifier: Apache-2.0 */
/* session.c - see session.h. The parts are the loop's own (specializer.c); only who decides what
 * comes next is another. */
#include "specializer/session.h"
#include "specializer/restore.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "specializer/admission/inputs.h"
#include "specializer/agent_loop.h"
#include "specializer/blame.h"
#include "specializer/consult.h"
#include "specializer/retrial.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/why.h"

struct session {
    struct engine *engine;
    struct specializer *s;
    int64_t until_ns; /* when stages that wait for live steps give up; 0: never */
};

/* ---- opening and closing ------------------------------------------------------------------- */

static void tick(void *ctx)
{
    struct session *session = ctx;
    specializer_observe(session->s);
    search_batch_children(session->s);
    if (session->until_ns > 0 && clock_ns() >= session->until_ns)
        atomic_store(&session->s->interrupt, true);
}

static int wait_ready(struct engine *e, struct err *err)
{
    char message[256] = "";
    enum engine_state state;
    while ((state = engine_state(e, NULL, message, sizeof message)) == ENGINE_LOADING)
        usleep(5000);
    return state == ENGINE_READY ? 0 : err_set(err, "%s", message);
}

struct session *session_open(const struct config *c, struct err *err)
{
    struct session *session = xcalloc(1, sizeof *session);
    session->engine = engine_start(c, err);
    if (!session->engine || wait_ready(session->engine, err) != 0)
        goto fail;
    struct specializer *s = session->s = specializer_new(c, session->engine, false, err);
    if (!s)
        goto fail;
    s->env.tick = tick;
    s->env.tick_ctx = session;
    s->env.alone = true;
    specializer_setup(s);
    if (blame_deaths(s, err) != 0 || operators_read(s, err) != 0)
        goto fail;
    if (!s->has_compiler) {
        err_set(err, "there is no compiler, or no folder to compile into");
        goto fail;
    }
    atomic_store(&s->mode, SPECIALIZER_RUN);
    return session;
fail:
    session_close(session);
    return NULL;
}

void session_close(struct session *session)
{
    if (!session)
        return;
    if (session->s)
        specializer_free(session->s);
    if (session->engine)
        engine_stop(session->engine);
    free(session);
}

void session_stop(struct session *session)
{
    atomic_store(&session->s->stop, true); /* in this order: specializer_go_on() */
    atomic_store(&session->s->interrupt, true);
}

bool session_stopped(const struct session *session)
{
    return atomic_load(&session->s->stop);
}

/* ---- what it works with -------------------------------------------------------------------- */

const struct stage_env *session_env(const struct session *session)
{
    return &session->s->env;
}

struct store *session_store(const struct session *session)
{
    return session->s->store;
}

int32_t session_threads(const struct session *session)
{
    return session->s->cost.threads;
}

struct slot *session_slot(struct session *session, const char *name)
{
    struct slot_search *p = slot_search_find(session->s, name);
    return p ? p->slot : NULL;
}

struct candidate *session_candidate(struct session *session, const struct template *t,
                                    const struct point *p, const struct facts *f, struct slot *slot)
{
    return candidate_new(&session->s->keys, t, p, f, slot);
}

void session_drop(struct session *session, struct candidate *c)
{
    candidate_drop(session->s, c);
    retire_poll(session->s, true);
}

/* ---- searching ----------------------------------------------------------------------------- */

static struct slot_search *slot_search_of(struct session *session, const struct slot *slot)
{
    return slot_search_find(session->s, slot->name);
}

void session_restore(struct session *session)
{
    restore_winners(session->s);
    retrials_recall(session->s);
    why_recall(session->s);
}

void session_on_live(struct session *session, void (*live)(void *ctx), void *ctx)
{
    session->s->env.live = live;
    session->s->env.live_ctx = ctx;
}

void session_set_share(struct session *session, const struct slot *slot, double share)
{
    struct specializer *s = session->s;
    pthread_mutex_lock(&s->lock);
    slot_search_of(session, slot)->locked.share = share;
    pthread_mutex_unlock(&s->lock);
}

_Static_assert(sizeof((struct session_slot *)0)->kernel == sizeof((struct candidate *)0)->name,
               "a kernel's name fits");
_Static_assert(sizeof((struct session_slot *)0)->why == WHY_TEXT, "why fits");
_Static_assert(sizeof((struct session_slot *)0)->lost == WHY_TEXT, "and why another lost");

void session_look(struct session *session, const struct slot *slot, struct session_slot *out)
{
    struct specializer *s = session->s;
    const struct slot_search *p = slot_search_of(session, slot);
    *out = (struct session_slot){.exhausted = p->exhausted,
                                 .promoted = p->promoted.c != NULL,
                                 .tried = p->search.tried,
                                 .dry = p->dry};
    pthread_mutex_lock(&s->lock);
    out->pinned = p->locked.pinned[0] != 0;
    out->gain = p->locked.gain_eager;
    if (p->locked.active) {
        memcpy(out->kernel, p->locked.active->name, sizeof out->kernel);
        out->bench = p->locked.active->evidence.bench;
        out->step = p->locked.active->evidence.canary;
    } else {
        why_eager_locked(s, p, out->why);
    }
    memcpy(out->lost, p->locked.why.last, sizeof out->lost);
    pthread_mutex_unlock(&s->lock);
}

bool session_search(struct session *session, const struct slot *slot)
{
    return slot_search_open(session->s, slot_search_of(session, slot));
}

bool session_capture(struct session *session, const struct slot *slot)
{
    return slot_search_inputs(session->s, slot_search_of(session, slot));
}

bool session_inputs(struct session *session, const struct slot *slot, bool make)
{
    struct slot_search *p = slot_search_of(session, slot);
    if (p->inputs == 0 && make) {
        p->input[0] = capture_seeded(session->s->env.model, p->slot,
                                     target_of(session->s->env.machine->kind)->decodes_most, 1);
        p->inputs = p->input[0] != NULL;
    }
    return p->inputs > 0;
}

bool session_retrial_due(struct session *session, const struct slot *slot)
{
    return retrial_due(session->s, slot_search_of(session, slot));
}

int session_propose(struct session *session, const struct slot *slot, enum session_source source)
{
    struct specializer *s = session->s;
    const struct proposer *by = source == SESSION_RETRIALS ? &proposer_retrials
                                : source == SESSION_TEXTS  ? &proposer_texts
                                                           : &proposer_points;
    struct slot_search *p = slot_search_of(session, slot);
    pthread_mutex_lock(&s->lock);
    p->locked.why.last[0] = 0;
    pthread_mutex_unlock(&s->lock);
    return by->next(s, p) == NEXT_BATCH ? s->batch.n : -1;
}

void session_ask_ahead(struct session *session, const struct slot *slot)
{
    consult_ahead(session->s, slot_search_of(session, slot));
}

bool session_work(struct session *session)
{
    struct specializer *s = session->s;
    if (search_batch_over(s))
        return false;
    specializer_observe(s);
    search_batch_children(s);
    consult_meanwhile(s);
    if (!search_batch_bench(s) && !search_batch_over(s))
        specializer_wait(s, 0.005);
    return !search_batch_over(s);
}

void session_settle(struct session *session, const struct slot *slot)
{
    struct specializer *s = session->s;
    if (search_batch_over(s))
        search_batch_close(s);
    else
        search_batch_abandon(s);
    /* The disk is full, or the builds of the hour are used up. */
    if (clock_ns() < slot_search_of(session, slot)->not_before_ns)
        specializer_wait(s, 0.5);
}

void session_until(struct session *session, double seconds)
{
    session->until_ns = seconds > 0 ? clock_ns() + (int64_t)(seconds * 1e9) : 0;
    specializer_go_on(session->s);
}

bool session_promote(struct session *session, const struct slot *slot)
{
    struct slot_search *p = slot_search_of(session, slot);
    if (p->promoted.c)
        promotion_try(session->s, p);
    return p->promoted.c != NULL;
}

bool session_write(struct session *session, const struct slot *const *slot, int n)
{
    specializer_observe_now(session->s); /* the steps that were just replayed for it */
    return agent_advance(session->s, slot, n);
}

const struct slot *session_text(struct session *session)
{
    const struct slot_search *p = agent_waiting(session->s);
    return p ? p->slot : NULL;
}

void session_text_later(struct session *session)
{
    agent_postpone(session->s);
}

void session_wait(struct session *session)
{
    specializer_wait(session->s, 0.02);
}

void session_upkeep(struct session *session)
{
    retire_poll(session->s, false);
    adviser_poll(session->s->adviser);
}
