/* SPDX-License-Identifier: Apache-2.0 */
/* test_backlog.c - who is refused at a full queue, and limits of a client's own. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/backlog.h"

static enum submit_result judge(const struct backlog *b, uint64_t client,
                                const struct request_limits *limits, uint64_t *displaced)
{
    struct err err = {""};
    enum submit_result r = backlog_admit(b, client, limits, displaced, &err);
    assert_int_equal(r == SUBMIT_OK, err.msg[0] == '\0');
    return r;
}

static void submit(struct backlog *b, uint64_t client)
{
    uint64_t displaced;
    assert_int_equal(judge(b, client, NULL, &displaced), SUBMIT_OK);
    assert_int_equal(displaced, 0);
    backlog_enter(b, client, NULL);
}

static void backlog_lets_one_client_fill_the_queue_and_another_in(void **state)
{
    (void)state;
    struct backlog b;
    uint64_t displaced;
    backlog_init(&b, 2, 6);
    for (int i = 0; i < 8; i++)
        submit(&b, 1);
    backlog_started(&b, 1, NULL);
    backlog_started(&b, 1, NULL);
    assert_int_equal(judge(&b, 1, NULL, &displaced), SUBMIT_FULL);
    for (int i = 1; i <= 3; i++) { /* until both have as many waiting */
        assert_int_equal(judge(&b, 2, NULL, &displaced), SUBMIT_OK);
        assert_int_equal(displaced, 1);
        backlog_displace(&b, 1);
        backlog_enter(&b, 2, NULL);
        if (i == 2) {
            backlog_displaced(&b, 1);
            backlog_leave(&b, 1, NULL, true);
        }
    }
    assert_int_equal(judge(&b, 2, NULL, &displaced), SUBMIT_FULL);
    assert_int_equal(judge(&b, 1, NULL, &displaced), SUBMIT_FULL);
    assert_int_equal(judge(&b, 3, NULL, &displaced), SUBMIT_OK); /* with nothing waiting */
    assert_true(displaced == 1 || displaced == 2);
    backlog_free(&b);
}

static void backlog_lets_a_newcomer_in_where_nothing_waits(void **state)
{
    (void)state;
    struct backlog b;
    uint64_t displaced;
    backlog_init(&b, 2, 0);
    for (int i = 0; i < 2; i++) {
        submit(&b, 1);
        backlog_started(&b, 1, NULL);
    }
    assert_int_equal(judge(&b, 1, NULL, &displaced), SUBMIT_FULL);
    submit(&b, 2);
    assert_int_equal(judge(&b, 2, NULL, &displaced), SUBMIT_FULL);
    assert_int_equal(judge(&b, 3, NULL, &displaced), SUBMIT_OK);
    backlog_leave(&b, 1, NULL, false); /* now everybody has one */
    assert_int_equal(judge(&b, 3, NULL, &displaced), SUBMIT_FULL);
    backlog_free(&b);
}

static void backlog_keeps_a_client_to_its_limits(void **state)
{
    (void)state;
    struct backlog b;
    uint64_t displaced;
    const struct request_limits l = {.running = 2, .waiting = 1}, none = {.waiting = -1},
                                idle = {.running = 1, .waiting = 0};
    backlog_init(&b, 8, 100);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(judge(&b, 1, &l, &displaced), SUBMIT_OK);
        backlog_enter(&b, 1, NULL);
    }
    assert_int_equal(judge(&b, 1, &l, &displaced), SUBMIT_LIMITED); /* two can start, one waits */
    backlog_started(&b, 1, NULL);
    backlog_started(&b, 1, NULL);
    assert_int_equal(judge(&b, 1, &l, &displaced), SUBMIT_LIMITED);
    assert_int_equal(judge(&b, 1, &none, &displaced), SUBMIT_OK);
    assert_int_equal(judge(&b, 2, &idle, &displaced), SUBMIT_OK);
    backlog_enter(&b, 2, NULL);
    assert_int_equal(judge(&b, 2, &idle, &displaced), SUBMIT_LIMITED);
    backlog_leave(&b, 1, NULL, true);
    assert_int_equal(judge(&b, 1, &l, &displaced), SUBMIT_OK);
    backlog_free(&b);
}

/* Who waits as part of an answer that has begun counts as waiting, and nobody takes its place. */
static void backlog_keeps_what_belongs_to_an_answer_that_has_begun(void **state)
{
    (void)state;
    struct backlog b;
    struct backlog_group answer = {0}, other = {0};
    uint64_t displaced[4];
    struct err err;
    backlog_init(&b, 2, 6);
    assert_int_equal(backlog_enter_all(&b, 1, NULL, &answer, 4, displaced, &err), SUBMIT_OK);
    assert_int_equal(backlog_enter_all(&b, 2, NULL, &other, 4, displaced, &err), SUBMIT_OK);
    assert_int_equal(judge(&b, 3, NULL, displaced), SUBMIT_OK);
    assert_true(displaced[0] == 1 || displaced[0] == 2); /* neither has begun */
    backlog_started(&b, 1, &answer);
    backlog_enter(&b, 1, NULL);
    assert_int_equal(judge(&b, 3, NULL, displaced), SUBMIT_OK);
    assert_true(displaced[0] == 1 || displaced[0] == 2); /* client 1 has four, one by itself */
    backlog_leave(&b, 1, NULL, true);
    assert_int_equal(judge(&b, 3, NULL, displaced), SUBMIT_OK);
    assert_int_equal(displaced[0], 2);
    backlog_started(&b, 2, &other);
    assert_int_equal(judge(&b, 1, NULL, displaced), SUBMIT_FULL);
    assert_int_equal(judge(&b, 3, NULL, displaced), SUBMIT_OK); /* the scheduler makes a place */
    assert_int_equal(displaced[0], 0);
    for (int i = 0; i < 3; i++) {
        backlog_leave(&b, 1, &answer, true);
        backlog_leave(&b, 2, &other, true);
    }
    backlog_leave(&b, 1, &answer, false);
    backlog_leave(&b, 2, &other, false);
    assert_int_equal(b.active + b.waiting + b.clients.items, 0);
    assert_int_equal(answer.active + answer.waiting + other.active + other.waiting, 0);
    backlog_free(&b);
}

static void backlog_takes_all_of_an_answer_or_none(void **state)
{
    (void)state;
    struct backlog b;
    struct backlog_group group = {0}, none = {0};
    const struct request_limits l = {.running = 2, .waiting = 1};
    uint64_t displaced[8];
    struct err err;
    backlog_init(&b, 2, 6);
    for (int i = 0; i < 6; i++)
        submit(&b, 1);
    submit(&b, 3);
    assert_int_equal(backlog_enter_all(&b, 2, &l, &none, 4, displaced, &err), SUBMIT_LIMITED);
    assert_non_null(strstr(err.msg, "0 of your requests run and 0 wait, and these are 4 more"));
    /* One finds a place, three take one of client 1's, and then nobody has more. */
    assert_int_equal(backlog_enter_all(&b, 2, NULL, &none, 5, displaced, &err), SUBMIT_FULL);
    assert_int_equal(b.active, 7);
    assert_int_equal(b.waiting, 7);
    assert_int_equal(b.displacing, 0);
    assert_int_equal(b.clients.items, 2);
    assert_int_equal(none.active + none.waiting, 0);
    assert_int_equal(backlog_enter_all(&b, 2, NULL, &group, 4, displaced, &err), SUBMIT_OK);
    assert_int_equal(displaced[0], 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(displaced[i], 1);
    assert_int_equal(b.active - b.displacing, 8);
    assert_int_equal(group.waiting, 4);
    backlog_free(&b);
}

/* Against a count kept the plain way. */
static void backlog_counts_right_under_random_load(void **state)
{
    (void)state;
    enum { N = 12 };
    int waiting[N] = {0}, running[N] = {0}, displacing[N] = {0}, all = 0, displaces = 0;
    struct backlog b;
    srand(3);
    backlog_init(&b, 6, 30);
    for (int round = 0; round < 200000; round++) {
        int c = rand() % N, most = 0;
        uint64_t displaced;
        for (int i = 1; i < N; i++)
            if (waiting[i] - displacing[i] > waiting[most] - displacing[most])
                most = i;
        switch (rand() % 5) {
        case 0:
        case 1:
            if (judge(&b, (uint64_t)c + 1, NULL, &displaced) == SUBMIT_FULL) {
                assert_true(all - displaces >= 36);
                assert_true(waiting[most] - displacing[most] <= waiting[c] - displacing[c] + 1);
                break;
            }
            if (displaced) {
                int d = (int)displaced - 1;
                assert_int_equal(waiting[d] - displacing[d], waiting[most] - displacing[most]);
                backlog_displace(&b, displaced);
                displacing[d]++, displaces++;
            }
            backlog_enter(&b, (uint64_t)c + 1, NULL);
            waiting[c]++, all++;
            break;
        case 2:
            if (waiting[c] > displacing[c]) {
                backlog_started(&b, (uint64_t)c + 1, NULL);
                waiting[c]--, running[c]++;
            }
            break;
        case 3:
            if (running[c]) {
                backlog_leave(&b, (uint64_t)c + 1, NULL, false);
                running[c]--, all--;
            }
            break;
        default:
            if (displacing[c]) {
                backlog_displaced(&b, (uint64_t)c + 1);
                displacing[c]--, displaces--;
                if (waiting[c]) {
                    backlog_leave(&b, (uint64_t)c + 1, NULL, true);
                    waiting[c]--, all--;
                }
            }
        }
        assert_int_equal(b.active, all);
        assert_in_range(all - displaces, 0, 42);
    }
    backlog_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backlog_lets_one_client_fill_the_queue_and_another_in),
        cmocka_unit_test(backlog_lets_a_newcomer_in_where_nothing_waits),
        cmocka_unit_test(backlog_keeps_a_client_to_its_limits),
        cmocka_unit_test(backlog_keeps_what_belongs_to_an_answer_that_has_begun),
        cmocka_unit_test(backlog_takes_all_of_an_answer_or_none),
        cmocka_unit_test(backlog_counts_right_under_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
