/* SPDX-License-Identifier: Apache-2.0 */
/* restore.c - the store's winners and pinned kernels, back in their slots after a start.
 *
 * A winner's key must still be what this program would compute (same machine, compiler, template
 * text, shape, policy) and its object the very file that passed, by checksum; a missing object is
 * rebuilt. Then it is validated again: a short probe in its own process, a short paired bench
 * against eager on seeded inputs. Slots that took most of the time come first, as many probes run
 * at once as there are cores, and each kernel is published as soon as it passed.
 *
 * Invariant: once swap_in() took a candidate, other threads may replace and free it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/cores.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/admission/inputs.h"
#include "specializer/admission/prober.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/agent/agent_text.h"
#include "specializer/build/build.h"
#include "specializer/pipeline/pipeline.h"
#include "specializer/restore.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/store/life_move.h"
#include "specializer/swap.h"
#include "specializer/why.h"
#include "specializer/winners.h"

enum { PROBES_MOST = 8, RESTORE_MOST = 256 };

/* A kernel that is being restored. */
struct returning {
    struct trial trial;
    struct evidence admitted; /* what it was admitted with; the short bench is apart */
    struct capture *input;    /* of that bench */
};

struct list {
    struct specializer *s;
    struct pipeline pipeline;
    struct returning item[RESTORE_MOST];
    int n;
};

/* ---- rows to candidates -------------------------------------------------------------------- */

/* The machine and texts that stored rows must match. */
struct terms {
    const struct config *config;
    const struct key_parts *keys;
    const struct model *model;
    const struct machine *machine;
    enum numerics numerics;
    struct store *store;
};

/* Puts the text that a language model wrote where the compiler and the key look for it. */
static bool bring_text(const struct terms *g, enum machine_kind machine, const struct record *r,
                       const char **why)
{
    struct agent_node n;
    struct err err;
    *why = "a language model wrote it, and specializer.agentic is off";
    if (strcmp(g->config->specializer_agentic, "on") != 0)
        return false;
    *why = "its text is lost";
    if (agent_store_find(g->store, r->source, &n, NULL) <= 0)
        return false;
    bool ok = agent_text_has_hash(n.text, r->source) &&
              agent_text_check(n.text, strlen(n.text), agent_language(machine), &err) == 0 &&
              agent_body_write(g->keys->kernel_dir, machine, r->source, n.text, &err) == 0;
    tree_node_free(&n);
    return ok;
}

static struct candidate *from_row(const struct terms *g, struct slot *slot, const struct record *r,
                                  const char **why)
{
    const struct template *t = template_find(r->template);
    const struct template *agent = t ? NULL : agent_template_find(r->template);
    struct facts facts;
    struct point point;
    if (agent && !bring_text(g, agent->machine, r, why))
        return NULL;
    t = t ? t : agent;
    *why = "its template is gone or has other knobs";
    if (!t || point_parse(t, r->knobs, &point, NULL) != 0)
        return NULL;
    facts_slot(&facts, g->model, slot, g->numerics);
    facts_machine(&facts, g->machine);
    *why = "its point is no longer legal";
    if (!template_fits(t, g->machine->kind, slot->region, slot->m) ||
        template_illegal(t, &point, &facts))
        return NULL;
    struct candidate *c = agent ? candidate_new_agent(g->keys, t, &point, &facts, slot, r->source)
                                : candidate_new(g->keys, t, &point, &facts, slot);
    c->bit_equal |= agent && g->numerics == NUMERICS_BIT_EQUAL; /* asked of it: agent_loop.c */
    *why = "its source, compiler or machine changed";
    if (strcmp(c->key, r->key) == 0) {
        candidate_recall(c, r);
        c->origin = ORIGIN_RESTORED;
        return c;
    }
    candidate_free(c);
    return NULL;
}

struct candidate *restore_candidate(struct specializer *s, struct slot_search *p,
                                    const struct record *r)
{
    const char *why;
    const struct terms g = {s->config,      &s->keys,    s->env.model,
                            s->env.machine, s->numerics, s->store};
    struct candidate *c = from_row(&g, p->slot, r, &why);
    if (!c)
        store_trace(s->store, p->slot->name, r->key, "not_restored", NULL, "%s", why);
    return c;
}

/* Why a winner of that row must not run, or NULL. */
static const char *barred(const struct record *r)
{
    const char *deadly = record_deadly(r) ? "the process died three times with it" : NULL;
    return life_admitted(r->state) ? deadly : life_name(r->state);
}

static void add(struct list *l, struct slot_search *p, const char *key)
{
    struct record row;
    if (l->n == RESTORE_MOST || store_get(l->s->store, key, &row, NULL) <= 0)
        return;
    free(row.log);
    const char *why = barred(&row);
    struct candidate *c = why ? NULL : restore_candidate(l->s, p, &row);
    if (why)
        store_trace(l->s->store, p->slot->name, key, "not_restored", NULL, "%s", why);
    if (c)
        l->item[l->n++] = (struct returning){.trial = {.c = c, .slot_search = p}};
}

/* Winners as the store has them; what the slots say is looked at when it is done, because
 * operators hold our lock while they ask the store. */
struct winners {
    struct winner *winner;
    int n;
};

static void take_winner(void *ctx, const struct winner *w)
{
    struct winners *all = ctx;
    all->winner = xrealloc(all->winner, (size_t)(all->n + 1) * sizeof *all->winner);
    all->winner[all->n++] = *w;
}

static void add_winners(struct list *l)
{
    struct specializer *s = l->s;
    struct winners all = {0};
    struct err err;
    if (store_winners(s->store, s->keys.env, take_winner, &all, &err) != 0)
        log_error("specializer", "%s", err.msg);
    for (int i = 0; i < all.n; i++) {
        struct slot_search *p = slot_search_find(s, all.winner[i].slot);
        pthread_mutex_lock(&s->lock);
        bool free_slot = p && !p->locked.pinned[0];
        if (free_slot)
            p->locked.share = p->locked.own = all.winner[i].share;
        pthread_mutex_unlock(&s->lock);
        if (free_slot)
            add(l, p, all.winner[i].key);
    }
    free(all.winner);
}

static void add_pinned(struct list *l)
{
    struct specializer *s = l->s;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        char key[sizeof p->locked.pinned];
        pthread_mutex_lock(&s->lock);
        memcpy(key, p->locked.pinned, sizeof key);
        bool kernel = key[0] && strcmp(key, "eager") != 0;
        p->locked.pin_missing |= kernel;
        pthread_mutex_unlock(&s->lock);
        if (kernel)
            add(l, p, key);
    }
}

/* ---- validation ---------------------------------------------------------------------------- */

/* Leaves the slot to eager; a winner at fault is rolled back in the store, refused if wrong. */
static void give_up(struct specializer *s, struct trial *t, bool fault)
{
    struct err err;
    struct candidate *c = t->c;
    log_info("specializer", "%s: %s is not restored: %s", t->slot_search->slot->name, c->name,
             c->reason);
    if (fault && c->state == LIFE_ACTIVE) {
        atomic_fetch_add(&s->counts.rolled_back[ROLLBACK_RESTORE], 1);
        if (life_move(s->store, c, LIFE_ROLLED_BACK, c->reason, NULL, &err) != 0 ||
            (c->evidence.refusal.cause == CAUSE_ERROR &&
             life_move(s->store, c, LIFE_REFUSED, c->reason, NULL, &err) != 0))
            log_error("specializer", "%s", err.msg);
        pthread_mutex_lock(&s->lock);
        why_note_locked(t->slot_search, LIFE_ROLLED_BACK, c);
        pthread_mutex_unlock(&s->lock);
    }
    candidate_drop(s, c);
    t->c = NULL;
}

static int probes_at_once(void)
{
    int cores = cores_usable();
    return cores < 2 ? 2 : cores > PROBES_MOST ? PROBES_MOST : cores;
}

static bool room(const struct pipeline *p, enum stage stage)
{
    (void)stage;
    return p->children[STAGE_BUILD] + p->children[STAGE_PROBE] < probes_at_once();
}

static enum stage_result enter(struct pipeline *p, struct trial *t)
{
    struct specializer *s = p->ctx;
    struct returning *r = (struct returning *)t;
    if (t->at == STAGE_BUILD) {
        if (pipeline_has_object(s->store, t->c))
            return STAGE_PASS;
        if (s->has_compiler || t->c->template->library)
            return STAGE_RUNNING;
        candidate_withdrawn(t->c, "its object file is missing and there is no compiler");
        give_up(s, t, false);
        return STAGE_RETRY;
    }
    if (t->at == STAGE_PROBE)
        t->probe.depth = PROBE_SHORT;
    if (t->at == STAGE_BENCH) {
        r->admitted = t->c->evidence;
        r->input = capture_seeded(s->env.model, t->c->slot,
                                  target_of(s->env.machine->kind)->decodes_most, 1);
        t->bench.against = t->c->slot->eager;
        t->bench.input = r->input;
        t->bench.kind = BENCH_QUICK;
    }
    return STAGE_RUNNING;
}

static void began(struct pipeline *p, struct trial *t, const struct err *err)
{
    if (!err)
        return;
    candidate_withdrawn(t->c, "%s", err->msg);
    give_up(p->ctx, t, false);
}

/* The short bench against eager, as a verdict. It has few pairs and perhaps a busy machine: what it
 * cannot tell apart stays as it was admitted; only a kernel that is slower for sure is out. One
 * that is faster than the machine can be is no other than it was: what was measured in a busy
 * moment is the machine. */
static enum stage_result bench_verdict(struct returning *r, enum stage_result result)
{
    struct candidate *c = r->trial.c;
    struct gain now = c->evidence.bench;
    bool impossible = c->evidence.impossible;
    c->evidence = r->admitted;
    capture_free(r->input);
    free(r->input);
    if (result == STAGE_REFUSE && now.high > 0)
        result = STAGE_PASS;
    if (result == STAGE_PASS && now.low > 0 && !impossible)
        c->evidence.speed = 1 + now.mean;
    candidate_withdrawn(c, "against eager %+.1f %% [%+.1f, %+.1f]", now.mean * 100, now.low * 100,
                        now.high * 100);
    return result;
}

/* False: the slot stays with eager. */
static bool publish(struct specializer *s, struct trial *t)
{
    char why[240], key[KEY_HEX + 1];
    memcpy(why, t->c->reason, sizeof why);
    memcpy(key, t->c->key, sizeof key);
    candidate_unexplain(t->c);
    if (swap_in(s, t->slot_search, t->c, why, NULL) != 0)
        return false;
    t->c = NULL; /* the slot owns it now, and may have dropped it already */
    store_trace(s->store, t->slot_search->slot->name, key, "restored", NULL, "%s", why);
    atomic_fetch_add(&s->counts.restored, 1);
    return true;
}

static bool bench_came(struct specializer *s, struct trial *t, enum stage_result r)
{
    r = bench_verdict((struct returning *)t, r);
    if (r == STAGE_STOPPED && atomic_load(&s->interrupt) && !atomic_load(&s->stop)) {
        specializer_go_on(s); /* a pause, a freeze or a disable is no word on this kernel */
        return false;
    }
    if (r != STAGE_PASS || !publish(s, t))
        give_up(s, t, r == STAGE_REFUSE);
    return false;
}

static bool came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    struct specializer *s = p->ctx;
    if (t->at == STAGE_BENCH)
        return bench_came(s, t, r);
    if (t->at == STAGE_BUILD && r == STAGE_PASS && !pipeline_has_object(s->store, t->c)) {
        /* The rebuilt object differs from the stored one, because of another linker for instance,
         * and would do so at every start. The slot is searched again, which proves the point anew.
         */
        candidate_withdrawn(t->c, "built again, it is not the file that was proven");
        r = STAGE_REFUSE;
    }
    if (r != STAGE_PASS)
        give_up(s, t, t->at != STAGE_LOAD && r == STAGE_REFUSE);
    return r == STAGE_PASS;
}

static const struct pipeline_rules rules = {room, enter, began, came};

/* Brings all winners back, those with the largest share of time first, and does nothing else
 * meanwhile. */
static void bring_back(struct list *l)
{
    struct specializer *s = l->s;
    l->pipeline = (struct pipeline){
        .rules = &rules, .ctx = s, .env = &s->env, .marks = s->store, .last = STAGE_BENCH};
    for (int left = l->n; left > 0 && !atomic_load(&s->stop);) {
        left = 0;
        prober_hold(s->env.prober, false); /* a batch that a pause keeps waiting holds it */
        for (int i = 0; i < l->n; i++) {
            struct trial *t = &l->item[i].trial;
            pipeline_advance(&l->pipeline, t, true);
            pipeline_block(&l->pipeline, t);
            left += !pipeline_over(&l->pipeline, t);
        }
        specializer_wait(s, 0.002);
    }
    for (int i = 0; i < l->n; i++) {
        struct trial *t = &l->item[i].trial;
        pipeline_stop(&l->pipeline, t);
        if (t->c) {
            candidate_withdrawn(t->c, "stopped");
            give_up(s, t, false);
        }
    }
}

void restore_winners(struct specializer *s)
{
    struct list *l = xcalloc(1, sizeof *l);
    l->s = s;
    int64_t start = clock_ns();
    add_winners(l);
    add_pinned(l);
    int wanted = l->n;
    bring_back(l);
    if (wanted > 0)
        log_info("specializer", "%d of %d stored kernels restored in %.2f s",
                 (int)atomic_load(&s->counts.restored), wanted,
                 (double)(clock_ns() - start) * 1e-9);
    free(l);
}

/* The slot of a pinned kernel that could not be restored runs eager. The kernel that was active
 * before has served for as long as the restore was tried. */
static void serve_no_other(struct specializer *s, struct slot_search *p, const char *key)
{
    pthread_mutex_lock(&s->lock);
    bool pinned = strcmp(p->locked.pinned, key) == 0 &&
                  !p->locked.pin_missing; /* else an operator has pinned it again since */
    if (pinned && p->locked.active && strcmp(p->locked.active->key, key) != 0)
        swap_eager_locked(s, p, "the pinned kernel could not be brought back", NULL);
    pthread_mutex_unlock(&s->lock);
}

void restore_pins(struct specializer *s)
{
    bool missing = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->slot_searches; i++)
        missing |= s->slot_search[i].locked.pin_missing;
    pthread_mutex_unlock(&s->lock);
    if (!missing)
        return;
    struct list *l = xcalloc(1, sizeof *l);
    char(*key)[24] = xcalloc((size_t)s->slot_searches, sizeof *key);
    l->s = s;
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        pthread_mutex_lock(&s->lock);
        if (p->locked.pin_missing)
            memcpy(key[i], p->locked.pinned, sizeof key[i]);
        p->locked.pin_missing = false; /* tried once; an operator may pin it again */
        pthread_mutex_unlock(&s->lock);
        if (key[i][0])
            add(l, p, key[i]);
    }
    bring_back(l);
    for (int i = 0; i < s->slot_searches && !atomic_load(&s->stop); i++)
        if (key[i][0])
            serve_no_other(s, &s->slot_search[i], key[i]);
    free(key);
    free(l);
}

/* ---- without a specializer ----------------------------------------------------------------- */

struct loading {
    struct terms terms;
    struct backend *backend;
    const struct backend_ops *ops;
    struct dispatch *dispatch;
    void (*each)(void *ctx, const struct slot *slot, const struct kernel *k);
    void *ctx;
    int published;
};

static void load_winner(struct loading *l, const struct winner *w)
{
    struct record row;
    struct err err;
    char sum[17];
    struct slot *slot = dispatch_find(l->dispatch, w->slot);
    if (!slot || store_get(l->terms.store, w->key, &row, NULL) <= 0)
        return;
    free(row.log);
    const char *why = barred(&row);
    struct candidate *c = why ? NULL : from_row(&l->terms, slot, &row, &why);
    if (!c) {
        log_warn("specializer", "%s: %s is not used: %s", w->slot, row.name, why);
        return;
    }
    struct kernel_object object = {.path = c->object,
                                   .entry = "whet_kernel",
                                   .region = slot->region,
                                   .formats = slot->formats,
                                   .origin = ORIGIN_RESTORED,
                                   .id = c->key,
                                   .name = c->name,
                                   .text = c->body[0] != 0};
    struct kernel *k = NULL;
    if (safe_file(c->object, &err) != 0)
        err_prefix(&err, "its object");
    else if (object_checksum(c->object, sum) != 0 || strcmp(sum, c->object_sum) != 0)
        err_set(&err, "its object %s has changed", c->object);
    else
        k = l->ops->load(l->backend, &object, &err);
    if (k) {
        dispatch_publish(l->dispatch, slot, k);
        l->published++;
        if (l->each)
            l->each(l->ctx, slot, k);
    } else {
        log_warn("specializer", "%s: %s is not used: %s", w->slot, c->name, err.msg);
    }
    candidate_free(c);
}

int winners_load(const struct config *c, const struct model *m, struct backend *b,
                 const struct backend_ops *ops, struct dispatch *d,
                 void (*each)(void *ctx, const struct slot *slot, const struct kernel *k),
                 void *ctx, struct err *err)
{
    char *path = store_default_path(c->specializer_store);
    bool named = c->specializer_store && c->specializer_store[0];
    bool none_yet = !named && access(path, F_OK) != 0; /* nothing was ever learnt here */
    struct store *store = none_yet ? NULL : store_open_read(path, err);
    free(path);
    if (!store)
        return none_yet ? 0 : -1;
    struct key_parts keys = {{0}};
    struct compiler compiler = {0};
    enum numerics numerics = numerics_parse(c->specializer_numerics);
    const struct machine *machine = ops->machine(b);
    struct err none = {""};
    compiler_known(c, store, machine, &compiler, &none);
    keys_open(&keys, store, machine, &compiler, m, numerics);
    struct loading l = {{c, &keys, m, machine, numerics, store}, b, ops, d, each, ctx, 0};
    struct winners all = {0};
    int r = store_winners(store, keys.env, take_winner, &all, err);
    for (int i = 0; i < all.n; i++)
        load_winner(&l, &all.winner[i]);
    free(all.winner);
    keys_close(&keys);
    store_close(store);
    return r == 0 ? l.published : -1;
}
