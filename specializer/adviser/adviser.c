/* SPDX-License-Identifier: Apache-2.0 */
/* adviser.c - asking a language model without ever waiting for it.
 *
 * The specializer thread writes a question, puts it on the line (llm.h) and goes on with the
 * heuristic's answer. When the reply is in, it reads it against the space the question was about,
 * counts it, and keeps what was accepted on that slot's desk, where the next batch finds it. When a
 * slot is asked about, and again, is said in adviser_turns.h. A reply may come when the search that
 * it was for has ended and another of the same slot has begun, or is about to: then it is read
 * against that one's space, so that what was paid for is used.
 *
 * Held by the lock: everything that metrics read. The rest is the specializer thread's alone. What
 * was asked holds its space open, because the search it was for may end meanwhile.
 */
#include "specializer/adviser/adviser.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/adviser/adviser_counts.h"
#include "specializer/adviser/adviser_request.h"
#include "specializer/adviser/adviser_turns.h"
#include "specializer/adviser/llm.h"
#include "specializer/search/strategy.h"
#include "specializer/store/store.h"

enum { KEPT_MOVES = 64 };

enum kind { ASK_ADVICE, ASK_MOVES };

/* The question under way. */
struct asked {
    enum kind kind;
    char slot[40];
    struct space *space;
    struct standing then; /* of the search when it was asked */
};

/* What was said about one slot. */
struct desk {
    char slot[40];
    struct space *space; /* the ids are of this one */
    bool advised;
    struct advice advice;
    struct standing then; /* when it was asked for */
    char *unread;         /* the reply with it, until a batch has had the advice */
    struct moves moves[KEPT_MOVES];
    int n_moves, next_move;
};

struct adviser {
    struct store *store;
    struct llm *llm; /* NULL: the heuristic advises */
    char model[32];
    struct call_style style;
    struct asked asked;
    struct turns turns;
    pthread_mutex_t lock;
    struct adviser_counts count; /* lock */
    struct desk *desk;
    int desks;
};

/* ---- opening and closing ------------------------------------------------------------------- */

struct adviser *adviser_open(const struct config *c, struct store *store)
{
    struct adviser *a = xcalloc(1, sizeof *a);
    struct err err;
    a->store = store;
    a->style = (struct call_style){.max_tokens = (int32_t)c->adviser_max_tokens,
                                   .timeout = c->adviser_timeout,
                                   .temperature = -1};
    snprintf(a->model, sizeof a->model, "%s", c->adviser_model[0] ? c->adviser_model : "llm");
    histogram_init(&a->count.seconds, bounds_latency, bounds_latency_n);
    pthread_mutex_init(&a->lock, NULL);
    a->llm = llm_open(c, store, &err);
    if (!a->llm && err.msg[0])
        log_error("adviser", "%s: the heuristic advises", err.msg);
    return a;
}

static void clear_asked(struct asked *q)
{
    space_close(q->space);
    *q = (struct asked){0};
}

static void clear_desk(struct desk *d)
{
    advice_free(&d->advice);
    space_close(d->space);
    free(d->unread);
    *d = (struct desk){{0}};
}

void adviser_close(struct adviser *a)
{
    if (!a)
        return;
    if (a->llm)
        adviser_poll(a);
    llm_close(a->llm);
    clear_asked(&a->asked);
    for (int i = 0; i < a->desks; i++)
        clear_desk(&a->desk[i]);
    free(a->desk);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

bool adviser_is_remote(const struct adviser *a)
{
    return a->llm != NULL;
}

struct llm *adviser_llm(struct adviser *a)
{
    return a->llm;
}

/* ---- desks --------------------------------------------------------------------------------- */

static struct desk *find_desk(struct adviser *a, const char *slot)
{
    for (int i = 0; i < a->desks; i++)
        if (strcmp(a->desk[i].slot, slot) == 0)
            return &a->desk[i];
    return NULL;
}

static void use_late(struct adviser *a, struct desk *d, const char *text);

/* The slot's desk, cleared if its search was begun anew. What nobody has read stays. */
static struct desk *desk_of(struct adviser *a, const char *slot, struct space *space)
{
    struct desk *d = find_desk(a, slot);
    if (!d) {
        a->desk = xrealloc(a->desk, (size_t)(a->desks + 1) * sizeof *a->desk);
        d = &a->desk[a->desks++];
        *d = (struct desk){{0}};
    }
    if (d->space != space) {
        char *unread = d->unread;
        d->unread = NULL;
        clear_desk(d);
        snprintf(d->slot, sizeof d->slot, "%s", slot);
        d->space = space_share(space);
        if (unread)
            use_late(a, d, unread);
        free(unread);
    }
    return d;
}

/* ---- questions ----------------------------------------------------------------------------- */

static void count_held(struct adviser *a, enum hold hold)
{
    pthread_mutex_lock(&a->lock);
    a->count.held[hold] += hold != HOLD_NOT;
    pthread_mutex_unlock(&a->lock);
}

/* Puts a question unless there is a reason not to. `document` and `schema` are taken over. */
static bool put_question(struct adviser *a, const struct advice_request *r, enum kind kind,
                         char *document, cJSON *schema)
{
    bool advice = kind == ASK_ADVICE;
    struct llm_question q = {.user = LLM_ADVISER,
                             .purpose = advice ? LLM_TASK_ADVICE : LLM_TASK_MOVES,
                             .task = xstrdup(advice ? adviser_advice_task : adviser_moves_task),
                             .document = document,
                             .schema = cJSON_PrintUnformatted(schema),
                             .name = advice ? "kernel_advice" : "kernel_moves",
                             .style = a->style};
    cJSON_Delete(schema);
    enum hold hold = llm_ask(a->llm, &q);
    count_held(a, hold);
    if (hold != HOLD_NOT)
        return false;
    clear_asked(&a->asked);
    a->asked = (struct asked){.kind = kind, .then = standing_of(r)};
    snprintf(a->asked.slot, sizeof a->asked.slot, "%s", r->slot);
    a->asked.space = space_share(r->space);
    return true;
}

/* Cheap, before a document is written in vain. */
static enum hold held(struct adviser *a)
{
    enum hold hold = llm_hold(a->llm, LLM_ADVISER, a->style.max_tokens);
    count_held(a, hold);
    return hold;
}

/* The slot has no advice yet, or what was learnt since could change it; and it is its turn. */
static bool may_ask(struct adviser *a, const struct desk *d, const struct advice_request *r)
{
    struct standing now = standing_of(r);
    bool wanted = d->advised ? is_worth_asking_again(&d->then, &now) : is_worth_asking(r, &now);
    return wanted && held(a) == HOLD_NOT && turn_of_advice(&a->turns, now.decided);
}

void adviser_ask(struct adviser *a, const struct advice_request *r, struct advice *out)
{
    struct advice heuristic;
    advise_heuristic(r, &heuristic);
    adviser_poll(a);
    struct desk *d = a->llm && r->slot ? desk_of(a, r->slot, r->space) : NULL;
    if (d && may_ask(a, d, r))
        put_question(a, r, ASK_ADVICE, adviser_request_text(r, &heuristic),
                     adviser_reply_schema(r));
    if (d && d->advised) {
        free(d->unread);
        d->unread = NULL;
        advice_copy(out, &d->advice);
        advice_add_heuristic(out, &heuristic);
        return;
    }
    *out = heuristic;
    pthread_mutex_lock(&a->lock);
    a->count.heuristic++;
    pthread_mutex_unlock(&a->lock);
}

bool adviser_is_busy(struct adviser *a)
{
    adviser_poll(a);
    return a->llm && llm_hold(a->llm, LLM_ADVISER, 0) == HOLD_BUSY;
}

void adviser_prepare(struct adviser *a, const struct advice_request *r)
{
    adviser_poll(a);
    struct desk *d = a->llm && r->slot ? desk_of(a, r->slot, r->space) : NULL;
    if (!d || d->advised || a->turns.moves_wait || !may_ask(a, d, r))
        return;
    struct advice heuristic;
    advise_heuristic(r, &heuristic);
    put_question(a, r, ASK_ADVICE, adviser_request_text(r, &heuristic), adviser_reply_schema(r));
    advice_free(&heuristic);
}

int adviser_moves(struct adviser *a, const struct advice_request *r, int32_t node,
                  struct moves *out)
{
    adviser_poll(a);
    struct desk *d = a->llm && r->slot ? desk_of(a, r->slot, r->space) : NULL;
    for (int i = 0; d && i < d->n_moves; i++)
        if (d->moves[i].node == node) {
            *out = d->moves[i];
            d->moves[i].node = -1;
            return 1;
        }
    return 0;
}

bool adviser_want_moves(struct adviser *a, const struct advice_request *r, const struct lineage *l,
                        int n)
{
    struct standing now = standing_of(r);
    if (!a->llm || !r->slot || n == 0 || !is_worth_asking_moves(&now))
        return false;
    enum hold hold = held(a);
    turn_of_moves(&a->turns, hold == HOLD_BUSY);
    return hold == HOLD_NOT &&
           put_question(a, r, ASK_MOVES, adviser_moves_text(r, l, n < MOVES_MOST ? n : MOVES_MOST),
                        adviser_moves_schema(r));
}

/* ---- replies ------------------------------------------------------------------------------- */

/* Changes that are left out when they are played: legal, or not, one after the other. */
static int illegal_changes(const struct space *s, const struct moves *m)
{
    int32_t at = m->node;
    int illegal = 0;
    for (int i = 0; i < m->n; i++) {
        const struct template *t = space_template(s, at);
        int knob = template_knob(t, m->change[i].knob);
        struct point p;
        space_point(s, at, &p);
        if (knob >= 0)
            p.value[knob] = m->change[i].value;
        int32_t to = knob < 0 ? -1 : space_find(s, t, &p);
        illegal += to < 0;
        at = to < 0 ? at : to;
    }
    return illegal;
}

static void count_changes(struct adviser *a, const struct space *s, const struct moves *m, int n)
{
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < n; i++) {
        int illegal = illegal_changes(s, &m[i]);
        a->count.changes_kept += (uint64_t)(m[i].n - illegal);
        a->count.changes_dropped += (uint64_t)(m[i].dropped + illegal);
    }
    pthread_mutex_unlock(&a->lock);
}

static void keep_moves(struct desk *d, const struct moves *m, int n)
{
    for (int i = 0; i < n; i++) {
        d->moves[d->next_move] = m[i];
        d->next_move = (d->next_move + 1) % KEPT_MOVES;
        d->n_moves += d->n_moves < KEPT_MOVES;
    }
}

static void trace(struct adviser *a, const char *slot, const char *event, const char *text)
{
    if (a->store)
        store_trace(a->store, slot, NULL, event, a->model, "%s", text);
}

/* The desk takes the advice over. `then`: how far the search was that it was asked for. */
static void keep_advice(struct adviser *a, struct desk *d, struct advice *advice,
                        const struct standing *then)
{
    char text[200];
    snprintf(text, sizeof text, "%s (%d ids, %d hints, %d risks)", advice->label,
             advice->priorities, advice->hints, advice->risks);
    snprintf(advice->source, sizeof advice->source, "%s", a->model);
    advice_free(&d->advice);
    d->advice = *advice;
    d->advised = true;
    d->then = *then;
    trace(a, d->slot, "advice", text);
}

static void count_late(struct adviser *a, enum late late)
{
    pthread_mutex_lock(&a->lock);
    a->count.late[late]++;
    pthread_mutex_unlock(&a->lock);
}

/* A reply that was accepted for a search that has ended, read for the one of now. */
static void use_late(struct adviser *a, struct desk *d, const char *text)
{
    const struct advice_request about = {.slot = d->slot, .space = d->space};
    struct reply_terms terms = adviser_terms(&about);
    struct advice advice;
    enum reply_fault fault;
    struct err err;
    bool used = adviser_reply_parse(text, strlen(text), &terms, 1, &advice, &fault, &err) == 0;
    if (used) /* as if of a search of which nothing was known: it is asked about again soon */
        keep_advice(a, d, &advice, &(struct standing){0});
    count_late(a, used ? LATE_USED : LATE_DROPPED);
}

/* Reads the text onto the slot's desk. 0, or -1 with the fault. */
static int take_reply(struct adviser *a, const struct asked *q, const char *text,
                      enum reply_fault *fault, struct err *err)
{
    struct desk *d = find_desk(a, q->slot);
    bool wanted = d->space == q->space; /* the desk was there when the question was put */
    const struct advice_request about = {.slot = q->slot, .space = q->space};
    struct reply_terms terms = adviser_terms(&about);
    size_t n = strlen(text);
    if (q->kind == ASK_MOVES) {
        struct moves moves[MOVES_MOST];
        int found = adviser_moves_parse(text, n, &terms, moves, MOVES_MOST, fault, err);
        if (found > 0)
            count_changes(a, q->space, moves, found);
        if (found > 0 && wanted)
            keep_moves(d, moves, found);
        else if (found > 0)
            count_late(a, LATE_DROPPED); /* nodes of a tree that is no more */
        return found < 0 ? -1 : 0;
    }
    struct advice advice;
    if (adviser_reply_parse(text, n, &terms, 1, &advice, fault, err) != 0)
        return -1;
    if (wanted) {
        keep_advice(a, d, &advice, &q->then);
        free(d->unread);
        d->unread = xstrdup(text);
    } else {
        advice_free(&advice);
        use_late(a, d, text);
    }
    return 0;
}

static void count_outcome(struct adviser *a, enum call_fault call, bool accepted,
                          enum reply_fault fault, const struct llm_cost *cost)
{
    uint64_t *of = a->count.of_kind[a->asked.kind == ASK_MOVES];
    pthread_mutex_lock(&a->lock);
    of[accepted ? REPLY_ACCEPTED : call == CALL_OK ? REPLY_REJECTED : REPLY_FAILED]++;
    a->count.tokens_in += (uint64_t)cost->tokens_in;
    a->count.tokens_out += (uint64_t)cost->tokens_out;
    histogram_observe(&a->count.seconds, cost->seconds);
    if (accepted) {
        a->count.accepted++;
    } else if (call == CALL_OK) {
        a->count.rejected++;
        a->count.reply[fault]++;
    } else {
        a->count.failed++;
        a->count.call[call]++;
    }
    pthread_mutex_unlock(&a->lock);
}

void adviser_poll(struct adviser *a)
{
    char verdict[600] = "accepted";
    enum reply_fault fault = REPLY_FAULTS;
    struct err err = {{0}};
    const struct answer *answer;
    if (!a->llm || !llm_over(a->llm, LLM_ADVISER, &answer))
        return;
    const struct asked *q = &a->asked;
    enum call_fault call = answer->fault;
    bool accepted = call == CALL_OK && take_reply(a, q, answer->text, &fault, &err) == 0;
    if (call != CALL_OK)
        snprintf(verdict, sizeof verdict, "%s: %s", call_fault_name(call), answer->why);
    else if (!accepted)
        snprintf(verdict, sizeof verdict, "%s", err.msg);
    else if (err.msg[0])
        snprintf(verdict, sizeof verdict, "accepted; %s", err.msg);
    if (!accepted && call != CALL_STOPPED) {
        log_warn("adviser", "%s: %s", q->slot, verdict);
        trace(a, q->slot, call == CALL_OK ? "advice_rejected" : "advice_failed", verdict);
    }
    struct llm_cost cost;
    llm_settle(a->llm, LLM_ADVISER, accepted, verdict, &cost);
    count_outcome(a, call, accepted, fault, &cost);
    clear_asked(&a->asked);
}

bool adviser_wait(struct adviser *a, double seconds)
{
    bool idle = !a->llm || llm_wait(a->llm, seconds);
    adviser_poll(a);
    return idle;
}

void adviser_metrics(struct adviser *a, FILE *out)
{
    enum breaker breaker = a->llm ? llm_breaker(a->llm) : BREAKER_CLOSED;
    pthread_mutex_lock(&a->lock);
    adviser_counts_print(&a->count, breaker, out);
    pthread_mutex_unlock(&a->lock);
    llm_metrics(a->llm, out);
}

cJSON *adviser_json(struct adviser *a)
{
    enum breaker breaker = a->llm ? llm_breaker(a->llm) : BREAKER_CLOSED;
    pthread_mutex_lock(&a->lock);
    cJSON *o = adviser_counts_json(&a->count, breaker);
    pthread_mutex_unlock(&a->lock);
    cJSON_AddItemToObject(o, "tasks", llm_json(a->llm));
    cJSON_AddStringToObject(o, "source", a->llm ? a->model : "heuristic");
    return o;
}
