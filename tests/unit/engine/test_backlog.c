/* SPDX-License-Identifier: Apache-2.0 */
/* test_backlog.c - who is refused at a full queue, and limits of a client's own. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/backlog.h"

enum { MOST = 64 };

/* A queue, and the answers that came. */
struct queue {
    struct backlog b;
    struct backlog_group answer[MOST];
    int answers;
    struct backlog_group *displaced; /* by the last one that came, or NULL */
    struct err err;
};

static void queue_open(struct queue *q, int32_t max_batch, int32_t max_queue)
{
    *q = (struct queue){.answers = 0};
    backlog_init(&q->b, max_batch, max_queue);
}

/* An answer of n requests comes. */
static enum submit_result come(struct queue *q, uint64_t client, int32_t n,
                               const struct request_limits *limits)
{
    struct backlog_group *g = &q->answer[q->answers];
    struct err err = {""};
    q->err = err;
    enum submit_result alone = backlog_admit(&q->b, client, limits, &err);
    enum submit_result r = backlog_enter(&q->b, client, limits, g, n, &q->displaced, &q->err);
    assert_int_equal(r == SUBMIT_OK, q->err.msg[0] == '\0');
    if (n == 1)
        assert_int_equal(r, alone);
    q->answers += r == SUBMIT_OK;
    assert_true(q->answers < MOST);
    return r;
}

static struct backlog_group *comes(struct queue *q, uint64_t client, int32_t n)
{
    assert_int_equal(come(q, client, n, NULL), SUBMIT_OK);
    return &q->answer[q->answers - 1];
}

/* What the engine does with an answer that was displaced. */
static void end_displaced(struct queue *q, struct backlog_group *g)
{
    assert_true(g->displaced);
    for (int32_t n = g->active; n > 0; n--)
        backlog_leave(&q->b, g, true);
}

static void backlog_lets_one_client_fill_the_queue_and_another_in(void **state)
{
    (void)state;
    struct queue q;
    struct backlog_group *of[8];
    queue_open(&q, 2, 6);
    for (int i = 0; i < 8; i++)
        of[i] = comes(&q, 1, 1);
    backlog_started(&q.b, of[0]);
    backlog_started(&q.b, of[1]);
    assert_int_equal(come(&q, 1, 1, NULL), SUBMIT_FULL);
    for (int i = 1; i <= 3; i++) { /* until both have as many waiting */
        comes(&q, 2, 1);
        assert_ptr_equal(q.displaced, of[8 - i]); /* the newest that there still is */
        if (i == 2)
            end_displaced(&q, q.displaced);
    }
    assert_int_equal(come(&q, 2, 1, NULL), SUBMIT_FULL);
    assert_int_equal(come(&q, 1, 1, NULL), SUBMIT_FULL);
    comes(&q, 3, 1); /* with nothing waiting */
    assert_non_null(q.displaced);
    backlog_free(&q.b);
}

static void backlog_lets_a_newcomer_in_where_nothing_waits(void **state)
{
    (void)state;
    struct queue q;
    queue_open(&q, 2, 0);
    struct backlog_group *first = comes(&q, 1, 1);
    backlog_started(&q.b, first);
    backlog_started(&q.b, comes(&q, 1, 1));
    assert_int_equal(come(&q, 1, 1, NULL), SUBMIT_FULL);
    comes(&q, 2, 1);
    assert_int_equal(come(&q, 2, 1, NULL), SUBMIT_FULL);
    backlog_leave(&q.b, first, false); /* now everybody has one */
    assert_int_equal(come(&q, 3, 1, NULL), SUBMIT_FULL);
    backlog_free(&q.b);
}

static void backlog_keeps_a_client_to_its_limits(void **state)
{
    (void)state;
    struct queue q;
    const struct request_limits l = {.running = 2, .waiting = 1}, none = {.waiting = -1},
                                idle = {.running = 1, .waiting = 0};
    queue_open(&q, 8, 100);
    for (int i = 0; i < 3; i++)
        assert_int_equal(come(&q, 1, 1, &l), SUBMIT_OK);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_LIMITED); /* two can start, one waits */
    backlog_started(&q.b, &q.answer[0]);
    backlog_started(&q.b, &q.answer[1]);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_LIMITED);
    assert_string_equal(q.err.msg,
                        "2 of your requests run and 1 wait: your limit is running=2 waiting=1");
    assert_int_equal(backlog_admit(&q.b, 1, &none, &q.err), SUBMIT_OK);
    assert_int_equal(come(&q, 2, 1, &idle), SUBMIT_OK);
    assert_int_equal(come(&q, 2, 1, &idle), SUBMIT_LIMITED);
    assert_non_null(strstr(q.err.msg, "your limit is running=1 waiting=0"));
    assert_int_equal(come(&q, 2, 2, &idle), SUBMIT_LIMITED);
    assert_non_null(strstr(q.err.msg, "and 1 wait, and these are 2 more"));
    backlog_leave(&q.b, &q.answer[2], true);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_OK);
    assert_int_equal(come(&q, 3, 4, &l), SUBMIT_LIMITED);
    assert_non_null(strstr(q.err.msg, "0 of your requests run and 0 wait, and these are 4 more"));
    backlog_free(&q.b);
}

/* Without a limit of its own on what runs, a client has what is left of the batch; where nothing
 * is, one request, as long as none of its own runs. */
static void backlog_counts_what_can_start_at_once_as_not_waiting(void **state)
{
    (void)state;
    const struct request_limits l = {.running = 0, .waiting = 0}, none = {.waiting = -1};
    struct queue q;
    queue_open(&q, 3, 100);
    for (int i = 0; i < 3; i++)
        assert_int_equal(come(&q, 1, 1, &l), SUBMIT_OK);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_LIMITED);
    assert_non_null(strstr(q.err.msg, "running=3 waiting=0"));
    for (int i = 0; i < 3; i++)
        backlog_started(&q.b, &q.answer[i]);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_LIMITED);
    assert_int_equal(come(&q, 1, 1, &none), SUBMIT_OK);
    backlog_leave(&q.b, &q.answer[3], true);
    assert_int_equal(come(&q, 2, 1, &l), SUBMIT_OK);
    assert_int_equal(come(&q, 2, 1, &l), SUBMIT_LIMITED);
    backlog_leave(&q.b, &q.answer[4], true);
    backlog_leave(&q.b, &q.answer[0], false); /* one place in the batch */
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_OK);
    assert_int_equal(come(&q, 1, 1, &l), SUBMIT_LIMITED);
    backlog_free(&q.b);
}

/* Who waits as part of an answer that has begun counts as waiting, and nobody takes its place. */
static void backlog_keeps_what_belongs_to_an_answer_that_has_begun(void **state)
{
    (void)state;
    struct queue q;
    queue_open(&q, 2, 6);
    struct backlog_group *a = comes(&q, 1, 6), *b = comes(&q, 1, 1), *other = comes(&q, 2, 1);
    backlog_started(&q.b, a);
    comes(&q, 3, 1);
    assert_ptr_equal(q.displaced, b); /* client 1 has six waiting, one by itself */
    assert_int_equal(come(&q, 2, 1, NULL), SUBMIT_FULL);
    comes(&q, 4, 1); /* the scheduler makes a place */
    assert_null(q.displaced);
    end_displaced(&q, b);
    for (int i = 0; i < 5; i++)
        backlog_leave(&q.b, a, true);
    backlog_leave(&q.b, a, false);
    backlog_leave(&q.b, other, true);
    backlog_leave(&q.b, other + 1, true);
    backlog_leave(&q.b, other + 2, true);
    assert_int_equal(q.b.active + q.b.waiting + q.b.displacing + q.b.clients.items, 0);
    assert_int_equal(a->active + a->waiting + other->active + other->waiting, 0);
    backlog_free(&q.b);
}

/* One that came before its end was carried out has begun: it is kept, and counts again. */
static void backlog_keeps_a_displaced_answer_that_begins_nevertheless(void **state)
{
    (void)state;
    struct queue q;
    queue_open(&q, 2, 6);
    comes(&q, 1, 4);
    struct backlog_group *late = comes(&q, 1, 4);
    comes(&q, 2, 1);
    assert_ptr_equal(q.displaced, late);
    assert_int_equal(q.b.displacing, 4);
    backlog_leave(&q.b, late, true); /* cancelled */
    assert_int_equal(q.b.displacing, 3);
    backlog_started(&q.b, late);
    assert_false(late->displaced);
    assert_int_equal(q.b.displacing, 0);
    assert_int_equal(q.b.active, 8);
    backlog_free(&q.b);
}

/* However many choices a request has, it takes the place of one other. */
static void backlog_displaces_answers_one_for_one(void **state)
{
    (void)state;
    struct queue q;
    queue_open(&q, 4, 16);
    for (int i = 0; i < 20; i++)
        comes(&q, 1, 1);
    comes(&q, 2, 4);
    assert_ptr_equal(q.displaced, &q.answer[19]);
    assert_int_equal(q.b.displacing, 1);
    assert_int_equal(q.b.active - q.b.displacing, 23);
    end_displaced(&q, q.displaced);
    /* There would be more over the limit than run together. */
    assert_int_equal(come(&q, 2, 3, NULL), SUBMIT_FULL);
    assert_non_null(strstr(q.err.msg, "no room for 3 more"));
    assert_int_equal(q.b.active, 23);
    assert_int_equal(q.b.displacing, 0);
    comes(&q, 2, 1);
    assert_ptr_equal(q.displaced, &q.answer[18]);
    backlog_free(&q.b);
}

/* One request of many choices is not ended for a single one, which its client would have more of
 * than the other has left. */
static void backlog_counts_all_choices_of_what_it_would_displace(void **state)
{
    (void)state;
    struct queue q;
    queue_open(&q, 2, 14);
    comes(&q, 1, 16);
    comes(&q, 2, 1); /* over the limit, being new */
    assert_null(q.displaced);
    assert_int_equal(come(&q, 2, 1, NULL), SUBMIT_FULL);
    backlog_free(&q.b);
    queue_open(&q, 2, 14);
    comes(&q, 1, 8);
    comes(&q, 1, 8);
    comes(&q, 2, 3);
    assert_ptr_equal(q.displaced, &q.answer[1]);
    assert_int_equal(q.b.displacing, 8);
    comes(&q, 2, 5); /* there is room now */
    assert_null(q.displaced);
    assert_int_equal(come(&q, 2, 1, NULL), SUBMIT_FULL);
    assert_int_equal(come(&q, 1, 1, NULL), SUBMIT_FULL);
    backlog_free(&q.b);
}

/* ---- against a count kept the plain way ---------------------------------------------------- */

enum { CLIENTS = 12, ANSWERS = 400 };

struct count {
    int32_t waiting, active;
};

static struct count count_of(const struct backlog_group *g, int n, uint64_t client)
{
    struct count c = {0, 0};
    for (int i = 0; i < n; i++)
        if (client == 0 || g[i].client == client) {
            c.active += g[i].active - (g[i].displaced ? g[i].waiting : 0);
            c.waiting += g[i].displaced ? 0 : g[i].waiting;
        }
    return c;
}

static void check_displaced(const struct backlog_group *g, int n, const struct backlog_group *gone,
                            const struct backlog_group *mine)
{
    struct count victim = count_of(g, n, gone->client), own = count_of(g, n, mine->client);
    assert_int_not_equal(gone->client, mine->client);
    assert_true(gone->displaced && !gone->begun);
    assert_true(own.waiting <= victim.waiting + 1);
}

static void come_at_random(struct backlog *b, struct backlog_group *g)
{
    struct backlog_group *gone;
    struct err err;
    uint64_t client = 1 + (uint64_t)(rand() % CLIENTS);
    int at = 0, n = rand() % 3 ? 1 : 1 + rand() % 5;
    while (at < ANSWERS && g[at].active > 0)
        at++;
    assert_true(at < ANSWERS);
    g[at] = (struct backlog_group){.client = 0};
    int32_t before = count_of(g, ANSWERS, 0).active;
    if (backlog_enter(b, client, NULL, &g[at], n, &gone, &err) == SUBMIT_FULL)
        assert_true(before + n > 36);
    else if (gone)
        check_displaced(g, ANSWERS, gone, &g[at]);
}

static void backlog_counts_right_under_random_load(void **state)
{
    (void)state;
    static struct backlog_group g[ANSWERS];
    struct backlog b;
    srand(3);
    backlog_init(&b, 6, 30);
    for (int round = 0; round < 100000; round++) {
        struct backlog_group *one = &g[rand() % 48];
        switch (rand() % 4) {
        case 0:
        case 1:
            come_at_random(&b, g);
            break;
        case 2:
            if (one->waiting > 0 && !(one->displaced && rand() % 4))
                backlog_started(&b, one);
            break;
        default:
            if (one->active > one->waiting)
                backlog_leave(&b, one, false);
            else if (one->waiting > 0 && (one->displaced || rand() % 8 == 0))
                backlog_leave(&b, one, true);
        }
        struct count all = count_of(g, ANSWERS, 0);
        assert_int_equal(b.active - b.displacing, all.active);
        assert_int_equal(b.waiting - b.displacing, all.waiting);
    }
    backlog_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backlog_lets_one_client_fill_the_queue_and_another_in),
        cmocka_unit_test(backlog_lets_a_newcomer_in_where_nothing_waits),
        cmocka_unit_test(backlog_keeps_a_client_to_its_limits),
        cmocka_unit_test(backlog_counts_what_can_start_at_once_as_not_waiting),
        cmocka_unit_test(backlog_keeps_what_belongs_to_an_answer_that_has_begun),
        cmocka_unit_test(backlog_keeps_a_displaced_answer_that_begins_nevertheless),
        cmocka_unit_test(backlog_displaces_answers_one_for_one),
        cmocka_unit_test(backlog_counts_all_choices_of_what_it_would_displace),
        cmocka_unit_test(backlog_counts_right_under_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
