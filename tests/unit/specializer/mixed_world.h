/* SPDX-License-Identifier: Apache-2.0 */
/* mixed_world.h - the loop without its thread, on stages that pretend (fake_stages.h), a clock and
 * a language model that are the test's: so that all that can happen to a slot's kernels happens in
 * an order that a seed decides, and again in the same order. The store, the trees of texts, the
 * adviser's and the fleet's memory are the real ones. Included by test_mixed.c alone.
 */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_MIXED_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_MIXED_WORLD_H

#include <errno.h>
#include <string.h>

#include "specializer/adviser/llm.h"
#include "specializer/fleet/fleet_db.h"
#include "specializer/fleet/fleet_row.h"

struct fleet_rows;
static const char *cell_value(const struct fleet_rows *rows, int row, int column);
#define fleet_value cell_value
#include "specializer/fleet/fleet_memory.c"
#include "tests/unit/specializer/fleet/memory_world.h"

#include "specializer/pipeline/bound.h"
#include "specializer/specializer.c"
#include "tests/unit/specializer/fake_stages.h"

/* ---- chance ---------------------------------------------------------------------------------- */

static uint64_t chance;

static uint32_t below(uint32_t n)
{
    chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(chance >> 33) % n;
}

static bool one_in(uint32_t n)
{
    return below(n) == 0;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The clock stands still but for what a test lets pass, and for a little each time it is looked at,
 * so that whoever waits for it comes to an end. */
static int64_t now_ns = INT64_C(1000000000000);

int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t);
int __wrap_usleep(useconds_t us);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    now_ns += 1000;
    const int64_t at = now_ns + (id == CLOCK_REALTIME ? INT64_C(1700000000000000000) : 0);
    *t = (struct timespec){at / 1000000000, at % 1000000000};
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t)
{
    (void)c, (void)m;
    const int64_t until = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
    now_ns = until > now_ns ? until : now_ns;
    return ETIMEDOUT;
}

int __wrap_usleep(useconds_t us)
{
    now_ns += (int64_t)us * 1000;
    return 0;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    now_ns += (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
    return 0;
}

static void pass(double seconds)
{
    now_ns += (int64_t)(seconds * 1e9);
}

/* ---- a language model ------------------------------------------------------------------------ */

static struct specializer *s; /* whose life it is */

/* One line to each user, on which a question waits until the test lets the reply come. */
static struct line {
    bool asked;
    struct llm_question q;
    struct answer answer;
    char slot[40]; /* that the adviser is asked about */
} line[LLM_USERS];

/* Texts differ in a comment alone. There are so few that the same one is written twice, in one slot
 * or in two. */
enum { TEXTS = 24 };

static char *text_reply(void)
{
    static const char *const top[] = {
        "/* %u */\n/* of two lines */", "#include <stdio.h> /* %u */\n",
        "/* %u */ static int outlives;\n", "/* %u */ no C at all (\n"};
    const uint32_t kind = below(10);
    char inside[120];
    snprintf(inside, sizeof inside, top[kind < 4 ? kind : 0], below(TEXTS));
    return xasprintf("```c\n// [span 1]\n%s\n// [end 1]\n```", inside);
}

static char *advice_reply(const char *slot)
{
    return xasprintf("{\"version\":1,\"regions\":[{\"region\":\"%s\",\"label\":\"try\","
                     "\"priority\":[],\"hints\":{\"ROWS\":[2,4]},\"risks\":[]}]}",
                     slot);
}

static char *reply_to(const struct line *l)
{
    if (l->q.purpose == LLM_TASK_ADVICE)
        return advice_reply(l->slot);
    if (l->q.purpose == LLM_TASK_PLAN)
        return xasprintf("{\"version\":1,\"label\":\"idea %u\",\"plan\":\"do it\",\"spans\":[{"
                         "\"first\":1,\"last\":2}]}",
                         below(100));
    return l->q.purpose == LLM_TASK_MOVES ? xasprintf("{\"version\":1,\"moves\":[]}")
                                          : text_reply();
}

static void end_line(struct line *l)
{
    free(l->q.task);
    free(l->q.document);
    free(l->q.schema);
    free(l->q.record);
    free(l->answer.text);
    *l = (struct line){0};
}

struct llm *llm_open(const struct config *c, struct store *store, struct err *err)
{
    (void)store;
    err->msg[0] = 0;
    return c->adviser_url[0] ? (struct llm *)line : NULL;
}
void llm_close(struct llm *l)
{
    for (int i = 0; l && i < LLM_USERS; i++)
        end_line(&line[i]);
}
enum hold llm_hold(struct llm *l, enum llm_user user, int64_t tokens)
{
    (void)l, (void)tokens;
    return line[user].asked ? HOLD_BUSY : HOLD_NOT;
}
enum hold llm_ask(struct llm *l, struct llm_question *q)
{
    (void)l;
    struct line *to = &line[q->user];
    if (to->asked) {
        struct line refused = {.q = *q};
        end_line(&refused);
        return HOLD_BUSY;
    }
    *to = (struct line){.asked = true, .q = *q};
    if (q->user == LLM_ADVISER)
        snprintf(to->slot, sizeof to->slot, "%s", s->consultation.request.slot);
    return HOLD_NOT;
}
const struct llm_question *llm_over(struct llm *l, enum llm_user user, const struct answer **answer)
{
    (void)l;
    struct line *of = &line[user];
    if (!of->asked || (of->answer.text == NULL && of->answer.fault == CALL_OK))
        return NULL;
    *answer = &of->answer;
    return &of->q;
}
void llm_settle(struct llm *l, enum llm_user user, bool good, const char *verdict,
                struct llm_cost *cost)
{
    (void)l, (void)good, (void)verdict;
    *cost = (struct llm_cost){100, 50, 1};
    end_line(&line[user]);
}
bool llm_wait(struct llm *l, double seconds)
{
    (void)l, (void)seconds;
    return true;
}
enum breaker llm_breaker(struct llm *l)
{
    (void)l;
    return BREAKER_CLOSED;
}
void llm_metrics(struct llm *l, FILE *out)
{
    (void)l, (void)out;
}
cJSON *llm_json(struct llm *l)
{
    (void)l;
    return cJSON_CreateObject();
}

static void replies_come(void)
{
    for (int i = 0; i < LLM_USERS; i++) {
        struct line *l = &line[i];
        if (!l->asked || l->answer.text || l->answer.fault != CALL_OK)
            continue;
        if (one_in(8))
            l->answer = (struct answer){.fault = CALL_TIMEOUT, .why = "in vain"};
        else
            l->answer.text = one_in(10) ? xstrdup("I cannot.") : reply_to(l);
    }
}

/* What is measured of the machine, which takes its time. */
void cpu_facts_measure(struct cpu_facts *out, const struct model *model)
{
    (void)model;
    *out = (struct cpu_facts){.cpus = 2, .cores = 2};
}
double bound_read_bandwidth(int64_t bytes, int32_t threads)
{
    (void)bytes, (void)threads;
    return 40e9;
}
void cpu_facts_put(const struct cpu_facts *c, cJSON *device)
{
    (void)c, (void)device;
}

/* ---- a fleet --------------------------------------------------------------------------------- */

/* The answer of its database: one row. */
static char cell[FLEET_COLUMNS][512];

static const char *cell_value(const struct fleet_rows *rows, int row, int column)
{
    (void)rows, (void)row;
    return column < FLEET_COLUMNS ? cell[column] : "";
}

static void fill_row(void *ctx, const struct record *r)
{
    uint32_t *skip = ctx;
    if ((*skip)-- != 0)
        return;
    static const char *const states[] = {"active", "retired", "benched", "proposed", "refused"};
    snprintf(cell[FLEET_KEY], sizeof cell[0], "%s", r->key);
    snprintf(cell[FLEET_SLOT], sizeof cell[0], "%s", r->slot);
    snprintf(cell[FLEET_TEMPLATE], sizeof cell[0], "%s", r->template);
    snprintf(cell[FLEET_SOURCE], sizeof cell[0], "%s", r->source);
    snprintf(cell[FLEET_KNOBS], sizeof cell[0], "%s", r->knobs);
    snprintf(cell[FLEET_STATE], sizeof cell[0], "%s", states[below(5)]);
}

/* Another server tells of a kernel that this one knows, or of the same point in another slot, or
 * that one is wrong. */
static void others_say(const struct slot *of)
{
    struct record_filter any = {.limit = 64};
    uint32_t skip = below(64);
    if (!s->fleet)
        return;
    memset(cell, 0, sizeof cell);
    store_each(s->store, &any, fill_row, &skip, NULL);
    if (!cell[FLEET_KEY][0])
        return;
    struct fleet_rows rows = {.n = 1, .columns = FLEET_COLUMNS};
    snprintf(cell[FLEET_SEQ], sizeof cell[0], "%u", below(1000000));
    if (one_in(3)) { /* seq, key, slot, server, name, reason, at */
        char key[24], slot[40];
        snprintf(key, sizeof key, "%s", cell[FLEET_KEY]);
        snprintf(slot, sizeof slot, "%s", cell[FLEET_SLOT]);
        snprintf(cell[1], sizeof cell[0], "%s", key);
        snprintf(cell[2], sizeof cell[0], "%s", slot);
        snprintf(cell[3], sizeof cell[0], "00000000000000f%u", below(4));
        snprintf(cell[4], sizeof cell[0], "another");
        snprintf(cell[5], sizeof cell[0], "wrong there");
        snprintf(cell[6], sizeof cell[0], "%u", below(1000000));
        fleet_take_retractions(s->fleet, &rows);
        return;
    }
    if (one_in(4))
        snprintf(cell[FLEET_SLOT], sizeof cell[0], "%s", of->name);
    snprintf(cell[FLEET_SERVER], sizeof cell[0], "00000000000000f%u", below(4));
    snprintf(cell[FLEET_OWN_S], sizeof cell[0], "%.9f", 1e-6 * below(1000));
    snprintf(cell[FLEET_SPEED], sizeof cell[0], "%.3f", 0.01 * below(250));
    fleet_take_rows(s->fleet, &rows);
}

static struct fleet *join_fleet(void)
{
    struct fleet *f = memory_open(fake.dispatch);
    f->store = s->store;
    snprintf(f->self.env, sizeof f->self.env, "%s", s->keys.env);
    return f;
}

#endif
