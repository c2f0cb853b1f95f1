/* SPDX-License-Identifier: Apache-2.0 */
/* llm.c - see llm.h.
 *
 * The thread sees text only; what a reply means is found out by whoever asked, on their own thread,
 * when they look. The one job of a line passes from asker to thread and back by its state, under
 * the lock; in between it belongs to one side alone. Lines have nothing in common but the limits,
 * and a recording, which is read under the lock.
 */
#include "specializer/adviser/llm.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/key_file.h"
#include "config/log.h"
#include "config/metrics.h"
#include "engine/crash.h"
#include "specializer/adviser/adviser_replay.h"
#include "specializer/store/store.h"

enum { BYTES_A_TOKEN = 3, CLOSE_S = 2 };
enum job_state { JOB_NONE, JOB_WAITING, JOB_DONE };

struct line {
    struct llm *of;
    struct adviser_http *http; /* NULL: the recording answers */
    pthread_t thread;
    bool has_thread;
    enum job_state state; /* lock; question and answer belong to the asker unless WAITING */
    int64_t reserved;     /* tokens, while a question is under way */
    struct llm_question question;
    struct answer answer;
};

struct llm {
    struct store *store;
    struct adviser_replay *replay;
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* a job's state, or stop, changed */
    bool stop;            /* lock */
    struct limits limits; /* lock; of all lines, and the breaker */
    struct limits
        kernels; /* lock; what the writer of kernels may take of that: advice keeps the rest */
    struct spent {
        uint64_t good, bad; /* for the breaker */
        int64_t tokens_in, tokens_out;
        double cost;
    } spent[LLM_TASKS];         /* lock */
    double price_in, price_out; /* of a token */
    struct line line[LLM_USERS];
};

/* ---- the thread that waits ----------------------------------------------------------------- */

/* A recorded reply comes as late as it came then, or too late. */
static void wait_as_recorded(struct llm *l, double timeout, struct answer *out)
{
    struct timespec until = clock_in(out->seconds < timeout ? out->seconds : timeout);
    pthread_mutex_lock(&l->lock);
    while (!l->stop && pthread_cond_timedwait(&l->wake, &l->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&l->lock);
    if (out->seconds > timeout) {
        free(out->text);
        *out = (struct answer){.fault = CALL_TIMEOUT, .calls = 1, .seconds = timeout};
        snprintf(out->why, sizeof out->why, "recorded as slower than the time limit");
    }
}

static void carry(struct line *line, const struct llm_question *q, struct answer *out)
{
    struct llm *l = line->of;
    struct call call = {.task = q->task,
                        .document = q->document,
                        .schema = q->schema,
                        .name = q->name,
                        .style = q->style};
    if (line->http) {
        adviser_http_post(line->http, &call, out);
        return;
    }
    pthread_mutex_lock(&l->lock);
    adviser_replay_next(l->replay, q->record ? q->record : q->document, out);
    pthread_mutex_unlock(&l->lock);
    if (out->fault == CALL_OK)
        wait_as_recorded(l, q->style.timeout, out);
}

static void *llm_thread(void *ctx)
{
    struct line *line = ctx;
    struct llm *l = line->of;
    crash_stack();
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (line->state != JOB_WAITING) {
            pthread_cond_wait(&l->wake, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        carry(line, &line->question, &line->answer);
        pthread_mutex_lock(&l->lock);
        line->state = JOB_DONE;
        pthread_cond_broadcast(&l->wake);
    }
    pthread_mutex_unlock(&l->lock);
    crash_stack_end();
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------- */

static void clear_question(struct llm_question *q)
{
    free(q->task);
    free(q->document);
    free(q->schema);
    free(q->record);
    *q = (struct llm_question){0};
}

/* Opens the line of one user; false with a message. */
static bool open_line(struct llm *l, enum llm_user user, const struct config *c, struct err *err)
{
    struct line *line = &l->line[user];
    line->of = l;
    if (!l->replay && (line->http = adviser_http_open(c, err)) == NULL)
        return false;
    line->has_thread = pthread_create(&line->thread, NULL, llm_thread, line) == 0;
    if (!line->has_thread)
        err_set(err, "no thread");
    return line->has_thread;
}

struct llm *llm_open(const struct config *c, struct store *store, struct err *err)
{
    err->msg[0] = 0;
    if (!c->adviser_url[0])
        return NULL;
    struct llm *l = xcalloc(1, sizeof *l);
    l->store = store;
    l->price_in = c->agentic_price_in * 1e-6;
    l->price_out = c->agentic_price_out * 1e-6;
    limits_init(&l->limits, c->adviser_calls_per_hour, c->adviser_tokens_per_hour);
    limits_init(&l->kernels, (int64_t)ceil(c->agentic_share * (double)c->adviser_calls_per_hour),
                (int64_t)(c->agentic_share * (double)c->adviser_tokens_per_hour));
    pthread_mutex_init(&l->lock, NULL);
    clock_cond_init(&l->wake);
    const bool recorded = strncmp(c->adviser_url, "replay:", 7) == 0;
    const int users = strcmp(c->specializer_agentic, "on") == 0 ? LLM_USERS : LLM_ADVISER + 1;
    if (recorded)
        l->replay = adviser_replay_open(c->adviser_url + 7, err);
    else
        key_file_warn("adviser.key_file", c->adviser_key_file);
    bool open = l->replay || !recorded;
    for (int i = 0; open && i < users; i++)
        open = open_line(l, (enum llm_user)i, c, err);
    if (open)
        return l;
    llm_close(l);
    return NULL;
}

/* False: the thread is still in the system's resolver, which a libcurl before 7.87 waits for. It is
 * left behind: when it returns it sees that it is to stop, and all that it looks at is still there.
 */
static bool join_line(struct line *line)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (!line->has_thread || pthread_timedjoin_np(line->thread, NULL, &until) == 0)
        return true;
    pthread_detach(line->thread);
    log_warn("adviser", "a thread is left behind: a name is still being looked up");
    return false;
}

static bool close_line(struct llm *l, enum llm_user user)
{
    struct line *line = &l->line[user];
    if (line->http)
        adviser_http_stop(line->http);
    if (!join_line(line))
        return false;
    if (line->state == JOB_DONE)
        llm_settle(l, user, false, line->answer.fault == CALL_OK ? "not read: stopped" : "stopped",
                   NULL);
    clear_question(&line->question);
    free(line->answer.text);
    adviser_http_close(line->http);
    return true;
}

void llm_close(struct llm *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
    bool closed = true;
    for (int i = 0; i < LLM_USERS; i++)
        closed &= close_line(l, (enum llm_user)i);
    if (!closed)
        return;
    adviser_replay_close(l->replay);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->wake);
    free(l);
}

/* ---- asking -------------------------------------------------------------------------------- */

/* About how many tokens a text is. */
static int64_t llm_tokens(const char *text)
{
    return (int64_t)strlen(text) / BYTES_A_TOKEN;
}

/* Lock held. */
static enum hold hold_of(const struct llm *l, enum llm_user user, int64_t tokens)
{
    const struct line *line = &l->line[user];
    if (line->state != JOB_NONE || !line->has_thread)
        return HOLD_BUSY;
    enum hold hold = limits_ask(&l->limits, clock_ns(), tokens);
    return hold == HOLD_NOT && user != LLM_ADVISER ? limits_ask(&l->kernels, clock_ns(), tokens)
                                                   : hold;
}

enum hold llm_hold(struct llm *l, enum llm_user user, int64_t tokens)
{
    pthread_mutex_lock(&l->lock);
    enum hold hold = hold_of(l, user, tokens);
    pthread_mutex_unlock(&l->lock);
    return hold;
}

enum hold llm_ask(struct llm *l, struct llm_question *q)
{
    struct line *line = &l->line[q->user];
    enum hold hold = HOLD_TOO_LONG;
    int64_t tokens = 0;
    if (q->document) {
        tokens = llm_tokens(q->task) + llm_tokens(q->document) + q->style.max_tokens;
        hold = llm_hold(l, q->user, tokens);
    }
    if (hold != HOLD_NOT) {
        clear_question(q);
        return hold;
    }
    pthread_mutex_lock(&l->lock);
    line->question = *q;
    line->reserved = tokens;
    limits_reserve(&l->limits, tokens);
    if (q->user != LLM_ADVISER)
        limits_reserve(&l->kernels, tokens);
    line->state = JOB_WAITING;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
    *q = (struct llm_question){0};
    return HOLD_NOT;
}

const struct llm_question *llm_over(struct llm *l, enum llm_user user, const struct answer **answer)
{
    const struct line *line = &l->line[user];
    pthread_mutex_lock(&l->lock);
    bool over = line->state == JOB_DONE;
    pthread_mutex_unlock(&l->lock);
    *answer = &line->answer;
    return over ? &line->question : NULL;
}

/* ---- what came of it ----------------------------------------------------------------------- */

static int32_t at_most(int32_t count, int64_t most)
{
    return count < most ? count : (int32_t)most;
}

/* What the endpoint counted, as far as it can be true: a token has a byte or more, so there are no
 * more of them in a question than it has bytes, and what stands around its messages; and no more
 * in a reply than were asked for, unless it is longer than that. One reply that claims a billion
 * would otherwise use up every budget. */
static void bound_counts(struct line *line)
{
    enum { AROUND = 512 };
    const struct llm_question *q = &line->question;
    struct answer *w = &line->answer;
    const int32_t in = w->tokens_in, out = w->tokens_out;
    int64_t most_in = (int64_t)strlen(q->task) + (int64_t)strlen(q->document) + AROUND;
    int64_t most_out = w->text ? (int64_t)strlen(w->text) / BYTES_A_TOKEN : 0;
    if (q->schema)
        most_in += (int64_t)strlen(q->schema);
    if (most_out < q->style.max_tokens)
        most_out = q->style.max_tokens;
    w->tokens_in = at_most(in, most_in);
    w->tokens_out = at_most(out, most_out);
    if (w->tokens_in < in || w->tokens_out < out)
        log_warn("adviser",
                 "the endpoint counts %d and %d tokens, which cannot be: taken for %d "
                 "and %d",
                 in, out, w->tokens_in, w->tokens_out);
}

static void keep_call(struct llm *l, const struct line *line, const char *verdict)
{
    struct err err;
    const struct llm_question *q = &line->question;
    const struct answer *w = &line->answer;
    struct llm_call x = {.request = q->record ? q->record : q->document,
                         .reply = w->text ? w->text : "",
                         .verdict = verdict,
                         .seconds = w->seconds,
                         .tokens_in = w->tokens_in,
                         .tokens_out = w->tokens_out};
    if (line->http && l->store && store_llm_call(l->store, &x, &err) != 0)
        log_warn("adviser", "exchange not stored: %s", err.msg);
}

static void count(struct llm *l, enum llm_task task, bool good, const struct llm_cost *c)
{
    struct spent *s = &l->spent[task];
    *(good ? &s->good : &s->bad) += 1;
    s->tokens_in += c->tokens_in;
    s->tokens_out += c->tokens_out;
    s->cost += (double)c->tokens_in * l->price_in + (double)c->tokens_out * l->price_out;
}

void llm_settle(struct llm *l, enum llm_user user, bool good, const char *verdict,
                struct llm_cost *cost)
{
    struct line *line = &l->line[user];
    const struct answer *w = &line->answer;
    bound_counts(line);
    int64_t asked = llm_tokens(line->question.task) + llm_tokens(line->question.document);
    int64_t said = w->text ? llm_tokens(w->text) : 0;
    struct llm_cost c = {.tokens_in = w->tokens_in > 0 ? w->tokens_in
                                      : w->calls > 0   ? asked
                                                       : 0,
                         .tokens_out = w->tokens_out > 0 ? w->tokens_out : said,
                         .seconds = w->seconds};
    double wish_s = w->retry_after_s;
    if (w->fault == CALL_RATE && wish_s < BREAKER_FIRST_S)
        wish_s = BREAKER_FIRST_S;
    keep_call(l, line, verdict);
    pthread_mutex_lock(&l->lock);
    int64_t now = clock_ns();
    limits_release(&l->limits, line->reserved);
    count(l, line->question.purpose, good, &c);
    limits_spend(&l->limits, now, w->calls, c.tokens_in + c.tokens_out);
    if (user != LLM_ADVISER) {
        limits_release(&l->kernels, line->reserved);
        limits_spend(&l->kernels, now, w->calls, c.tokens_in + c.tokens_out);
    }
    /* A recording that has nothing more to say is no endpoint that fails. */
    if (good)
        limits_good(&l->limits);
    else if (w->fault != CALL_NO_RECORD)
        limits_bad(&l->limits, now, wish_s);
    clear_question(&line->question);
    free(line->answer.text);
    line->answer = (struct answer){0};
    line->state = JOB_NONE;
    pthread_mutex_unlock(&l->lock);
    if (cost)
        *cost = c;
}

/* Lock held. */
static bool any_waiting(const struct llm *l)
{
    for (int i = 0; i < LLM_USERS; i++)
        if (l->line[i].state == JOB_WAITING)
            return true;
    return false;
}

bool llm_wait(struct llm *l, double seconds)
{
    struct timespec until = clock_in(seconds);
    pthread_mutex_lock(&l->lock);
    int late = 0;
    while (any_waiting(l) && !late)
        late = pthread_cond_timedwait(&l->wake, &l->lock, &until);
    bool idle = !any_waiting(l);
    pthread_mutex_unlock(&l->lock);
    return idle;
}

enum breaker llm_breaker(struct llm *l)
{
    pthread_mutex_lock(&l->lock);
    enum breaker b = limits_breaker(&l->limits, clock_ns());
    pthread_mutex_unlock(&l->lock);
    return b;
}

/* ---- what was spent on what ---------------------------------------------------------------- */

static const char *const task_names[LLM_TASKS] = {
#define T(id, name) name,
    LLM_TASK_LIST(T)
#undef T
};

static void look(struct llm *l, struct spent out[LLM_TASKS])
{
    memset(out, 0, LLM_TASKS * sizeof *out);
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    memcpy(out, l->spent, sizeof l->spent);
    pthread_mutex_unlock(&l->lock);
}

static void put(FILE *out, const char *name, int task, const char *key, const char *value, double v)
{
    char label[80];
    if (key)
        snprintf(label, sizeof label, "task=\"%s\",%s=\"%s\"", task_names[task], key, value);
    else
        snprintf(label, sizeof label, "task=\"%s\"", task_names[task]);
    metric_value(out, name, label, v);
}

void llm_metrics(struct llm *l, FILE *out)
{
    static const char asked[] = "llm_questions_total", tokens[] = "llm_tokens_total";
    struct spent s[LLM_TASKS];
    look(l, s);
    metric_head(out, asked, "counter",
                "Questions to a language model by task, and whether the reply could be read");
    for (int t = 0; t < LLM_TASKS; t++) {
        put(out, asked, t, "reply", "usable", (double)s[t].good);
        put(out, asked, t, "reply", "unusable", (double)s[t].bad);
    }
    metric_head(out, tokens, "counter", "Tokens of questions and replies by task, since start");
    for (int t = 0; t < LLM_TASKS; t++) {
        put(out, tokens, t, "direction", "in", (double)s[t].tokens_in);
        put(out, tokens, t, "direction", "out", (double)s[t].tokens_out);
    }
    metric_head(out, "llm_cost_total", "counter",
                "Money by task at agentic.price_in and price_out, since start");
    for (int t = 0; t < LLM_TASKS; t++)
        put(out, "llm_cost_total", t, NULL, NULL, s[t].cost);
}

cJSON *llm_json(struct llm *l)
{
    struct spent s[LLM_TASKS];
    cJSON *list = cJSON_CreateArray();
    look(l, s);
    for (int t = 0; t < LLM_TASKS; t++) {
        if (s[t].good + s[t].bad == 0)
            continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        cJSON_AddStringToObject(o, "task", task_names[t]);
        cJSON_AddNumberToObject(o, "usable", (double)s[t].good);
        cJSON_AddNumberToObject(o, "unusable", (double)s[t].bad);
        cJSON_AddNumberToObject(o, "tokens_in", (double)s[t].tokens_in);
        cJSON_AddNumberToObject(o, "tokens_out", (double)s[t].tokens_out);
        cJSON_AddNumberToObject(o, "cost", s[t].cost);
    }
    return list;
}
