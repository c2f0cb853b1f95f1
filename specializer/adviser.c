/* adviser.c - asking a language model without ever waiting for it.
 *
 * The specializer thread writes a question and goes on with the heuristic's answer. A thread of
 * ours carries the question to the endpoint and waits there; it sees text only. When the reply is
 * in, the specializer thread reads it against the space the question was about, counts it, stores
 * it, and keeps what was accepted on that slot's desk, where the next round finds it. A slot is
 * asked about again once enough new results have come in to change an expert's mind.
 *
 * Held by the lock: the one job and everything that metrics read. Desks are the specializer
 * thread's alone. A job holds its space open, because the search it was for may end meanwhile.
 */
#include "specializer/adviser.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/adviser_counts.h"
#include "specializer/adviser_http.h"
#include "specializer/adviser_replay.h"
#include "specializer/adviser_request.h"
#include "specializer/store.h"
#include "specializer/strategy.h"

/* A slot is asked about again after this many more points were decided. */
enum { NEWS = 12, KEPT_MOVES = 64, BYTES_A_TOKEN = 3 };

enum kind { ASK_ADVICE, ASK_MOVES };
enum job_state { JOB_NONE, JOB_WAITING, JOB_DONE };

struct job {
    enum job_state state; /* lock; the rest belongs to the asker unless WAITING */
    enum kind kind;
    char slot[40];
    struct space *space;
    char *document, *schema;
    int decided; /* points of the space when it was asked */
    struct answer answer;
};

/* What was said about one slot. */
struct desk {
    char slot[40];
    struct space *space; /* the ids are of this one */
    bool advised;
    struct advice advice;
    int decided; /* points when it was asked for */
    struct moves moves[KEPT_MOVES];
    int n_moves, next_move;
};

struct adviser {
    struct store *store;
    struct adviser_http *http;
    struct adviser_replay *replay;
    char model[32];
    int32_t max_tokens;
    double timeout;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the job's state, or stop, changed */
    bool stop;           /* lock */
    struct job job;
    struct limits limits;        /* lock */
    struct adviser_counts count; /* lock */

    struct desk *desk;
    int desks;
};

/* ---- the thread that waits --------------------------------------------------------------------
 */

/* A recorded reply comes as late as it came then, or too late. */
static void wait_as_recorded(struct adviser *a, struct answer *out)
{
    struct timespec until;
    double seconds = out->seconds < a->timeout ? out->seconds : a->timeout;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&a->lock);
    while (!a->stop && pthread_cond_timedwait(&a->wake, &a->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&a->lock);
    if (out->seconds > a->timeout) {
        free(out->text);
        *out = (struct answer){.fault = CALL_TIMEOUT, .calls = 1, .seconds = a->timeout};
        snprintf(out->why, sizeof out->why, "recorded as slower than adviser.timeout");
    }
}

static void carry(struct adviser *a, const struct job *j, struct answer *out)
{
    struct call call = {
        .task = j->kind == ASK_ADVICE ? adviser_advice_task : adviser_moves_task,
        .document = j->document,
        .schema = j->schema,
        .name = j->kind == ASK_ADVICE ? "kernel_advice" : "kernel_moves",
    };
    if (a->http) {
        adviser_http_post(a->http, &call, out);
        return;
    }
    adviser_replay_next(a->replay, j->document, out);
    if (out->fault == CALL_OK)
        wait_as_recorded(a, out);
}

static void *adviser_thread(void *ctx)
{
    struct adviser *a = ctx;
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (a->job.state != JOB_WAITING) {
            pthread_cond_wait(&a->wake, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        carry(a, &a->job, &a->job.answer);
        pthread_mutex_lock(&a->lock);
        a->job.state = JOB_DONE;
        pthread_cond_broadcast(&a->wake);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------
 */

static bool open_source(struct adviser *a, const struct config *c, struct err *err)
{
    if (strncmp(c->adviser_url, "replay:", 7) == 0)
        a->replay = adviser_replay_open(c->adviser_url + 7, err);
    else
        a->http = adviser_http_open(c, err);
    return a->replay || a->http;
}

struct adviser *adviser_open(const struct config *c, struct store *store)
{
    struct adviser *a = xcalloc(1, sizeof *a);
    struct err err;
    a->store = store;
    a->max_tokens = (int32_t)c->adviser_max_tokens;
    a->timeout = c->adviser_timeout;
    snprintf(a->model, sizeof a->model, "%s", c->adviser_model[0] ? c->adviser_model : "llm");
    limits_init(&a->limits, c->adviser_calls_per_hour, c->adviser_tokens_per_hour);
    histogram_init(&a->count.seconds, bounds_latency, bounds_latency_n);
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_t wake;
    pthread_condattr_init(&wake);
    pthread_condattr_setclock(&wake, CLOCK_MONOTONIC);
    pthread_cond_init(&a->wake, &wake);
    pthread_condattr_destroy(&wake);
    if (!c->adviser_url[0])
        return a;
    if (!open_source(a, c, &err))
        log_error("adviser", "%s: the heuristic advises", err.msg);
    else if (pthread_create(&a->thread, NULL, adviser_thread, a) != 0)
        log_error("adviser", "no thread: the heuristic advises");
    else
        a->has_thread = true;
    return a;
}

static void clear_job(struct job *j)
{
    free(j->document);
    free(j->schema);
    free(j->answer.text);
    space_close(j->space);
    *j = (struct job){0};
}

static void clear_desk(struct desk *d)
{
    advice_free(&d->advice);
    space_close(d->space);
    *d = (struct desk){{0}};
}

void adviser_close(struct adviser *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_broadcast(&a->wake);
    pthread_mutex_unlock(&a->lock);
    if (a->http)
        adviser_http_stop(a->http);
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    adviser_poll(a); /* an exchange that is over is stored, whoever reads it */
    clear_job(&a->job);
    for (int i = 0; i < a->desks; i++)
        clear_desk(&a->desk[i]);
    free(a->desk);
    adviser_http_close(a->http);
    adviser_replay_close(a->replay);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
    free(a);
}

bool adviser_is_remote(const struct adviser *a)
{
    return a->has_thread;
}

/* ---- desks ------------------------------------------------------------------------------------
 */

static struct desk *find_desk(struct adviser *a, const char *slot)
{
    for (int i = 0; i < a->desks; i++)
        if (strcmp(a->desk[i].slot, slot) == 0)
            return &a->desk[i];
    return NULL;
}

/* The slot's desk, cleared if its search was begun anew. */
static struct desk *desk_of(struct adviser *a, const char *slot, struct space *space)
{
    struct desk *d = find_desk(a, slot);
    if (!d) {
        a->desk = xrealloc(a->desk, (size_t)(a->desks + 1) * sizeof *a->desk);
        d = &a->desk[a->desks++];
        *d = (struct desk){{0}};
    }
    if (d->space != space) {
        clear_desk(d);
        snprintf(d->slot, sizeof d->slot, "%s", slot);
        d->space = space_share(space);
    }
    return d;
}

static int decided(const struct advice_request *r)
{
    int n = 0;
    for (int32_t i = 0; r->trial && i < space_size(r->space); i++)
        n += r->trial[i] == TRIAL_MEASURED || r->trial[i] == TRIAL_REFUSED;
    return n;
}

/* ---- questions --------------------------------------------------------------------------------
 */

/* Hands a question over unless there is a reason not to. `document` and `schema` are taken over. */
static void put_question(struct adviser *a, const struct advice_request *r, enum kind kind,
                         char *document, cJSON *schema)
{
    int64_t tokens = document ? (int64_t)strlen(document) / BYTES_A_TOKEN + a->max_tokens : 0;
    pthread_mutex_lock(&a->lock);
    enum hold hold = !document                  ? HOLD_TOO_LONG
                     : a->job.state != JOB_NONE ? HOLD_BUSY
                                                : limits_ask(&a->limits, clock_ns(), tokens);
    if (hold != HOLD_NOT) {
        a->count.held[hold]++;
        free(document);
    } else {
        struct job *j = &a->job;
        *j = (struct job){.state = JOB_WAITING, .kind = kind, .document = document};
        snprintf(j->slot, sizeof j->slot, "%s", r->slot);
        j->space = space_share(r->space);
        j->schema = cJSON_PrintUnformatted(schema);
        j->decided = decided(r);
        pthread_cond_broadcast(&a->wake);
    }
    pthread_mutex_unlock(&a->lock);
    cJSON_Delete(schema);
}

/* Cheap, before a document is written in vain. */
static bool is_held(struct adviser *a)
{
    pthread_mutex_lock(&a->lock);
    enum hold hold =
        a->job.state != JOB_NONE ? HOLD_BUSY : limits_ask(&a->limits, clock_ns(), a->max_tokens);
    if (hold != HOLD_NOT)
        a->count.held[hold]++;
    pthread_mutex_unlock(&a->lock);
    return hold != HOLD_NOT;
}

void adviser_ask(struct adviser *a, const struct advice_request *r, struct advice *out)
{
    struct advice heuristic;
    advise_heuristic(r, &heuristic);
    adviser_poll(a);
    struct desk *d = a->has_thread && r->slot ? desk_of(a, r->slot, r->space) : NULL;
    if (d && (!d->advised || decided(r) >= d->decided + NEWS) && !is_held(a))
        put_question(a, r, ASK_ADVICE, adviser_request_text(r, &heuristic),
                     adviser_reply_schema(r));
    if (d && d->advised) {
        advice_copy(out, &d->advice);
        advice_add_heuristic(out, &heuristic);
        return;
    }
    *out = heuristic;
    pthread_mutex_lock(&a->lock);
    a->count.heuristic++;
    pthread_mutex_unlock(&a->lock);
}

int adviser_moves(struct adviser *a, const struct advice_request *r, int32_t node,
                  struct moves *out)
{
    adviser_poll(a);
    struct desk *d = a->has_thread && r->slot ? desk_of(a, r->slot, r->space) : NULL;
    for (int i = 0; d && i < d->n_moves; i++)
        if (d->moves[i].node == node) {
            *out = d->moves[i];
            d->moves[i].node = -1;
            return 1;
        }
    return 0;
}

void adviser_want_moves(struct adviser *a, const struct advice_request *r, const struct lineage *l,
                        int n)
{
    if (!a->has_thread || !r->slot || n == 0 || is_held(a))
        return;
    put_question(a, r, ASK_MOVES, adviser_moves_text(r, l, n < MOVES_MOST ? n : MOVES_MOST),
                 adviser_moves_schema(r));
}

/* ---- replies ----------------------------------------------------------------------------------
 */

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

/* The desk takes the advice over. */
static void keep_advice(struct adviser *a, struct desk *d, const struct job *j,
                        struct advice *advice)
{
    char text[200];
    snprintf(text, sizeof text, "%s (%d ids, %d hints, %d risks)", advice->label,
             advice->priorities, advice->hints, advice->risks);
    snprintf(advice->source, sizeof advice->source, "%s", a->model);
    advice_free(&d->advice);
    d->advice = *advice;
    d->advised = true;
    d->decided = j->decided;
    trace(a, j->slot, "advice", text);
}

/* Reads the text onto the slot's desk, unless the search it was for has ended meanwhile. 0, or -1
 * with the fault. */
static int take_reply(struct adviser *a, const struct job *j, enum reply_fault *fault,
                      struct err *err)
{
    struct desk *d = find_desk(a, j->slot);
    bool wanted = d && d->space == j->space;
    const struct advice_request about = {.slot = j->slot, .space = j->space};
    struct reply_terms terms = adviser_terms(&about);
    size_t n = strlen(j->answer.text);
    if (j->kind == ASK_MOVES) {
        struct moves moves[MOVES_MOST];
        int found = adviser_moves_parse(j->answer.text, n, &terms, moves, MOVES_MOST, fault, err);
        if (found > 0 && wanted)
            keep_moves(d, moves, found);
        return found < 0 ? -1 : 0;
    }
    struct advice advice;
    if (adviser_reply_parse(j->answer.text, n, &terms, 1, &advice, fault, err) != 0)
        return -1;
    if (wanted)
        keep_advice(a, d, j, &advice);
    else
        advice_free(&advice);
    return 0;
}

/* Counts, and what the budgets and the breaker make of it. Lock held. */
static void settle(struct adviser *a, const struct job *j, bool accepted, enum reply_fault fault)
{
    const struct answer *w = &j->answer;
    int64_t now = clock_ns(), asked = (int64_t)strlen(j->document) / BYTES_A_TOKEN;
    int64_t said = w->text ? (int64_t)strlen(w->text) / BYTES_A_TOKEN : 0;
    int64_t tokens_in = w->tokens_in > 0 ? w->tokens_in : w->calls > 0 ? asked : 0;
    int64_t tokens_out = w->tokens_out > 0 ? w->tokens_out : said;
    a->count.tokens_in += (uint64_t)tokens_in;
    a->count.tokens_out += (uint64_t)tokens_out;
    limits_spend(&a->limits, now, w->calls, tokens_in + tokens_out);
    histogram_observe(&a->count.seconds, w->seconds);
    if (accepted) {
        a->count.accepted++;
        limits_good(&a->limits);
        return;
    }
    if (w->fault == CALL_OK) {
        a->count.rejected++;
        a->count.reply[fault]++;
    } else {
        a->count.failed++;
        a->count.call[w->fault]++;
    }
    double wish_s = w->retry_after_s;
    if (w->fault == CALL_RATE && wish_s < BREAKER_FIRST_S)
        wish_s = BREAKER_FIRST_S;
    limits_bad(&a->limits, now, wish_s);
}

static void keep_exchange(struct adviser *a, const struct job *j, const char *verdict)
{
    struct err err;
    struct exchange x = {.request = j->document,
                         .reply = j->answer.text ? j->answer.text : "",
                         .verdict = verdict,
                         .seconds = j->answer.seconds,
                         .tokens_in = j->answer.tokens_in,
                         .tokens_out = j->answer.tokens_out};
    if (a->http && a->store && store_exchange(a->store, &x, &err) != 0)
        log_warn("adviser", "exchange not stored: %s", err.msg);
}

void adviser_poll(struct adviser *a)
{
    char verdict[600] = "accepted";
    enum reply_fault fault = REPLY_FAULTS;
    struct err err = {{0}};
    pthread_mutex_lock(&a->lock);
    bool done = a->job.state == JOB_DONE;
    pthread_mutex_unlock(&a->lock);
    if (!done)
        return;
    struct job *j = &a->job;
    bool accepted = j->answer.fault == CALL_OK && take_reply(a, j, &fault, &err) == 0;
    if (j->answer.fault != CALL_OK)
        snprintf(verdict, sizeof verdict, "%s: %s", call_fault_name(j->answer.fault),
                 j->answer.why);
    else if (!accepted)
        snprintf(verdict, sizeof verdict, "%s", err.msg);
    keep_exchange(a, j, verdict);
    if (!accepted && j->answer.fault != CALL_STOPPED) {
        log_warn("adviser", "%s: %s", j->slot, verdict);
        trace(a, j->slot, j->answer.fault == CALL_OK ? "advice_rejected" : "advice_failed",
              verdict);
    }
    pthread_mutex_lock(&a->lock);
    settle(a, j, accepted, fault);
    clear_job(j);
    pthread_mutex_unlock(&a->lock);
}

bool adviser_wait(struct adviser *a, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&a->lock);
    int late = 0;
    while (a->job.state == JOB_WAITING && !late)
        late = pthread_cond_timedwait(&a->wake, &a->lock, &until);
    bool idle = a->job.state != JOB_WAITING;
    pthread_mutex_unlock(&a->lock);
    adviser_poll(a);
    return idle;
}

void adviser_metrics(struct adviser *a, FILE *out)
{
    pthread_mutex_lock(&a->lock);
    adviser_counts_print(&a->count, limits_breaker(&a->limits, clock_ns()), out);
    pthread_mutex_unlock(&a->lock);
}

cJSON *adviser_json(struct adviser *a)
{
    pthread_mutex_lock(&a->lock);
    cJSON *o = adviser_counts_json(&a->count, limits_breaker(&a->limits, clock_ns()));
    pthread_mutex_unlock(&a->lock);
    cJSON_AddStringToObject(o, "source", a->has_thread ? a->model : "heuristic");
    return o;
}
