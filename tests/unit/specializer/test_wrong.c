/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that serves and is found wrong, in the loop (loop_world.h): it is refused at once, with
 * what found it, and comes back by no way but an operator's word. One that is slow has a second
 * chance.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/swap.h"
#include "tests/unit/specializer/loop_world.h"

static const char slot[] = "mlp_out/m1";
static char id[24];        /* of the kernel that a test is about */
static uint64_t distrusts; /* before it left */

static struct record row(struct specializer *s)
{
    struct record r;
    assert_int_equal(store_get(s->store, id, &r, NULL), 1);
    free(r.log);
    return r;
}

static bool serves(void)
{
    return strcmp(serving(slot)->id, id) == 0;
}

/* The best kernel serves, and an audit finds it wrong. */
static struct specializer *audited(void)
{
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    snprintf(id, sizeof id, "%s", serving(slot)->id);
    distrusts = dispatch_distrusts(fake.dispatch);
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(row(s).state == LIFE_REFUSED);
    assert_false(serves());
    return s;
}

/* How often an event came in the life of that kernel. */
static int events(struct specializer *s, const char *event)
{
    char *text = NULL;
    int n = 0;
    cJSON *o = json_of(ANSWER_DONE, specializer_trace(s, slot, 0, false, &text), &text);
    const cJSON *line;
    cJSON_ArrayForEach(line, cJSON_GetObjectItem(o, "trace"))
    {
        const cJSON *key = cJSON_GetObjectItem(line, "kernel");
        n += key && strcmp(key->valuestring, id) == 0 &&
             strcmp(cJSON_GetObjectItem(line, "event")->valuestring, event) == 0;
    }
    cJSON_Delete(o);
    return n;
}

static const char *word(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItem(o, name);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static void wrong_outputs_refuse_a_kernel_at_once(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = audited();
    WAIT_FOR(specialized(slot) && asleep(s)); /* the search has looked for the best that is left */
    assert_false(serves());
    assert_int_equal(events(s, "active"), 1); /* not even once more */
    assert_int_equal(events(s, "rolled_back"), 1);
    assert_int_equal(events(s, "refused"), 1);
    assert_int_equal(row(s).rollbacks, 1);
    assert_int_equal(atomic_load(&s->counts.rolled_back[ROLLBACK_AUDIT]), 1);
    assert_true(dispatch_distrusts(fake.dispatch) >
                distrusts); /* nor is what it has written believed */
    cJSON *o = json_of(ANSWER_DONE, specializer_kernels(s, id, &text), &text);
    assert_string_equal(word(o, "state"), "refused");
    assert_string_equal(word(o, "reason"), "audit: planted difference");
    const cJSON *refusal = cJSON_GetObjectItem(cJSON_GetObjectItem(o, "evidence"), "refusal");
    assert_string_equal(word(refusal, "stage"), "audit");
    assert_string_equal(word(refusal, "cause"), "wrong");
    cJSON_Delete(o);
    stop(s);
}

/* No search has to come by it: frozen, there is none. */
static void wrong_outputs_refuse_a_kernel_in_a_frozen_server_too(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    snprintf(id, sizeof id, "%s", serving(slot)->id);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(atomic_load(&s->counts.rolled_back[ROLLBACK_AUDIT]) == 1);
    stop(s);
    atomic_store(&fake.audit_fails, NULL);
    s = start(NULL, NULL);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    assert_int_equal(row(s).state, LIFE_REFUSED);
    assert_false(specialized(slot));
    stop(s);
}

static void wrong_outputs_are_remembered_by_the_next_server(void **unused)
{
    (void)unused;
    char *text = NULL;
    stop(audited());
    atomic_store(&fake.audit_fails, NULL); /* nothing but the store knows of it */
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    assert_false(serves());
    assert_int_equal(row(s).state, LIFE_REFUSED);
    assert_int_equal(row(s).evidence.refusal.cause, CAUSE_AUDIT);
    assert_int_equal(events(s, "active"), 1);
    expect(ANSWER_CONFLICT, specializer_pin(s, slot, id, "r1", &text), &text);
    stop(s);
}

/* Killed between the two moves, the store says that it was rolled back for being wrong. */
static void wrong_outputs_refuse_it_also_if_the_process_ended_meanwhile(void **unused)
{
    (void)unused;
    stop(audited());
    atomic_store(&fake.audit_fails, NULL);
    char back[120];
    snprintf(back, sizeof back, "UPDATE candidate SET state='rolled_back' WHERE key='%s'", id);
    sql(back);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    assert_false(serves());
    assert_int_equal(row(s).state, LIFE_REFUSED);
    assert_int_equal(events(s, "active"), 1);
    stop(s);
}

static void an_operator_allows_it_again_and_it_must_pass_everything(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = audited();
    WAIT_FOR(asleep(s));
    atomic_store(&fake.audit_fails, NULL); /* it was the machine, which is mended */
    expect(ANSWER_UNKNOWN, specializer_enable(s, "nonsense", "r1", &text), &text);
    int canaries = atomic_load(&fake.canaries);
    expect(ANSWER_DONE, specializer_enable(s, id, "r2", &text), &text);
    WAIT_FOR(serves());
    assert_true(atomic_load(&fake.canaries) > canaries);
    assert_int_equal(row(s).rollbacks, 0);
    assert_int_equal(events(s, "disabled"), 1); /* the way that the table of moves allows */
    assert_int_equal(events(s, "active"), 2);
    expect(ANSWER_DONE, specializer_enable(s, id, "r3", &text), &text); /* again: nothing to do */
    assert_true(serves());
    assert_int_equal(row(s).state, LIFE_ACTIVE);
    atomic_store(&fake.audit_fails, id); /* it was not */
    WAIT_FOR(row(s).state == LIFE_REFUSED);
    assert_int_equal(row(s).rollbacks, 1);
    stop(s);
}

/* Deaths in which it served, too, are forgiven: with three it would not be tried. */
static void an_operator_allows_again_what_the_process_died_with(void **unused)
{
    (void)unused;
    char *text = NULL, dead[120];
    stop(audited());
    atomic_store(&fake.audit_fails, NULL);
    snprintf(dead, sizeof dead, "UPDATE candidate SET served_deaths=3 WHERE key='%s'", id);
    sql(dead);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(asleep(s));
    expect(ANSWER_DONE, specializer_enable(s, id, "r1", &text), &text);
    WAIT_FOR(serves());
    assert_int_equal(row(s).served_deaths, 0);
    stop(s);
}

static void a_winner_that_is_wrong_after_a_restart_is_refused_at_once(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    snprintf(id, sizeof id, "%s", serving(slot)->id);
    stop(s);
    atomic_store(&fake.probe_fails, id);
    s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    assert_false(serves());
    assert_int_equal(row(s).state, LIFE_REFUSED);
    assert_string_equal(row(s).reason, "probe: row 0: 9 times eager's error");
    assert_int_equal(row(s).evidence.refusal.stage, STAGE_PROBE);
    assert_int_equal(atomic_load(&s->counts.rolled_back[ROLLBACK_RESTORE]), 1);
    stop(s);
}

static void swap_out(struct specializer *s, enum rollback kind)
{
    struct slot_search *p = slot_search_find(s, slot);
    pthread_mutex_lock(&s->lock);
    assert_non_null(p->locked.active);
    swap_out_locked(s, p, LIFE_ROLLED_BACK, kind, "as the test has it", NULL);
    pthread_mutex_unlock(&s->lock);
}

static void a_slow_kernel_is_refused_the_second_time(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized(slot) && asleep(s));
    snprintf(id, sizeof id, "%s", serving(slot)->id);
    swap_out(s, ROLLBACK_DRIFT);
    WAIT_FOR(serves() && asleep(s)); /* looked at again, and as good as before */
    assert_int_equal(row(s).rollbacks, 1);
    swap_out(s, ROLLBACK_DRIFT);
    assert_int_equal(row(s).state, LIFE_REFUSED);
    assert_int_equal(row(s).evidence.refusal.cause, CAUSE_WITHDRAWN);
    WAIT_FOR(asleep(s));
    assert_false(serves());
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(wrong_outputs_refuse_a_kernel_at_once),
        TEST(wrong_outputs_refuse_a_kernel_in_a_frozen_server_too),
        TEST(wrong_outputs_are_remembered_by_the_next_server),
        TEST(wrong_outputs_refuse_it_also_if_the_process_ended_meanwhile),
        TEST(an_operator_allows_it_again_and_it_must_pass_everything),
        TEST(an_operator_allows_again_what_the_process_died_with),
        TEST(a_winner_that_is_wrong_after_a_restart_is_refused_at_once),
        TEST(a_slow_kernel_is_refused_the_second_time),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
