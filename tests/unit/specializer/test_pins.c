/* SPDX-License-Identifier: Apache-2.0 */
/* Pins and the loop (loop_world.h): what an operator pinned serves and nothing else, however it
 * came to be there: loaded, retired, restored, disabled, found again; and a restart or a pause
 * changes nothing.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/specializer/loop_world.h"

static atomic_bool unreadable; /* pins cannot be read, */
static atomic_int in_vain;     /* so many times */

int __real_store_pins(struct store *s, void (*fn)(void *, const char *, const char *), void *ctx,
                      struct err *err);
int __wrap_store_pins(struct store *s, void (*fn)(void *, const char *, const char *), void *ctx,
                      struct err *err);
int __wrap_store_pins(struct store *s, void (*fn)(void *, const char *, const char *), void *ctx,
                      struct err *err)
{
    if (!atomic_load(&unreadable))
        return __real_store_pins(s, fn, ctx, err);
    atomic_fetch_add(&in_vain, 1);
    return err_set(err, "disk I/O error");
}

/* A loop that has found its kernel of mlp_out/m1, and that kernel's id. */
static struct specializer *start_and_find(char id[24])
{
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    snprintf(id, 24, "%s", serving("mlp_out/m1")->id);
    return s;
}

/* Nothing is published any more, not even what was on its way. */
static void freeze(struct specializer *s)
{
    char *text = NULL;
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "freeze", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
}

static void pins_are_set_and_taken_off(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    expect(ANSWER_UNKNOWN, specializer_pin(s, "mlp_out/m7", "eager", "r1", &text), &text);
    expect(ANSWER_UNKNOWN, specializer_pin(s, "mlp_out/m1", "0000000000000000", "r1", &text),
           &text);
    expect(ANSWER_CONFLICT, specializer_pin(s, "head/m1", id, "r1", &text), &text);
    expect(ANSWER_WRONG, specializer_pin(s, "head/m1", "", "r1", &text), &text);

    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r2", &text), &text);
    assert_false(specialized("mlp_out/m1")); /* at once */
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r3", &text),
           &text); /* idempotent */
    expect(ANSWER_CONFLICT, specializer_rollback(s, "mlp_out/m1", NULL, "r4", &text), &text);
    stop(s);
    s = start(NULL, NULL); /* a pin survives a restart */
    WAIT_FOR(specialized("head/m1"));
    usleep(200000);
    assert_false(specialized("mlp_out/m1"));
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", id, "r5", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0); /* loaded and validated again */
    freeze(s); /* or the search might find it again at once */
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r6", &text), &text);
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", NULL, "r7", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    cJSON *o = json_of(ANSWER_DONE, specializer_trace(s, "mlp_out/m1", 0, false, &text), &text);
    char *printed = cJSON_PrintUnformatted(o);
    assert_non_null(strstr(printed, "\"who\":\"r7\""));
    assert_non_null(strstr(printed, "\"event\":\"pin\""));
    free(printed);
    cJSON_Delete(o);
    stop(s);
}

/* The first incident's reflex is to stop the search: that is no verdict on a kernel which is on its
 * way back, nor on one that was pinned a moment ago. */
static void a_pause_during_a_restore_loses_no_kernel(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    stop(s);
    atomic_store(&fake.hold_bench, true);
    int benches = atomic_load(&fake.short_benches);
    s = start(NULL, NULL);
    WAIT_FOR(atomic_load(&fake.short_benches) > benches);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_PAUSE, "r1", &text), &text);
    atomic_store(&fake.hold_bench, false);
    WAIT_FOR(atomic_load(&s->doing) == DOING_PAUSED);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    assert_true(specialized("head/m1"));
    stop(s);
}

static void a_pause_after_a_pin_does_not_lose_it(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    stop(s);
    s = start(NULL, NULL);
    WAIT_FOR(specialized("head/m1") && asleep(s));
    atomic_store(&fake.hold_bench, true);
    int benches = atomic_load(&fake.short_benches);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", id, "r2", &text), &text);
    WAIT_FOR(atomic_load(&fake.short_benches) > benches);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r3", &text), &text);
    atomic_store(&fake.hold_bench, false);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    stop(s);
}

/* A batch that a pause keeps waiting holds the prober, which the pinned kernel needs. */
static void pins_are_followed_while_a_round_waits(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start("--specializer-slots", "mlp_out");
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    stop(s);
    atomic_store(&fake.hold_probes, true);
    int probes = atomic_load(&fake.probes);
    s = start("--specializer-slots", "head");
    WAIT_FOR(atomic_load(&fake.probes) > probes);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_PAUSE, "r2", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_PAUSED && atomic_load(&fake.prober_held));
    atomic_store(&fake.hold_probes, false);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", id, "r3", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0);
    stop(s);
}

/* Short probes of pinned kernels are over: the pin was followed, or could not be. */
static bool pin_was_tried(struct specializer *s, int probes)
{
    pthread_mutex_lock(&s->lock);
    bool tried = !slot_search_find(s, "mlp_out/m1")->locked.pin_missing;
    pthread_mutex_unlock(&s->lock);
    return tried && atomic_load(&fake.short_probes) > probes && atomic_load(&fake.probes_die) == 0;
}

/* What could not be brought back, by no fault of its own, is tried again when it is pinned again.
 * Until then eager serves, not the kernel that it was pinned against. */
static void pins_may_be_repeated_when_a_kernel_could_not_be_brought_back(void **unused)
{
    (void)unused;
    char *text = NULL, first[24], second[24];
    struct specializer *s = start_and_find(first);
    expect(ANSWER_DONE, specializer_disable(s, first, "for another", "r1", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    snprintf(second, sizeof second, "%s", serving("mlp_out/m1")->id);
    stop(s);
    sql("DELETE FROM disable; UPDATE candidate SET state='retired' WHERE state='disabled'");
    s = start("--specializer-paused", "true");
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, second) == 0 &&
             atomic_load(&s->doing) == DOING_PAUSED);
    int probes = atomic_load(&fake.short_probes);
    atomic_store(&fake.probes_die, 1);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", first, "r2", &text), &text);
    WAIT_FOR(pin_was_tried(s, probes));
    WAIT_FOR(!specialized("mlp_out/m1"));
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", first, "r3", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, first) == 0);
    stop(s);
}

static void pins_of_a_disabled_kernel_are_refused(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_disable(s, id, "incident", "r2", &text), &text);
    expect(ANSWER_CONFLICT, specializer_pin(s, "mlp_out/m1", id, "r3", &text), &text);
    expect(ANSWER_DONE, specializer_enable(s, id, "r4", &text), &text);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", id, "r5", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0);
    stop(s);
}

/* Its search is over, but the best kernel that it knows does not serve. */
static void a_slot_unpinned_from_eager_gets_a_kernel_again(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    usleep(100000);
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r2", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

/* A pin to eager keeps the kernel loaded, as the one before. Found again by the search it must not
 * be its own predecessor, or a rollback would put back what it took out. */
static void a_rollback_does_not_put_back_what_it_took_out(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r2", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0);
    freeze(s);
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", NULL, "r4", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    stop(s);
}

/* It takes effect whatever the disk says, but the operator is told that a restart may undo it,
 * until it may not any more. */
static void a_rollback_that_is_not_stored_says_so(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    freeze(s);
    fill_disk("UPDATE OF state ON candidate WHEN NEW.state='rolled_back'");
    expect(ANSWER_FAILED, specializer_rollback(s, "mlp_out/m1", id, "r2", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    expect(ANSWER_FAILED, specializer_rollback(s, "mlp_out/m1", id, "r3", &text), &text);
    empty_disk();
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", id, "r4", &text), &text);
    stop(s);
    s = start("--specializer-paused", "true");
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    stop(s);
}

/* It passed its canary, and the process ended before it was published. */
static void pins_bring_back_a_kernel_that_was_about_to_be_published(void **unused)
{
    (void)unused;
    char *text = NULL, id[24], change[160];
    struct specializer *s = start_and_find(id);
    stop(s);
    snprintf(change, sizeof change,
             "UPDATE candidate SET state='canary' WHERE key='%s'; DELETE FROM winner WHERE "
             "key='%s'",
             id, id);
    sql(change);
    s = start("--specializer-paused", "true");
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", id, "r1", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0);
    stop(s);
}

/* A store that cannot be read says nothing of what was forbidden: it is not taken for permission.
 */
static void nothing_serves_before_it_is_known_what_operators_said(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start_and_find(id);
    expect(ANSWER_DONE, specializer_pin(s, "mlp_out/m1", "eager", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_disable(s, id, "no good", "r2", &text), &text);
    stop(s);
    atomic_store(&unreadable, true);
    s = start_only(NULL, NULL);
    WAIT_FOR(atomic_load(&in_vain) > 0);
    assert_false(atomic_load(&s->ready));
    expect(ANSWER_LOADING, specializer_pin(s, "head/m1", "eager", "r3", &text), &text);
    assert_false(specialized("mlp_out/m1") || specialized("head/m1"));
    atomic_store(&unreadable, false);
    await_ready(s); /* it tries again */
    WAIT_FOR(specialized("head/m1") && asleep(s));
    assert_false(specialized("mlp_out/m1"));
    expect(ANSWER_DONE, specializer_unpin(s, "mlp_out/m1", "r4", &text), &text);
    expect(ANSWER_CONFLICT, specializer_pin(s, "mlp_out/m1", id, "r5", &text), &text);
    /* What operators say later needs no reading. */
    atomic_store(&unreadable, true);
    expect(ANSWER_DONE, specializer_enable(s, id, "r6", &text), &text);
    expect(ANSWER_DONE, specializer_pin(s, "head/m1", "eager", "r7", &text), &text);
    expect(ANSWER_DONE, specializer_disable(s, "mlp_out", "no good", "r8", &text), &text);
    assert_false(specialized("mlp_out/m1") || specialized("head/m1"));
    expect(ANSWER_CONFLICT, specializer_pin(s, "mlp_out/m1", id, "r9", &text), &text);
    stop(s);
    stop(start_only(NULL, NULL)); /* nor does a loop that waits for it keep anybody from ending */
    atomic_store(&unreadable, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pins_are_set_and_taken_off),
        TEST(a_pause_during_a_restore_loses_no_kernel),
        TEST(a_pause_after_a_pin_does_not_lose_it),
        TEST(pins_are_followed_while_a_round_waits),
        TEST(pins_may_be_repeated_when_a_kernel_could_not_be_brought_back),
        TEST(pins_of_a_disabled_kernel_are_refused),
        TEST(a_slot_unpinned_from_eager_gets_a_kernel_again),
        TEST(a_rollback_does_not_put_back_what_it_took_out),
        TEST(a_rollback_that_is_not_stored_says_so),
        TEST(pins_bring_back_a_kernel_that_was_about_to_be_published),
        TEST(nothing_serves_before_it_is_known_what_operators_said),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
