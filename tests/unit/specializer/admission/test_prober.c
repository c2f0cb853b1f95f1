/* SPDX-License-Identifier: Apache-2.0 */
/* The process that probes a device's kernels, as the server sees it: what comes of a request when
 * the process answers, dies, keeps the device, or says nonsense. This program is also the process:
 * started as `probe --serve` it does what the last word of the request's path says. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/clock.h"
#include "config/config.h"
#include "specializer/admission/prober.h"

/* ---- the process --------------------------------------------------------------------------- */

static char text[PROBER_MESSAGE_MAX];

static const char *hear(void)
{
    ssize_t n = recv(0, text, sizeof text - 1, 0);
    if (n <= 0)
        _exit(0);
    text[n] = 0;
    return text;
}

static void say(const char *what)
{
    if (send(0, what, strlen(what), MSG_NOSIGNAL) < 0)
        _exit(0);
}

static void take_turn(void)
{
    say("want");
    while (strncmp(hear(), "slice ", 5) != 0)
        ;
}

static void do_as_told(const char *how)
{
    if (strcmp(how, "crashes") == 0)
        abort();
    if (strcmp(how, "leaves") == 0)
        _exit(0);
    if (strcmp(how, "is_taken") == 0)
        raise(SIGKILL);
    if (strcmp(how, "complains") == 0) {
        fprintf(stderr, "an illegal address");
        abort();
    }
    if (strcmp(how, "is_silent") == 0)
        for (;;)
            pause();
    if (strcmp(how, "answers_at_once") == 0) {
        say("answer {\"at\": \"once\"}");
        return;
    }
    if (strcmp(how, "answers_twice") == 0) {
        say("answer {\"first\": 1}");
        usleep(100000);
        say("answer {}");
        return;
    }
    if (strcmp(how, "shouts") == 0) {
        static char loud[2 * PROBER_MESSAGE_MAX];
        memset(loud, 'x', sizeof loud - 1);
        say(loud);
        pause();
    }
    if (strcmp(how, "closes") == 0) {
        close(0);
        for (;;)
            pause();
    }
    if (strcmp(how, "answers_half") == 0) {
        say("answer {\"verd");
        _exit(0);
    }
    take_turn();
    if (strcmp(how, "crashes_on_the_device") == 0)
        abort();
    if (strcmp(how, "keeps_the_device") == 0)
        for (;;)
            pause();
    say("rest");
    if (strcmp(how, "babbles") == 0) {
        say("an answer");
        say("slice 5");
        say("");
        memset(text, 'x', sizeof text - 1);
        say(text);
    }
    take_turn();
    say("rest");
    if (strcmp(how, "is_spent") == 0) {
        say("last {}");
        pause(); /* it is not waited for */
    }
    say("answer {}");
}

static void __attribute__((noreturn)) be_the_process(void)
{
    for (;;) {
        char how[64];
        const char *slash;
        if (strncmp(hear(), "examine ", 8) != 0 || !(slash = strrchr(text, '/')))
            continue;
        snprintf(how, sizeof how, "%s", slash + 1);
        do_as_told(how);
    }
}

/* ---- asking -------------------------------------------------------------------------------- */

static struct config config;
static struct stage_env env;
static char program[4096];

static void wait_for(struct prober *p, struct errand *e)
{
    int64_t end = clock_ns() + INT64_C(300000000000);
    while ((e->state == ERRAND_WAITS || e->state == ERRAND_ASKED) && clock_ns() < end) {
        prober_poll(p);
        usleep(1000);
    }
}

static void poll_for(struct prober *p, int ms)
{
    for (int64_t end = clock_ns() + (int64_t)ms * 1000000; clock_ns() < end; usleep(1000))
        prober_poll(p);
}

static struct errand asked(struct prober *p, const char *how)
{
    struct errand e = {.path = how};
    prober_add(p, &e);
    wait_for(p, &e);
    return e;
}

static void dies_with(const char *how, bool fault)
{
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, how);
    assert_int_equal(e.state, ERRAND_FAILED);
    assert_int_equal(e.fault, fault);
    assert_int_equal(e.died, !fault);
    assert_true(strlen(e.reason) > 0);
    prober_close(p);
}

/* ---- tests --------------------------------------------------------------------------------- */

/* What one process counted that answered five requests. */
static struct prober_counts five_answers(void)
{
    struct prober *p = prober_open(&env);
    for (int i = 0; i < 5; i++) {
        struct errand e = asked(p, "/x/passes");
        assert_int_equal(e.state, ERRAND_ANSWERED);
        assert_string_equal(e.answer, "{}");
        prober_remove(p, &e);
    }
    struct prober_counts c = prober_counts(p);
    prober_close(p);
    return c;
}

static void one_process_answers_request_after_request(void **state)
{
    (void)state;
    uint64_t late = 1;
    for (int i = 0; i < 100 && late > 0; i++) { /* on a busy machine it may be late: not always */
        struct prober_counts c = five_answers();
        assert_int_equal(c.starts, 1);
        assert_int_equal(c.slices, 10);
        late = c.late;
    }
    assert_int_equal(late, 0);
}

static void requests_are_answered_in_the_order_in_which_they_came(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand a = {.path = "/x/passes"}, b = a, c = a;
    prober_add(p, &a);
    prober_add(p, &b);
    prober_add(p, &c);
    prober_remove(p, &b); /* its candidate is not wanted any more */
    wait_for(p, &a);
    assert_int_not_equal(c.state, ERRAND_ANSWERED);
    wait_for(p, &c);
    assert_int_equal(c.state, ERRAND_ANSWERED);
    prober_remove(p, &a);
    prober_remove(p, &c);
    prober_close(p);
}

static void a_crash_is_the_kernels_fault(void **state)
{
    (void)state;
    dies_with("/x/crashes", true);
    dies_with("/x/crashes_on_the_device", true);
}

static void an_end_that_the_kernel_did_not_cause_is_nobodys_fault(void **state)
{
    (void)state;
    dies_with("/x/leaves", false);
    dies_with("/x/is_taken", false); /* by the system, for its memory */
}

static void an_answer_cut_short_is_no_verdict(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/answers_half");
    assert_int_equal(e.state, ERRAND_ANSWERED); /* whoever asked cannot parse it: no verdict */
    assert_string_equal(e.answer, "{\"verd");
    prober_remove(p, &e);
    prober_close(p);
}

static void who_keeps_the_device_is_killed_and_refused(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/keeps_the_device");
    assert_int_equal(e.state, ERRAND_FAILED);
    assert_true(e.fault);
    assert_non_null(strstr(e.reason, "hang"));
    assert_int_equal(prober_counts(p).late, 1);
    e = asked(p, "/x/answers_at_once"); /* the next one has kept nothing */
    assert_int_equal(e.state, ERRAND_ANSWERED);
    prober_remove(p, &e);
    prober_close(p);
}

static void nonsense_is_the_end_of_a_process_and_not_of_the_server(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/babbles");
    assert_int_not_equal(e.state, ERRAND_ANSWERED);
    assert_false(e.fault && e.state == ERRAND_ANSWERED);
    prober_close(p);
}

static void after_a_process_that_ended_there_is_another(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/is_spent");
    assert_int_equal(e.state, ERRAND_ANSWERED);
    prober_remove(p, &e);
    e = asked(p, "/x/passes");
    assert_int_equal(e.state, ERRAND_ANSWERED);
    assert_int_equal(prober_counts(p).starts, 2);
    prober_remove(p, &e);
    prober_close(p);
}

static void nothing_is_asked_and_no_turn_given_while_it_is_held(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = {.path = "/x/passes"};
    prober_hold(p, true);
    prober_add(p, &e);
    poll_for(p, 20);
    assert_int_equal(e.state, ERRAND_WAITS);
    assert_int_equal(prober_counts(p).slices, 0);
    prober_hold(p, false);
    wait_for(p, &e);
    assert_int_equal(e.state, ERRAND_ANSWERED);
    prober_remove(p, &e);
    prober_close(p);
}

static void a_request_under_way_can_be_given_up(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = {.path = "/x/passes"};
    prober_add(p, &e);
    prober_poll(p);
    assert_int_equal(e.state, ERRAND_ASKED);
    prober_remove(p, &e);
    e = asked(p, "/x/passes"); /* by the next process */
    assert_int_equal(e.state, ERRAND_ANSWERED);
    prober_remove(p, &e);
    prober_close(p);
}

static void processes_that_answer_nothing_come_ever_more_rarely(void **state)
{
    (void)state;
    static const double pause_s[] = {0, 0, 10, 20, 40, 80, 120, 120, 120};
    for (int failures = 0; failures < 9; failures++) {
        assert_true(prober_patience_s(failures, false) == pause_s[failures]);
        /* where steps are served, a start is felt: never at once */
        assert_true(prober_patience_s(failures, true) == (failures < 2 ? 5 : pause_s[failures]));
    }
}

/* Two that answered nothing, one after the other: the third is not started at once. */
static void after_two_that_failed_a_request_has_to_wait(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e;
    for (int i = 0; i < 2; i++) {
        e = asked(p, "/x/leaves");
        assert_int_equal(e.state, ERRAND_FAILED);
    }
    e = (struct errand){.path = "/x/answers_at_once"};
    prober_add(p, &e);
    poll_for(p, 50);
    assert_int_equal(e.state, ERRAND_WAITS);
    assert_int_equal(prober_counts(p).starts, 2);
    prober_remove(p, &e);
    prober_close(p);
}

/* One that answers forgives those before. */
static void an_answer_forgives_what_failed_before(void **state)
{
    (void)state;
    static const char *const way[] = {"/x/leaves", "/x/is_spent", "/x/leaves", "/x/is_spent"};
    struct prober *p = prober_open(&env);
    for (int i = 0; i < 4; i++) {
        struct errand e = asked(p, way[i]);
        assert_int_equal(e.state, i % 2 ? ERRAND_ANSWERED : ERRAND_FAILED);
        prober_remove(p, &e);
        assert_null(e.answer);
    }
    prober_close(p);
}

static void what_a_process_said_last_is_in_the_reason(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/complains");
    assert_true(e.state == ERRAND_FAILED && e.fault && !e.died);
    assert_non_null(strstr(e.reason, "SIGABRT"));
    assert_non_null(strstr(e.reason, ": an illegal address"));
    assert_true(e.seconds > 0 && e.seconds < 100);
    prober_close(p);
}

/* Nobody's fault: the machine may have been busy. */
static void who_does_not_answer_in_time_is_ended_without_blame(void **state)
{
    (void)state;
    config.specializer_probe_timeout = 0.02;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/is_silent");
    config.specializer_probe_timeout = 30;
    assert_int_equal(e.state, ERRAND_FAILED);
    assert_false(e.fault || e.died);
    assert_string_equal(e.reason, "no answer in time");
    assert_true(e.seconds >= 0.2);
    e = asked(p, "/x/answers_at_once"); /* another one answers */
    assert_int_equal(e.state, ERRAND_ANSWERED);
    assert_int_equal(prober_counts(p).starts, 2);
    prober_remove(p, &e);
    prober_close(p);
}

static void no_time_passes_while_it_is_held(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = {.path = "/x/passes"};
    prober_add(p, &e);
    prober_poll(p);
    assert_int_equal(e.state, ERRAND_ASKED);
    prober_hold(p, true);
    config.specializer_probe_timeout = 0.005; /* over ten times within what it is held for */
    poll_for(p, 500);
    assert_int_equal(e.state, ERRAND_ASKED);
    assert_int_equal(prober_counts(p).slices, 0); /* though one is wanted */
    config.specializer_probe_timeout = 30;
    prober_hold(p, false);
    wait_for(p, &e);
    assert_int_equal(e.state, ERRAND_ANSWERED);
    assert_int_equal(prober_counts(p).slices, 2);
    prober_remove(p, &e);
    prober_close(p);
}

/* An answer is of the request that was asked, and nobody's else. */
static void a_second_answer_is_of_no_request(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand a = {.path = "/x/answers_twice"}, b = {.path = "/x/answers_at_once"};
    prober_add(p, &a);
    wait_for(p, &a);
    assert_string_equal(a.answer, "{\"first\": 1}");
    prober_hold(p, true);
    prober_add(p, &b);
    poll_for(p, 300); /* its second one comes, and nothing is asked */
    assert_int_equal(b.state, ERRAND_WAITS);
    prober_hold(p, false);
    wait_for(p, &b);
    assert_int_equal(b.state, ERRAND_ANSWERED);
    assert_string_equal(b.answer, "{\"at\": \"once\"}");
    assert_int_equal(prober_counts(p).starts, 1);
    prober_remove(p, &a);
    prober_remove(p, &b);
    prober_close(p);
}

/* Longer than any message is. */
static void a_message_that_is_cut_off_is_the_end_of_a_process(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/shouts");
    assert_int_equal(e.state, ERRAND_FAILED);
    assert_true(e.died && !e.fault);
    prober_close(p);
}

/* It lives, and nobody hears it. */
static void who_stops_listening_is_ended_without_blame(void **state)
{
    (void)state;
    struct prober *p = prober_open(&env);
    struct errand e = asked(p, "/x/closes");
    assert_int_equal(e.state, ERRAND_FAILED);
    assert_true(e.died && !e.fault);
    assert_string_equal(e.reason, "it stopped listening");
    prober_close(p);
}

static void a_program_that_does_not_start_answers_nothing(void **state)
{
    (void)state;
    struct stage_env nowhere = env;
    struct errand e = {.path = "/x/passes"};
    nowhere.program = "/nowhere/whet";
    struct prober *p = prober_open(&nowhere);
    prober_add(p, &e);
    poll_for(p, 50);
    assert_true(e.state == ERRAND_WAITS || e.state == ERRAND_FAILED);
    assert_false(e.fault);
    prober_remove(p, &e);
    prober_close(p);
}

static void where_there_is_no_prober_nothing_is_counted(void **state)
{
    (void)state;
    struct prober_counts c = prober_counts(NULL);
    assert_true(c.starts == 0 && c.slices == 0 && c.late == 0);
    prober_hold(NULL, true);
    prober_close(NULL);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "probe") == 0)
        be_the_process();
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    config.specializer_probe_timeout = 30;
    env = (struct stage_env){.config = &config, .program = program, .alone = true};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_process_answers_request_after_request),
        cmocka_unit_test(requests_are_answered_in_the_order_in_which_they_came),
        cmocka_unit_test(a_crash_is_the_kernels_fault),
        cmocka_unit_test(an_end_that_the_kernel_did_not_cause_is_nobodys_fault),
        cmocka_unit_test(an_answer_cut_short_is_no_verdict),
        cmocka_unit_test(who_keeps_the_device_is_killed_and_refused),
        cmocka_unit_test(nonsense_is_the_end_of_a_process_and_not_of_the_server),
        cmocka_unit_test(after_a_process_that_ended_there_is_another),
        cmocka_unit_test(nothing_is_asked_and_no_turn_given_while_it_is_held),
        cmocka_unit_test(a_request_under_way_can_be_given_up),
        cmocka_unit_test(processes_that_answer_nothing_come_ever_more_rarely),
        cmocka_unit_test(after_two_that_failed_a_request_has_to_wait),
        cmocka_unit_test(an_answer_forgives_what_failed_before),
        cmocka_unit_test(what_a_process_said_last_is_in_the_reason),
        cmocka_unit_test(who_does_not_answer_in_time_is_ended_without_blame),
        cmocka_unit_test(no_time_passes_while_it_is_held),
        cmocka_unit_test(a_second_answer_is_of_no_request),
        cmocka_unit_test(a_message_that_is_cut_off_is_the_end_of_a_process),
        cmocka_unit_test(who_stops_listening_is_ended_without_blame),
        cmocka_unit_test(a_program_that_does_not_start_answers_nothing),
        cmocka_unit_test(where_there_is_no_prober_nothing_is_counted),
    };
    (void)argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
