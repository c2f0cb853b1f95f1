/* SPDX-License-Identifier: Apache-2.0 */
/* operators.c - what operators change: pins, rollbacks, disables, the mode (specializer.h).
 *
 * Runs on the server's threads. A change is written to the store first, then made in memory under
 * the lock; a slot that must change does so here and now, not when the specializer thread next
 * looks, because "take that kernel out" cannot wait for a benchmark to finish.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "specializer/agent/agent_source.h"
#include "specializer/candidate/life.h"
#include "specializer/operators.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/store/store_words.h"
#include "specializer/swap.h"

/* ---- pins and rollbacks -------------------------------------------------------------------- */

static enum specializer_answer slot_answer(struct specializer *s, struct slot_search *p,
                                           char **text)
{
    pthread_mutex_lock(&s->lock);
    cJSON *o = slot_json_locked(s, p);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return answer_json(o, text);
}

/* ANSWER_DONE, or what to refuse it with. */
static enum specializer_answer may_pin(struct specializer *s, const char *slot, const char *kernel,
                                       char **text)
{
    struct record r;
    struct err err;
    if (strcmp(kernel, "eager") == 0)
        return ANSWER_DONE;
    int found = store_get(s->store, kernel, &r, &err);
    if (found <= 0)
        return found < 0
                   ? answer_refuse(ANSWER_FAILED, text, "%s", err.msg)
                   : answer_refuse(ANSWER_UNKNOWN, text, "there is no kernel \"%.40s\"", kernel);
    free(r.log);
    if (strcmp(r.slot, slot) != 0)
        return answer_refuse(ANSWER_CONFLICT, text, "kernel %s is made for %s, not for %s", kernel,
                             r.slot, slot);
    pthread_mutex_lock(&s->lock);
    bool disabled = is_disabled_locked(s, kernel, r.template);
    pthread_mutex_unlock(&s->lock);
    if (disabled)
        return answer_refuse(ANSWER_CONFLICT, text, "kernel %s, or its family, is disabled",
                             kernel);
    if (!life_admitted(r.state) || strcmp(r.env, s->keys.env) != 0)
        return answer_refuse(ANSWER_CONFLICT, text,
                             "kernel %s is %s%s: only a kernel that passed admission here can "
                             "be pinned",
                             kernel, life_name(r.state),
                             strcmp(r.env, s->keys.env) == 0 ? "" : " and of another environment");
    return ANSWER_DONE;
}

/* A candidate that live steps are judging in this slot answers requests meanwhile: it must not go
 * on doing so beside what an operator wants there. */
static void interrupt_trials(struct specializer *s)
{
    atomic_store(&s->interrupt, true);
}

/* Makes the slot follow its pin as far as that is possible at once. */
static void follow_pin_locked(struct specializer *s, struct slot_search *p, const char *who)
{
    bool eager = strcmp(p->locked.pinned, "eager") == 0;
    p->locked.pin_missing = false;
    if (eager)
        swap_eager_locked(s, p, "pinned to eager", who);
    else if (p->locked.active && strcmp(p->locked.active->key, p->locked.pinned) == 0)
        return;
    else if (p->locked.previous && strcmp(p->locked.previous->key, p->locked.pinned) == 0)
        swap_in_locked(s, p, p->locked.previous, "pinned", who);
    else
        p->locked.pin_missing = true; /* loaded and validated by the specializer thread */
}

enum specializer_answer specializer_pin(struct specializer *s, const char *slot, const char *kernel,
                                        const char *who, char **text)
{
    struct err err;
    if (answer_loading(s, text))
        return ANSWER_LOADING;
    if (!kernel || !*kernel)
        return answer_refuse(ANSWER_WRONG, text, "\"kernel\" must be a kernel's id or \"eager\"");
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return answer_no_slot(s, slot, text);
    enum specializer_answer may = may_pin(s, slot, kernel, text);
    if (may != ANSWER_DONE)
        return may;
    pthread_mutex_lock(&s->lock);
    bool same = strcmp(p->locked.pinned, kernel) == 0;
    int r = same ? 0 : store_pin(s->store, slot, kernel, who, &err);
    if (r == 0) {
        snprintf(p->locked.pinned, sizeof p->locked.pinned, "%s", kernel);
        /* The same again: what could not be brought back may come now. */
        follow_pin_locked(s, p, who);
        interrupt_trials(s);
    }
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? slot_answer(s, p, text) : answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
}

enum specializer_answer specializer_unpin(struct specializer *s, const char *slot, const char *who,
                                          char **text)
{
    struct err err;
    if (answer_loading(s, text))
        return ANSWER_LOADING;
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return answer_no_slot(s, slot, text);
    pthread_mutex_lock(&s->lock);
    int r = p->locked.pinned[0] ? store_unpin(s->store, slot, who, &err) : 0;
    if (r == 0) {
        p->locked.stale |=
            p->locked.pinned[0] && !p->locked.active; /* its search may be over: look again */
        p->locked.pinned[0] = 0;
        p->locked.pin_missing = false;
    }
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? slot_answer(s, p, text) : answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
}

/* A rollback takes effect whatever the disk says; who asked for it must know that it may not
 * outlive a restart. Asked again, with `from`, it is answered so until it is stored. */
static enum specializer_answer rolled_back_answer(struct specializer *s, struct slot_search *p,
                                                  const char *gone, char **text)
{
    struct err err;
    store_settle(s->store);
    if (!store_owes(s->store, gone, &err))
        return slot_answer(s, p, text);
    return answer_refuse(ANSWER_FAILED, text,
                         "%s is out of %s, but that is not stored yet, so a server that is killed "
                         "now comes back with it: %s",
                         gone, p->slot->name, err.msg);
}

/* With `from` a second call finds another kernel in the slot and changes nothing. */
enum specializer_answer specializer_rollback(struct specializer *s, const char *slot,
                                             const char *from, const char *who, char **text)
{
    if (answer_loading(s, text))
        return ANSWER_LOADING;
    struct slot_search *p = slot_search_find(s, slot);
    if (!p)
        return answer_no_slot(s, slot, text);
    pthread_mutex_lock(&s->lock);
    char pinned[sizeof p->locked.pinned], gone[KEY_HEX + 1] = "";
    memcpy(pinned, p->locked.pinned, sizeof pinned);
    bool done =
        from && *from && strcmp(from, p->locked.active ? p->locked.active->key : "eager") != 0;
    snprintf(gone, sizeof gone, "%s", done ? from : p->locked.active ? p->locked.active->key : "");
    bool nothing = !done && !pinned[0] && swap_back_locked(s, p, who) != 0;
    if (!done && !pinned[0] && !nothing)
        interrupt_trials(s);
    pthread_mutex_unlock(&s->lock);
    if (!done && pinned[0])
        return answer_refuse(ANSWER_CONFLICT, text, "%s is pinned to %s", slot, pinned);
    if (nothing)
        return answer_refuse(ANSWER_CONFLICT, text,
                             "%s runs the eager kernel and there is nothing before it", slot);
    return rolled_back_answer(s, p, gone, text);
}

/* ---- disables ------------------------------------------------------------------------------ */

/* A kernel's key in the store, or a template's name. */
static bool nameable(struct specializer *s, const char *what)
{
    struct record r;
    if (template_find(what) || agent_template_find(what))
        return true;
    int found = store_get(s->store, what, &r, NULL);
    if (found > 0)
        free(r.log);
    return found > 0;
}

/* Every slot that runs it goes back to eager; an interrupted stage notices at its next look. What
 * is disabled may have served before what serves now, or in a canary: its pages are not believed.
 */
static void take_out_locked(struct specializer *s, const char *reason, const char *who)
{
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        if (p->locked.active &&
            is_disabled_locked(s, p->locked.active->key, p->locked.active->template->id))
            swap_out_locked(s, p, LIFE_DISABLED, ROLLBACK_OPERATOR, reason, who);
        if (p->locked.previous &&
            is_disabled_locked(s, p->locked.previous->key, p->locked.previous->template->id)) {
            candidate_drop_locked(s, p->locked.previous);
            p->locked.previous = NULL;
        }
    }
    dispatch_distrust(s->env.dispatch);
    interrupt_trials(s);
}

static enum specializer_answer disable_answer(struct specializer *s, const char *what,
                                              bool disabled, char **text)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "kernel", what);
    cJSON_AddBoolToObject(o, "disabled", disabled);
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return answer_json(o, text);
}

enum specializer_answer specializer_disable(struct specializer *s, const char *what,
                                            const char *reason, const char *who, char **text)
{
    struct err err;
    if (answer_loading(s, text))
        return ANSWER_LOADING;
    if (strcmp(what, "eager") == 0)
        return answer_refuse(ANSWER_CONFLICT, text,
                             "the eager kernel is the fallback and cannot be disabled");
    if (!nameable(s, what))
        return answer_refuse(ANSWER_UNKNOWN, text, "there is no kernel or template \"%.40s\"",
                             what);
    if (!reason || !*reason)
        reason = "disabled by an operator";
    pthread_mutex_lock(&s->lock);
    bool already = is_disabled_locked(s, what, what);
    int r = already ? 0 : store_disable(s->store, what, reason, who, &err);
    if (r == 0 && !already)
        operators_disable_locked(s, what, reason);
    if (r == 0)
        take_out_locked(s, reason, who);
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? disable_answer(s, what, true, text)
                  : answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
}

/* A refused kernel begins its life again, with nothing held against it: what it was refused for may
 * have been the machine's fault. What the store says of it goes the way that every kernel may go,
 * over disabled. 0, also where there is none; -1 with a message. */
static int allow_again(struct specializer *s, const char *key, const char *who, struct err *err)
{
    struct record r;
    int found = store_get(s->store, key, &r, err);
    if (found <= 0)
        return found;
    bool refused = r.state == LIFE_REFUSED, back = refused || r.state == LIFE_ROLLED_BACK;
    bool forgive = back || record_deadly(&r);
    r.evidence = (struct evidence){0};
    r.rollbacks = 0;
    r.reason[0] = 0;
    int rc = 0;
    if (refused)
        rc = store_move(s->store, &r, LIFE_DISABLED, "to be allowed again", who, err);
    if (rc == 0 && back)
        rc = store_move(s->store, &r, LIFE_PROPOSED, "allowed again", who, err);
    if (rc == 0 && forgive)
        rc = store_forgive(s->store, key, err) == 0 ? store_words_allow(s->store, key, err) : -1;
    free(r.log);
    return rc;
}

static void forget_disable_locked(struct specializer *s, const char *what)
{
    int n = 0;
    for (int i = 0; i < s->locked.disables; i++)
        if (strcmp(s->locked.disabled[i].what, what) != 0)
            s->locked.disabled[n++] = s->locked.disabled[i];
    s->locked.disables = n;
}

enum specializer_answer specializer_enable(struct specializer *s, const char *what, const char *who,
                                           char **text)
{
    struct err err;
    if (answer_loading(s, text))
        return ANSWER_LOADING;
    if (!nameable(s, what))
        return answer_refuse(ANSWER_UNKNOWN, text, "there is no kernel or template \"%.40s\"",
                             what);
    pthread_mutex_lock(&s->lock);
    int r = is_disabled_locked(s, what, what) ? store_enable(s->store, what, who, &err) : 0;
    if (r == 0)
        forget_disable_locked(s, what);
    if (r == 0)
        r = allow_again(s, what, who, &err);
    for (int i = 0; i < s->slot_searches; i++)
        s->slot_search[i].locked.stale =
            true; /* points that were passed over may be proposed now */
    pthread_mutex_unlock(&s->lock);
    return r == 0 ? disable_answer(s, what, false, text)
                  : answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
}

/* ---- mode ---------------------------------------------------------------------------------- */

const char *const mode_names[] = {"run", "pause", "freeze"};

enum specializer_answer specializer_set_mode(struct specializer *s, enum specializer_mode mode,
                                             const char *who, char **text)
{
    struct err err;
    if (s->numerics == NUMERICS_FROZEN && mode != SPECIALIZER_FREEZE)
        return answer_refuse(ANSWER_CONFLICT, text,
                             "frozen by the configuration (specializer.numerics = frozen)");
    pthread_mutex_lock(&s->lock);
    int r = 0;
    if ((int)mode != atomic_load(&s->mode)) {
        r = store_set(s->store, "mode", mode_names[mode], &err);
        if (r == 0) {
            atomic_store(&s->mode, (int)mode);
            store_trace(s->store, NULL, NULL, mode_names[mode], who, "%s", "the specializer");
        }
    }
    if (r == 0)
        atomic_store(mode == SPECIALIZER_RUN ? &s->go_on : &s->interrupt, true);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (r != 0)
        return answer_refuse(ANSWER_FAILED, text, "%s", err.msg);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "mode", mode_names[mode]);
    return answer_json(o, text);
}
