/* SPDX-License-Identifier: Apache-2.0 */
/* agent_loop.c - the agent's turn in the loop: which slot it works on, and how a text it wrote
 * becomes a candidate like any other.
 *
 * The agent has a worth of its own for every slot: the same share and headroom, but its own chance,
 * from its own results. So it may go on where the templates are exhausted, and stops where its
 * tree is dead. A text that is ready makes a batch of one; what came of it goes back into the tree,
 * by the text's node.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_span.h"
#include "specializer/agent_loop.h"
#include "specializer/agent_view.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"

/* The point an agent's kernel is compiled for in this slot; false: none is legal. */
static bool point_of(struct specializer *s, const struct slot_search *p, struct facts *f,
                     const struct template **t, struct point *point)
{
    const enum machine_kind machine = s->env.machine->kind;
    *t = agent_template(machine, p->slot->region);
    if (!*t || !template_fits(*t, machine, p->slot->region, p->slot->m))
        return false;
    if (!target_of(s->env.machine->kind)->texts_may_be_bit_equal &&
        s->numerics == NUMERICS_BIT_EQUAL)
        return false; /* eager's order of sums is a library's, which nobody can be told */
    facts_slot(f, s->env.model, p->slot, s->numerics);
    facts_machine(f, s->env.machine);
    return agent_point(*t, f, point);
}

static bool choosable(struct specializer *s, const struct slot_search *p)
{
    const struct template *t = agent_template(s->env.machine->kind, p->slot->region);
    pthread_mutex_lock(&s->lock);
    bool ok = t && !p->left_out && !p->locked.pinned[0] && !p->promoted.c &&
              !is_disabled_locked(s, "", t->id);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static bool is_among(const struct slot *const *among, int n, const struct slot *slot)
{
    bool found = n == 0;
    for (int i = 0; i < n && !found; i++)
        found = among[i] == slot;
    return found;
}

/* The slot where a text is worth most, of these `n` or, with 0, of all; or NULL. Slots that
 * somebody named have their turns however little of the time they take: of a small model's steps
 * one that was interrupted can be more than all others together. */
static struct slot_search *choose(struct specializer *s, const struct slot *const *among, int n)
{
    struct slot_search *best = NULL;
    double most = n > 0 ? 0 : OBSERVE_LEAST;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        struct facts f;
        const struct template *t;
        struct point point;
        int measured = 0, dry = 0;
        if (!is_among(among, n, p->slot) || observe_run_s(&s->observe, i) <= 0 ||
            observe_worth(&s->observe, i, 0, 0) < most || !choosable(s, p) ||
            !point_of(s, p, &f, &t, &point) || !agent_may(s->agent, p->slot->name, &measured, &dry))
            continue;
        double worth = observe_worth(&s->observe, i, measured, dry);
        if (worth >= most) {
            most = worth;
            best = p;
        }
    }
    return best;
}

/* The agent's next move in the slot, with all that it is told of it. */
static void move_in(struct specializer *s, struct slot_search *p)
{
    struct facts f;
    const struct template *t;
    struct point point;
    if (!point_of(s, p, &f, &t, &point))
        return;
    const struct observed *seen = &s->observe.slot[p->index];
    double m = observe_m(&s->observe, p->index), context = observe_context(&s->observe, p->index);
    int tokens = m > 1 ? (int)(m + 0.5) : 1, sequences = 1;
    if (seen->runs > 0 && seen->sequences > seen->runs)
        sequences = (int)(seen->sequences / seen->runs + 0.5);
    const struct slot *slot = p->slot;
    struct agent_view v = {
        .slot = slot->name,
        .facts = &f,
        .numerics = s->numerics,
        .m_from = slot->m_index > 0 ? m_bucket[slot->m_index - 1] + 1 : 1,
        .context = slot->region == REGION_ATTN ? slot->context : 0,
        .isa = target_of(t->machine)->device_target ? 0 : point.value[0],
        .threads = machine_threads(s->config),
        .machine = s->env.machine,
        .incumbent = atomic_load(&p->slot->kernel)->name,
        .min_gain = s->config->specializer_min_gain,
        .share = seen->share,
        .run_s = observe_run_s(&s->observe, p->index),
        .roofline_s = observe_roofline_s(&s->observe, p->index),
        .m = m,
        .context_mean = context,
        .work = plan_cost(s->env.model, slot->region, slot_layer(slot), tokens, sequences,
                          (int64_t)context, tokens),
    };
    struct told told;
    agent_tell(s, p, &v, &told);
    agent_move(s->agent, &v);
    agent_told_free(&told);
}

bool agent_advance(struct specializer *s, const struct slot *const *among, int n)
{
    if (!s->agent)
        return false;
    agent_poll(s->agent);
    if (atomic_exchange(&s->imported, false))
        agent_adopt(s->agent);
    struct slot_search *p = agent_idle(s->agent) ? choose(s, among, n) : NULL;
    if (p)
        move_in(s, p);
    return !agent_idle(s->agent);
}

/* Whether a kernel of the text serves already: the process ended before its tree was told. To
 * repair it would lose the winner's text. */
static bool serves_already(struct specializer *s, const struct candidate *c, int32_t node)
{
    struct record r;
    if (store_get(s->store, c->key, &r, NULL) <= 0)
        return false;
    free(r.log);
    const bool serves = r.state == LIFE_ACTIVE && r.evidence.speed > 0;
    if (serves)
        agent_learn(s->agent, node, r.evidence.speed, "", NULL);
    return serves;
}

/* The candidate for a text, its body written where the compiler will find it; NULL, and the tree
 * knows why. */
static struct candidate *candidate_of(struct specializer *s, struct slot_search *p, int32_t node,
                                      const struct agent_node *n)
{
    struct facts f;
    const struct template *t;
    struct point point;
    struct err err = {""};
    if (!point_of(s, p, &f, &t, &point)) {
        agent_learn(s->agent, node, 0, "no frame for it here", NULL);
        return NULL;
    }
    /* Read again, whoever has read it before: it comes from the store, where rules may be older. */
    if (agent_text_check(n->text, strlen(n->text), agent_language(t->machine), &err) != 0) {
        char reason[sizeof err.msg + 8];
        snprintf(reason, sizeof reason, "text: %s", err.msg);
        agent_learn(s->agent, node, 0, reason, NULL);
        return NULL;
    }
    if (!agent_text_has_hash(n->text, n->source)) { /* by which it would be found again */
        agent_learn(s->agent, node, 0, "text: the store has another hash for it", NULL);
        return NULL;
    }
    if (agent_body_write(s->keys.kernel_dir, t->machine, n->source, n->text, &err) != 0) {
        log_error("agentic", "%s", err.msg);
        agent_forget(s->agent, node);
        return NULL;
    }
    struct candidate *c = candidate_new_agent(&s->keys, t, &point, &f, p->slot, n->source);
    c->bit_equal = s->numerics == NUMERICS_BIT_EQUAL;
    if (serves_already(s, c, node)) {
        candidate_free(c);
        return NULL;
    }
    int may = search_batch_admit(s, c, n->label);
    if (may > 0) {
        snprintf(c->evidence.prompts, sizeof c->evidence.prompts, "%s", n->prompts);
        return c;
    }
    candidate_free(c);
    if (may < 0)
        agent_forget(s->agent, node);
    else
        agent_learn(s->agent, node, 0, "this kernel was refused, disabled or fatal before", NULL);
    return NULL;
}

struct slot_search *agent_waiting(struct specializer *s)
{
    const char *slot;
    const struct agent_node *n;
    int32_t node;
    if (!s->agent || !agent_ready(s->agent, &slot, &node, &n))
        return NULL;
    struct slot_search *p = slot_search_find(s, slot);
    if (p && choosable(s, p))
        return p;
    agent_forget(s->agent, node);
    return NULL;
}

void agent_postpone(struct specializer *s)
{
    const char *slot;
    const struct agent_node *n;
    int32_t node;
    if (s->agent && agent_ready(s->agent, &slot, &node, &n))
        agent_forget(s->agent, node);
}

static enum next texts_next(struct specializer *s, struct slot_search *p)
{
    const char *slot;
    const struct agent_node *n;
    int32_t node;
    if (!s->agent || !agent_ready(s->agent, &slot, &node, &n) || strcmp(slot, p->slot->name) != 0)
        return NEXT_LATER;
    struct candidate *c = candidate_of(s, p, node, n);
    if (!c)
        return NEXT_LATER;
    store_trace(s->store, p->slot->name, c->key, "batch", NULL, "text %d of the agent", node);
    search_batch_add(s, p, c, (struct proposal){&proposer_texts, node});
    return NEXT_BATCH;
}

/* The cost model knows nothing of texts. */
static void texts_benched(struct specializer *s, struct slot_search *p, int32_t node,
                          const struct candidate *c)
{
    (void)s;
    (void)p;
    (void)node;
    (void)c;
}

static void texts_learn(struct specializer *s, struct slot_search *p, int32_t node,
                        const struct candidate *c, double speed)
{
    const bool live = c == p->promoted.c;
    char words[240];
    /* One that is right but no gain in whole steps has nothing to repair. */
    if (live && c->evidence.refusal.stage == STAGE_CANARY)
        speed = c->evidence.speed;
    if (c->evidence.impossible)
        speed = 0; /* a broken measurement must not lead the tree */
    agent_trial_words(s, c, words, sizeof words);
    const char *why = speed > 0 ? words : c->reason;
    if (live)
        agent_revise(s->agent, p->slot->name, node, speed, why);
    else
        agent_learn(s->agent, node, speed, why, candidate_words(c));
}

/* Forgets that a text was tried, unless it was promoted, for then its speed is known. */
static void texts_forget(struct specializer *s, struct slot_search *p, int32_t node)
{
    const char *slot;
    const struct agent_node *n;
    int32_t ready;
    if (agent_ready(s->agent, &slot, &ready, &n) && ready == node &&
        strcmp(slot, p->slot->name) == 0)
        agent_forget(s->agent, node);
}

const struct proposer proposer_texts = {"texts", texts_next, texts_benched, texts_learn,
                                        texts_forget};
