/* SPDX-License-Identifier: Apache-2.0 */
/* sim_adviser.c - see sim_adviser.h. */
#include "tune/sim_adviser.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/adviser/adviser_replay.h"
#include "specializer/adviser/adviser_request.h"
#include "specializer/adviser/adviser_turns.h"
#include "specializer/candidate/hash.h"

enum { NAMED = 4, TENTH = 10 };

static const struct {
    const char *name;
    double seconds;
} kinds[] = {
#define C(id, name, seconds, help) {name, seconds},
    SIM_LIST(C)
#undef C
};

struct sim_adviser {
    enum sim_adviser_kind kind;
    const struct table *table;
    uint64_t random;
    struct adviser_replay *replay; /* SIM_REPLAY: a recording that is open, or NULL */
    struct consulted llm;
    bool enough;
    struct sim_adviser_use use;
    double now_s;
    /* The question under way, and the last reply that was accepted. */
    char *reply;
    double due_s;
    bool asked, advised;
    struct advice advice;
    /* Moves: nodes asked about, when the reply comes, and (recordings) what it says. They go over
     * the same line as advice. */
    struct turns turns;
    struct standing asked_then, then; /* of the question under way, and of the advice */
    struct mover mover;
    const struct advice_request *request;
    struct moves moves[MOVES_MOST];
    int nodes;
    double moves_due_s;
};

const char *sim_adviser_name(enum sim_adviser_kind k)
{
    return kinds[k].name;
}

/* ---- what stand-ins say -------------------------------------------------------------------- */

static bool knows(const struct sim_adviser *c)
{
    return c->kind == SIM_RIGHT || c->kind == SIM_SLOW || c->kind == SIM_FAIR;
}

struct by_speed {
    int32_t id;
    double speed;
};

static int fastest_first(const void *a, const void *b)
{
    const struct by_speed *x = a, *y = b;
    if (x->speed != y->speed)
        return x->speed < y->speed ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int slowest_first(const void *a, const void *b)
{
    return fastest_first(b, a);
}

/* The measured points, fastest first; caller frees. */
static struct by_speed *ranking(const struct table *t, int *n)
{
    int size = space_size(t->space);
    struct by_speed *r = xcalloc((size_t)size + 1, sizeof *r);
    *n = 0;
    for (int32_t i = 0; i < size; i++)
        if (measured_speed(&t->row[i]) > 0)
            r[(*n)++] = (struct by_speed){i, measured_speed(&t->row[i])};
    qsort(r, (size_t)*n, sizeof *r, fastest_first);
    return r;
}

/* From how many of the ranking's front (or back) the names are drawn. */
static int drawn_from(const struct sim_adviser *c, const struct by_speed *r, int n)
{
    int within = n / TENTH > NAMED ? n / TENTH : n;
    if (c->kind == SIM_ANY)
        return n;
    if (c->kind == SIM_RIGHT || c->kind == SIM_SLOW)
        for (within = 1; within < n && r[within].speed >= 0.95 * r[0].speed;)
            within++;
    return within;
}

/* Moves up to NAMED of the front (or back) that `r` is drawn from to its beginning; how many. */
static int draw_named(struct sim_adviser *c, struct by_speed *r, int n)
{
    int within = drawn_from(c, r, n), named = 0;
    if (!knows(c)) /* the slowest first */
        for (int i = 0; i < n / 2; i++) {
            struct by_speed swapped = r[i];
            r[i] = r[n - 1 - i];
            r[n - 1 - i] = swapped;
        }
    for (; named < NAMED && named < within; named++) { /* the i-th of a shuffle */
        int at = named + random_below(&c->random, within - named);
        struct by_speed taken = r[at];
        r[at] = r[named];
        r[named] = taken;
    }
    return named;
}

/* Of the slower half, untried: what the cost model thinks best of comes first; how many. */
static int draw_sly(const struct advice_request *q, struct by_speed *r, int n)
{
    int slow = 0;
    for (int i = n / 2; i < n; i++)
        if (q->trial[r[i].id] == TRIAL_NONE)
            r[slow++] = (struct by_speed){r[i].id, -space_predicted(q->space, r[i].id)};
    qsort(r, (size_t)slow, sizeof *r, fastest_first);
    return slow < NAMED ? slow : NAMED;
}

/* Untried points that are predicted alike, the best of them all, in an order drawn by lot: what a
 * model that breaks ties without knowing anything is worth. How many are named. */
static int draw_ties(struct sim_adviser *c, const struct advice_request *q, struct by_speed *r,
                     int n)
{
    double least = INFINITY;
    int found = 0, named = 0;
    for (int32_t i = 0; i < space_size(q->space); i++)
        if (q->trial[i] == TRIAL_NONE)
            least = fmin(least, space_predicted(q->space, i));
    for (int32_t i = 0; i < space_size(q->space) && found < n; i++)
        if (q->trial[i] == TRIAL_NONE && space_predicted(q->space, i) <= 1.002 * least)
            r[found++] = (struct by_speed){i, 0};
    for (; named < NAMED && named < found; named++) {
        int at = named + random_below(&c->random, found - named);
        struct by_speed taken = r[at];
        r[at] = r[named];
        r[named] = taken;
    }
    return named;
}

/* "template":{"KNOB":[best, second],...}: the values of each knob by the fastest points of the
 * fastest template that have them. */
static char *draw_hints(const struct sim_adviser *c, const struct by_speed *r, int n)
{
    if (n == 0)
        return xstrdup("");
    const struct space *s = c->table->space;
    const struct template *t = space_template(s, r[0].id);
    char *text = xasprintf("\"%s\":{", t->id);
    for (int k = 0; k < t->knobs; k++) {
        struct point first, p;
        int32_t second = 0;
        bool two = false;
        space_point(s, r[0].id, &first);
        for (int i = 1; i < n && !two; i++) {
            space_point(s, r[i].id, &p);
            two = space_template(s, r[i].id) == t && p.value[k] != first.value[k];
            second = p.value[k];
        }
        char *longer =
            two ? xasprintf("%s%s\"%s\":[%d,%d]", text, k ? "," : "", t->knob[k].name,
                            first.value[k], second)
                : xasprintf("%s%s\"%s\":[%d]", text, k ? "," : "", t->knob[k].name, first.value[k]);
        free(text);
        text = longer;
    }
    char *closed = xasprintf("%s}", text);
    free(text);
    return closed;
}

/* A reply that names points: up to NAMED, or all; or hints. */
static char *stand_in_reply(struct sim_adviser *c, const struct advice_request *q)
{
    int n, named;
    struct by_speed *r = ranking(c->table, &n);
    char *hints = c->kind == SIM_HINTS ? draw_hints(c, r, n) : xstrdup("");
    if (c->kind == SIM_HINTS)
        named = 0;
    else if (c->kind == SIM_SLY)
        named = draw_sly(q, r, n);
    else if (c->kind == SIM_TIES)
        named = draw_ties(c, q, r, n);
    else
        named = draw_named(c, r, n);
    if (c->kind == SIM_INVERTED) {
        qsort(r, (size_t)n, sizeof *r, slowest_first);
        named = n;
    }
    char *ids = xstrdup("");
    for (int i = 0; i < named; i++) {
        char id[ID_TEXT];
        adviser_id_text(c->table->space, r[i].id, id);
        char *longer = xasprintf("%s%s\"%s\"", ids, i ? "," : "", id);
        free(ids);
        ids = longer;
    }
    char *text = xasprintf("{\"version\":1,\"regions\":[{\"region\":\"%s\",\"label\":\"stand-in\","
                           "\"priority\":[%s],\"hints\":{%s},\"risks\":[]}]}",
                           c->table->slot, ids, hints);
    free(ids);
    free(hints);
    free(r);
    return text;
}

/* May it be asked one more question? */
static bool has_questions(const struct sim_adviser *c)
{
    int asked = c->use.asked[SIM_ASKS_ADVICE] + c->use.asked[SIM_ASKS_MOVES];
    return c->kind != SIM_REPLAY ||
           (!c->enough && (c->llm.questions == 0 || asked < c->llm.questions));
}

/* A recorded reply: in this very state, or else the next of its region and kind. */
static void look_up(struct sim_adviser *c, const char *document, struct answer *out)
{
    if (adviser_replay_find(c->replay, document, out))
        return;
    adviser_replay_next(c->replay, document, out);
    c->use.in_order += out->fault == CALL_OK;
}

/* A language model's reply, recorded or not; its text, which the caller frees, and when it is
 * there. */
static char *consult_model(struct sim_adviser *c, enum sim_question kind, const char *document,
                           cJSON *schema, double *due_s)
{
    struct answer a = {.fault = CALL_NO_RECORD};
    char *form = cJSON_PrintUnformatted(schema);
    const bool moves = kind == SIM_ASKS_MOVES;
    cJSON_Delete(schema);
    if (document && c->llm.live)
        live_ask(c->llm.live, moves ? adviser_moves_task : adviser_advice_task, document, form,
                 moves ? "kernel_moves" : "kernel_advice", &a);
    else if (document)
        look_up(c, document, &a);
    free(form);
    c->use.asked[kind] += a.fault != CALL_NO_RECORD;
    c->use.tokens_in += a.tokens_in;
    c->use.tokens_out += a.tokens_out;
    c->use.seconds += a.seconds;
    *due_s = a.fault == CALL_NO_RECORD ? INFINITY : c->now_s + (c->llm.at_once ? 0 : a.seconds);
    return a.text;
}

static void put_question(struct sim_adviser *c, const struct advice_request *r,
                         const struct advice *heuristic)
{
    c->asked = true;
    c->due_s = c->now_s + kinds[c->kind].seconds;
    if (c->kind == SIM_GARBAGE) {
        c->reply = xstrdup("Sure! I would try AVX-512 with larger tiles first.");
    } else if (c->kind != SIM_REPLAY) {
        c->reply = stand_in_reply(c, r);
    } else {
        char *document = adviser_request_text(r, heuristic);
        c->reply = consult_model(c, SIM_ASKS_ADVICE, document, adviser_reply_schema(r), &c->due_s);
        free(document);
    }
}

/* The reply, if it is there by now: rejected or accepted, as in adviser.c. */
static void take_reply(struct sim_adviser *c, const struct advice_request *r)
{
    struct reply_terms terms = adviser_terms(r);
    struct advice advice;
    enum reply_fault fault;
    struct err err;
    if (!c->asked || c->due_s > c->now_s)
        return;
    c->asked = false;
    if (c->reply &&
        adviser_reply_parse(c->reply, strlen(c->reply), &terms, 1, &advice, &fault, &err) == 0) {
        advice_free(&c->advice);
        c->advice = advice;
        c->advised = true;
        c->then = c->asked_then;
    } else {
        c->use.rejected[SIM_ASKS_ADVICE] += c->reply != NULL;
    }
    free(c->reply);
    c->reply = NULL;
}

/* No question for moves is under way either: there is one line for both. */
static bool line_is_free(const struct sim_adviser *c)
{
    return !c->asked && c->moves_due_s <= c->now_s;
}

/* As in adviser.c. */
static bool may_ask(struct sim_adviser *c, const struct advice_request *r)
{
    struct standing now = standing_of(r);
    bool wanted = c->advised ? is_worth_asking_again(&c->then, &now) : is_worth_asking(r, &now);
    if (!wanted || !has_questions(c) || !line_is_free(c) || !turn_of_advice(&c->turns, now.decided))
        return false;
    c->asked_then = now;
    return true;
}

void sim_adviser_ask(struct sim_adviser *c, const struct advice_request *r, double now_s,
                     struct advice *out)
{
    struct advice heuristic;
    c->now_s = now_s;
    c->request = r;
    advise_heuristic(r, &heuristic);
    if (c->kind > SIM_CHANCE) {
        take_reply(c, r);
        if (may_ask(c, r)) {
            put_question(c, r, &heuristic);
            take_reply(c, r); /* it may be there at once */
        }
    }
    if (!c->advised) {
        *out = heuristic;
        return;
    }
    advice_copy(out, &c->advice);
    advice_add_heuristic(out, &heuristic);
}

/* ---- moves --------------------------------------------------------------------------------- */

/* From `node` to the fastest (or slowest) point of its template, knob by knob. */
static void stand_in_moves(const struct sim_adviser *c, int32_t node, struct moves *out)
{
    int n, target = -1;
    struct by_speed *r = ranking(c->table, &n);
    const struct space *s = c->table->space;
    for (int i = 0; i < n; i++) {
        int32_t id = r[knows(c) ? i : n - 1 - i].id;
        if (target < 0 && space_template(s, id) == space_template(s, node))
            target = id;
    }
    free(r);
    *out = (struct moves){.node = node};
    if (target < 0)
        return;
    const struct template *t = space_template(s, node);
    struct point from, to;
    space_point(s, node, &from);
    space_point(s, target, &to);
    for (int k = 0; k < t->knobs && out->n < CHANGES_MOST; k++)
        if (from.value[k] != to.value[k]) {
            struct change *change = &out->change[out->n++];
            snprintf(change->knob, sizeof change->knob, "%s", t->knob[k].name);
            change->value = to.value[k];
        }
}

/* A node with no more than `most` points of its lineage. */
static struct lineage shortened(struct lineage l, int most)
{
    for (int i = most; most > 0 && i < LINEAGE; i++)
        l.id[i] = -1;
    return l;
}

static void want_recorded(struct sim_adviser *c, const struct lineage *l, int n)
{
    enum reply_fault fault;
    struct err err;
    struct reply_terms terms = adviser_terms(c->request);
    struct lineage shown[MOVES_MOST];
    for (int i = 0; i < n && i < MOVES_MOST; i++)
        shown[i] = shortened(l[i], c->llm.history);
    char *document = adviser_moves_text(c->request, shown, n < MOVES_MOST ? n : MOVES_MOST);
    char *text = consult_model(c, SIM_ASKS_MOVES, document, adviser_moves_schema(c->request),
                               &c->moves_due_s);
    free(document);
    if (!isfinite(c->moves_due_s))
        c->moves_due_s = c->now_s; /* nothing more is recorded: advice has the line */
    int found =
        text ? adviser_moves_parse(text, strlen(text), &terms, c->moves, MOVES_MOST, &fault, &err)
             : 0;
    c->use.rejected[SIM_ASKS_MOVES] += found < 0;
    c->nodes = found > 0 ? found : 0;
    free(text);
}

static bool want(void *ctx, const struct lineage *l, int n)
{
    struct sim_adviser *c = ctx;
    struct standing now = standing_of(c->request);
    bool taken = !line_is_free(c);
    if (!has_questions(c) || !is_worth_asking_moves(&now))
        return false;
    turn_of_moves(&c->turns, taken);
    if (taken)
        return false;
    if (c->kind == SIM_REPLAY) {
        want_recorded(c, l, n);
        return true;
    }
    c->moves_due_s = c->now_s + kinds[c->kind].seconds;
    for (c->nodes = 0; c->nodes < n && c->nodes < MOVES_MOST; c->nodes++)
        stand_in_moves(c, l[c->nodes].id[0], &c->moves[c->nodes]);
    return true;
}

static int moves(void *ctx, int32_t node, struct moves *out)
{
    struct sim_adviser *c = ctx;
    for (int i = 0; i < c->nodes && c->moves_due_s <= c->now_s; i++)
        if (c->moves[i].node == node) {
            *out = c->moves[i];
            c->moves[i].node = -1;
            return 1;
        }
    return 0;
}

const struct mover *sim_adviser_mover(struct sim_adviser *c)
{
    static const bool silent[SIM_KINDS] = {
        [SIM_HEURISTIC] = true, [SIM_CHANCE] = true,  [SIM_HINTS] = true,
        [SIM_TIES] = true,      [SIM_GARBAGE] = true, [SIM_DEAD] = true};
    return silent[c->kind] ? NULL : &c->mover;
}

/* ---- construction -------------------------------------------------------------------------- */

struct sim_adviser *sim_adviser_open(enum sim_adviser_kind k, const struct table *t, uint64_t seed,
                                     const struct consulted *llm, struct err *err)
{
    struct adviser_replay *replay = NULL;
    if (k == SIM_REPLAY && !llm->live &&
        (replay = adviser_replay_open(llm->recording, err)) == NULL)
        return NULL;
    struct sim_adviser *c = xcalloc(1, sizeof *c);
    c->kind = k;
    c->table = t;
    c->random = seed;
    c->replay = replay;
    c->llm = *llm;
    c->mover = (struct mover){.ctx = c, .moves = moves, .want = want};
    return c;
}

void sim_adviser_enough(struct sim_adviser *c)
{
    c->enough = true;
}

const struct sim_adviser_use *sim_adviser_use(const struct sim_adviser *c)
{
    return &c->use;
}

void sim_adviser_close(struct sim_adviser *c)
{
    if (c->replay)
        adviser_replay_close(c->replay);
    advice_free(&c->advice);
    free(c->reply);
    free(c);
}
