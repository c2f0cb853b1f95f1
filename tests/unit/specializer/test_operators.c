/* SPDX-License-Identifier: Apache-2.0 */
/* Operators and the loop (loop_world.h): disables, rollbacks, pause and freeze act at once and
 * outlive a restart (pins: test_pins.c); slots, kernels, metrics and the dashboard's document show
 * what is so.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/swap.h"
#include "tests/unit/specializer/loop_world.h"

static void operators_disable_a_kernel_and_a_family_at_once(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(ANSWER_UNKNOWN, specializer_disable(s, "nonsense", "x", "r1", &text), &text);
    expect(ANSWER_CONFLICT, specializer_disable(s, "eager", "x", "r1", &text), &text);
    expect(ANSWER_DONE, specializer_disable(s, id, "I do not trust it", "r1", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    expect(ANSWER_DONE, specializer_disable(s, "head", "family", "r2", &text), &text);
    assert_false(specialized("head/m1"));
    usleep(300000);
    assert_false(specialized("head/m1"));
    expect(ANSWER_DONE, specializer_enable(s, "head", "r3", &text), &text);
    WAIT_FOR(specialized("head/m1"));
    stop(s);
    s = start(NULL, NULL); /* the disable survives */
    usleep(300000);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    stop(s);
}

static void operators_pause_resume_and_freeze(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start("--specializer-paused", "true");
    int builds = atomic_load(&fake.builds);
    usleep(200000);
    assert_int_equal(atomic_load(&fake.builds), builds);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r1", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r2", &text), &text);
    stop(s);
    s = start(NULL, NULL);
    assert_int_equal(atomic_load(&s->mode), SPECIALIZER_FREEZE);
    stop(s);
}

/* Nothing was learnt about the kernel on the bench, and nobody else is to go first. */
static void operators_pause_a_bench_and_it_is_taken_up_again(void **unused)
{
    (void)unused;
    char *text = NULL;
    atomic_store(&fake.hold_bench, true);
    int benches = atomic_load(&fake.benches);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(atomic_load(&fake.benches) > benches);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_PAUSE, "r1", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_PAUSED);
    fake.unheld[0] = 0;
    atomic_store(&fake.hold_bench, false);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r2", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
    assert_string_equal(fake.unheld, fake.held);
}

/* Frozen: winners serve and come back after a restart, nothing is built, benched or published. */
static void operators_freeze_what_serves_now(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r2", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    uint64_t benched = atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_PASS]) +
                       atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_REFUSE]);
    uint64_t published = atomic_load(&s->counts.published);
    int builds = atomic_load(&fake.builds);
    uint64_t looks = atomic_load(&s->counts.audits);
    WAIT_FOR(atomic_load(&s->counts.audits) > looks + 20); /* it is still audited */
    assert_int_equal(atomic_load(&fake.builds), builds);
    assert_int_equal(atomic_load(&s->counts.published), published);
    assert_int_equal(atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_PASS]) +
                         atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_REFUSE]),
                     benched);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    stop(s);
    s = start(NULL, NULL); /* it survives, and so do the winners */
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    /* A kernel that an audit finds wrong leaves all the same; eager stays. */
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(!specialized("mlp_out/m1"));
    assert_true(atomic_load(&s->counts.mismatches) >= 1);
    assert_int_equal(atomic_load(&fake.builds), builds);
    atomic_store(&fake.audit_fails, NULL);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r3", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

static void operators_cannot_thaw_what_the_configuration_froze(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start("--specializer-numerics", "frozen");
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    expect(ANSWER_CONFLICT, specializer_set_mode(s, SPECIALIZER_RUN, "r2", &text), &text);
    expect(ANSWER_CONFLICT, specializer_set_mode(s, SPECIALIZER_PAUSE, "r3", &text), &text);
    assert_int_equal(atomic_load(&s->mode), SPECIALIZER_FREEZE);
    stop(s);
}

/* A client that did not hear the answer may ask again: `from` says what must go. */
static void operators_may_repeat_a_rollback(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", "0123456789abcdef", "r2", &text),
           &text);
    assert_string_equal(serving("mlp_out/m1")->id, id); /* it is not there: nothing to do */
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", id, "r3", &text), &text);
    char then[24];
    snprintf(then, sizeof then, "%s", serving("mlp_out/m1")->id);
    assert_string_not_equal(then, id);
    expect(ANSWER_DONE, specializer_rollback(s, "mlp_out/m1", id, "r3", &text), &text);
    assert_string_equal(serving("mlp_out/m1")->id, then);
    stop(s);
}

static void see_slots_and_kernels(struct specializer *s)
{
    char *text = NULL;
    cJSON *o = json_of(ANSWER_DONE, specializer_slots(s, "mlp_out/m1", &text), &text);
    assert_string_equal(cJSON_GetObjectItem(o, "state")->valuestring, "active");
    assert_true(cJSON_GetObjectItem(o, "gain_over_eager")->valuedouble > 0.2);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(o, "tried")) > 5);
    assert_true(cJSON_GetObjectItem(o, "bytes")->valuedouble > 0);
    cJSON_Delete(o);
    expect(ANSWER_UNKNOWN, specializer_slots(s, "no/slot", &text), &text);
    o = json_of(ANSWER_DONE, specializer_slots(s, NULL, &text), &text);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(o, "slots")), 2);
    cJSON_Delete(o);
    o = json_of(ANSWER_DONE, specializer_kernels(s, serving("mlp_out/m1")->id, &text), &text);
    assert_non_null(strstr(cJSON_GetObjectItem(o, "source")->valuestring, "whet_kernel"));
    cJSON_Delete(o);
    expect(ANSWER_UNKNOWN, specializer_kernels(s, "1234", &text), &text);
}

static void see_the_dashboards_facts(struct specializer *s)
{
    static const char *const keys[] = {"mode",     "doing",  "funnel",  "slots",    "trace",
                                       "numerics", "counts", "adviser", "refusals", "converged"};
    char *text = specializer_json(s);
    cJSON *o = cJSON_Parse(text);
    assert_non_null(o);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(cJSON_GetObjectItem(o, keys[i]));
    const cJSON *mark = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "marks"), 0);
    assert_string_equal(cJSON_GetObjectItem(mark, "event")->valuestring, "active");
    const cJSON *load = cJSON_GetObjectItem(cJSON_GetObjectItem(o, "funnel"), "load");
    assert_true(cJSON_GetObjectItem(load, "pass")->valuedouble > 0);
    const cJSON *refusal = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "refusals"), 0);
    assert_non_null(strstr(cJSON_GetObjectItem(refusal, "text")->valuestring, ": "));
    assert_non_null(cJSON_GetObjectItem(refusal, "name"));
    free(text);
    cJSON_Delete(o);
}

static void see_metrics(struct specializer *s)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    specializer_metrics(s, out);
    fclose(out);
    static const char *const names[] = {"whet_kernel_active_info{slot=\"mlp_out/m1\"",
                                        "whet_specializer_candidates_total{stage=\"build\"",
                                        "whet_specializer_refusals_total{reason=\"impossible\"} 0",
                                        "whet_specializer_build_seconds_bucket",
                                        "whet_specializer_slice_seconds_total",
                                        "whet_adviser_requests_total{outcome=\"heuristic\"}",
                                        "whet_kernel_swaps_total{result=\"published\"}",
                                        "whet_kernel_rollbacks_total{reason=\"audit\"} 0",
                                        "whet_time_saved_seconds_total",
                                        "whet_audit_comparisons_total",
                                        "whet_audit_mismatches_total 0",
                                        "whet_store_errors_total 0",
                                        "whet_specializer_searching 1",
                                        "whet_specializer_frozen 0",
                                        "whet_specializer_compiler_available 1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strstr(text, names[i]))
            print_error("%s\n", names[i]);
        assert_non_null(strstr(text, names[i]));
    }
    free(text);
}

static void operators_see_slots_kernels_metrics_and_the_dashboard(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    see_slots_and_kernels(s);
    see_the_dashboards_facts(s);
    see_metrics(s);
    stop(s);
}

/* Candidates that were built before the one with this key. */
struct before {
    const char *key;
    int n;
};

static void count_before(void *ctx, const struct trace_row *row) /* newest first */
{
    struct before *b = ctx;
    if (strcmp(row->event, "built") == 0)
        b->n = strcmp(row->key, b->key) == 0 ? 0 : b->n + 1;
}

/* One sample of /metrics. */
static double metric(struct specializer *s, const char *sample)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    specializer_metrics(s, out);
    fclose(out);
    const char *at = strstr(text, sample);
    if (!at)
        print_error("%s\n", sample);
    assert_non_null(at);
    double v = strtod(at + strlen(sample), NULL);
    free(text);
    return v;
}

#define ROLLED_BACK(reason) metric(s, "\nwhet_kernel_rollbacks_total{reason=\"" reason "\"} ")

/* What alerts look at moves when the thing happens. The adviser's breaker: test_adviser.c. */
static void operators_are_alerted_of_wrong_kernels_and_of_a_store_that_fails(void **unused)
{
    (void)unused;
    char *text = NULL, id[24];
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    assert_true(ROLLED_BACK("audit") + ROLLED_BACK("drift") + ROLLED_BACK("operator") == 0);
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(ROLLED_BACK("audit") >= 1);
    assert_true(metric(s, "\nwhet_audit_mismatches_total ") >= 1);
    assert_true(metric(s, "\nwhet_audit_comparisons_total ") >= 1);
    atomic_store(&fake.audit_fails, NULL);

    expect(ANSWER_DONE, specializer_rollback(s, "head/m1", NULL, "r1", &text), &text);
    assert_true(ROLLED_BACK("operator") == 1);
    assert_true(metric(s, "\nwhet_kernel_swaps_total{result=\"rolled_back\"} ") >= 2);

    assert_true(metric(s, "\nwhet_store_errors_total ") == 0);
    sql("ALTER TABLE pin RENAME TO lost");
    expect(ANSWER_FAILED, specializer_pin(s, "head/m1", "eager", "r2", &text), &text);
    assert_true(metric(s, "\nwhet_store_errors_total ") >= 1);
    sql("ALTER TABLE lost RENAME TO pin");
    expect(ANSWER_DONE, specializer_pin(s, "head/m1", "eager", "r3", &text), &text);
    stop(s);
}

/* What it has written is not believed, unless it is only slow. */
static void operators_who_take_a_kernel_out_take_its_pages_with_it(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    struct slot_search *p = slot_search_find(s, "mlp_out/m1");
    uint64_t n = dispatch_distrusts(fake.dispatch);
    pthread_mutex_lock(&s->lock);
    bool served = p->locked.active != NULL;
    swap_out_locked(s, p, LIFE_ROLLED_BACK, ROLLBACK_DRIFT, "slow", NULL);
    pthread_mutex_unlock(&s->lock);
    assert_true(served);
    assert_int_equal(dispatch_distrusts(fake.dispatch), n);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    expect(ANSWER_DONE, specializer_rollback(s, "head/m1", NULL, "r2", &text), &text);
    assert_int_equal(dispatch_distrusts(fake.dispatch), n + 1);
    expect(ANSWER_DONE, specializer_disable(s, "mlp_out", "wrong", "r3", &text), &text);
    assert_true(dispatch_distrusts(fake.dispatch) >= n + 2);
    stop(s);
}

/* What an audit saw of the kernel that left is not said of the one that came back. */
static void operators_who_are_faster_than_an_audit_find_the_kernel_before_it_unharmed(void **unused)
{
    (void)unused;
    char *text = NULL, id[24], before[24] = "";
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    pthread_mutex_lock(&s->lock);
    const struct candidate *previous = slot_search_find(s, "mlp_out/m1")->locked.previous;
    if (previous)
        memcpy(before, previous->key, sizeof before);
    pthread_mutex_unlock(&s->lock);
    if (!before[0]) { /* this machine's first winner was its best */
        stop(s);
        skip();
    }
    atomic_store(&fake.hasty, s);
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(atomic_load(&fake.hasty) == NULL);
    uint64_t looks = atomic_load(&s->counts.audits);
    WAIT_FOR(atomic_load(&s->counts.audits) > looks + 5);
    assert_string_equal(serving("mlp_out/m1")->id, before);
    assert_true(ROLLED_BACK("audit") == 0 && ROLLED_BACK("operator") == 1);
    stop(s);
}

/* Slots are audited in turns, for as many years as the process lives. */
static void operators_see_audits_go_on_when_a_count_would_overflow(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    pthread_mutex_lock(&s->lock);
    s->locked.watch_at = INT_MAX - 1;
    pthread_mutex_unlock(&s->lock);
    uint64_t looks = atomic_load(&s->counts.audits);
    WAIT_FOR(atomic_load(&s->counts.audits) > looks + 2);
    pthread_mutex_lock(&s->lock);
    assert_in_range(s->locked.watch_at, 0, s->slot_searches - 1);
    pthread_mutex_unlock(&s->lock);
    stop(s);
}

/* Nothing is known against a kernel whose loading the store could not write down: not refused. */
static void operators_lose_no_kernel_to_a_store_that_cannot_mark_a_trial(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-paused", "true");
    fill_disk("UPDATE OF trial ON candidate WHEN NEW.trial");
    char *text = NULL;
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r1", &text), &text);
    WAIT_FOR(metric(s, "\nwhet_specializer_candidates_total{stage=\"load\",outcome=\"retry\"} ") >=
             1);
    assert_true(
        metric(s, "\nwhet_specializer_candidates_total{stage=\"load\",outcome=\"refuse\"} ") == 0);
    assert_true(metric(s, "\nwhet_store_errors_total ") >= 1);
    empty_disk();
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    stop(s);
}

/* Has a window been closed since the slot's kernel was published? */
static bool promised(struct specializer *s, const char *slot)
{
    pthread_mutex_lock(&s->lock);
    bool so = slot_search_find(s, slot)->promise_s > 0;
    pthread_mutex_unlock(&s->lock);
    return so;
}

/* Slower than it was is no proof, and calls for a short bench against eager; losing that is. */
static void operators_are_alerted_of_a_kernel_that_became_slow(void **unused)
{
    (void)unused;
    char id[24];
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    atomic_store(&fake.layers, 29);
    WAIT_FOR(promised(s, "mlp_out/m1")); /* what it did just after it was published */
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    int benches = atomic_load(&fake.short_benches);
    atomic_store(&fake.slowed, id);
    WAIT_FOR(ROLLED_BACK("drift") == 1);
    assert_true(atomic_load(&fake.short_benches) > benches);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    char *text = NULL;
    cJSON *o = json_of(ANSWER_DONE, specializer_trace(s, "mlp_out/m1", 0, false, &text), &text);
    text = cJSON_PrintUnformatted(o);
    assert_non_null(strstr(text, "slower than promised"));
    assert_non_null(strstr(text, "no faster than eager any more"));
    free(text);
    cJSON_Delete(o);
    stop(s);
}

static void operators_carry_winners_to_another_store(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char name[160];
    snprintf(name, sizeof name, "%s", serving("mlp_out/m1")->name);
    assert_int_equal(specializer_export(s, &text), ANSWER_DONE);
    stop(s);
    fresh_store(NULL);
    s = start("--specializer-paused", "true");
    char *answer = NULL;
    cJSON *o =
        json_of(ANSWER_DONE, specializer_import(s, text, strlen(text), "r1", &answer), &answer);
    assert_true(cJSON_GetObjectItem(o, "imported")->valueint >= 1);
    cJSON_Delete(o);
    assert_false(specialized("mlp_out/m1")); /* nothing is believed */
    expect(ANSWER_WRONG, specializer_import(s, "junk", 4, "r2", &answer), &answer);
    sql("DELETE FROM candidate");
    fill_disk("INSERT ON candidate"); /* that is not the body's fault */
    expect(ANSWER_FAILED, specializer_import(s, text, strlen(text), "r2", &answer), &answer);
    empty_disk();
    expect(ANSWER_DONE, specializer_import(s, text, strlen(text), "r2", &answer), &answer);
    free(text);
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r3", &answer), &answer);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->name, name) == 0);
    struct before b = {serving("mlp_out/m1")->id, 0};
    assert_int_equal(store_traces(s->store, "mlp_out/m1", 0, 0, count_before, &b, NULL), 0);
    assert_true(b.n < BATCH); /* it was among the first tried */
    stop(s);
}

/* A candidate with a kernel, and a thread that has no more use for it. */
struct unwanted {
    struct specializer *s;
    struct candidate *c;
};

static void *drop_it(void *ctx)
{
    const struct unwanted *u = ctx;
    candidate_drop(u->s, u->c);
    return NULL;
}

/* Dropping names the slot's kernel once more, to learn an epoch. While an operator exchanges that
 * kernel it waits, or it would put back what was just taken out. */
static void operators_have_a_slot_to_themselves_while_a_candidate_is_dropped(void **unused)
{
    (void)unused;
    struct err err;
    struct specializer *s = start("--specializer-paused", "true");
    struct unwanted u = {s, xcalloc(1, sizeof *u.c)};
    const struct kernel_object object = {
        .path = store_file, .id = "0123456789abcdef", .name = "unwanted"};
    u.c->slot = slot_search_find(s, "mlp_out/m1")->slot;
    u.c->kernel = fake_ops.load(s->env.backend, &object, &err);
    assert_non_null(u.c->kernel);
    pthread_t thread;
    pthread_mutex_lock(&s->lock);
    int out = s->locked.retires + fake.graves;
    assert_int_equal(pthread_create(&thread, NULL, drop_it, &u), 0);
    usleep(100000);
    assert_int_equal(s->locked.retires + fake.graves, out);
    pthread_mutex_unlock(&s->lock);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&s->lock);
    assert_int_equal(s->locked.retires + fake.graves, out + 1);
    pthread_mutex_unlock(&s->lock);
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(operators_disable_a_kernel_and_a_family_at_once),
        TEST(operators_pause_resume_and_freeze),
        TEST(operators_pause_a_bench_and_it_is_taken_up_again),
        TEST(operators_freeze_what_serves_now),
        TEST(operators_cannot_thaw_what_the_configuration_froze),
        TEST(operators_may_repeat_a_rollback),
        TEST(operators_see_slots_kernels_metrics_and_the_dashboard),
        TEST(operators_are_alerted_of_wrong_kernels_and_of_a_store_that_fails),
        TEST(operators_who_take_a_kernel_out_take_its_pages_with_it),
        TEST(operators_who_are_faster_than_an_audit_find_the_kernel_before_it_unharmed),
        TEST(operators_see_audits_go_on_when_a_count_would_overflow),
        TEST(operators_lose_no_kernel_to_a_store_that_cannot_mark_a_trial),
        TEST(operators_are_alerted_of_a_kernel_that_became_slow),
        TEST(operators_carry_winners_to_another_store),
        TEST(operators_have_a_slot_to_themselves_while_a_candidate_is_dropped),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
