/* SPDX-License-Identifier: Apache-2.0 */
/* The loop, on an engine and stages that pretend (loop_world.h): what it publishes, what it
 * refuses, what it makes of advice. What comes back after a restart: test_restore.c; what operators
 * can do to it: test_operators.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/unit/specializer/loop_world.h"
#include "tests/unit/specializer/stand_in.h"

/* ---- the search ---------------------------------------------------------------------------- */

static double best_speed;
static int refused_without_reason, refusals_at[STAGES];

static void look_at(void *ctx, const struct record *r)
{
    (void)ctx;
    if (r->state == LIFE_ACTIVE && strcmp(r->slot, "mlp_out/m1") == 0)
        best_speed = r->evidence.speed;
    if (r->state != LIFE_REFUSED)
        return;
    refused_without_reason += !r->reason[0];
    for (int i = 0; i < STAGES; i++)
        refusals_at[i] += strncmp(r->reason, stage_name((enum stage)i), 5) == 0;
}

static bool says_converged(struct specializer *s)
{
    char *text = specializer_json(s);
    cJSON *o = cJSON_Parse(text);
    bool yes = cJSON_IsTrue(cJSON_GetObjectItem(o, "converged"));
    cJSON_Delete(o);
    free(text);
    return yes;
}

/* A sleep is no end of a search that never began. */
static void loop_has_not_converged_before_it_saw_steps(void **unused)
{
    (void)unused;
    atomic_store(&fake.live, false);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(atomic_load(&s->doing) == DOING_SLEEP);
    for (int i = 0; i < 5; i++, usleep(20000))
        assert_false(says_converged(s));
    stop(s);
}

static void loop_publishes_a_fast_kernel_that_passed_and_then_sleeps(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    WAIT_FOR(asleep(s));
    struct record_filter all = {0};
    best_speed = refused_without_reason = 0;
    memset(refusals_at, 0, sizeof refusals_at);
    store_each(s->store, &all, look_at, NULL, NULL);
    /* The best admissible: VNNI panels or AVX-512 rows, with ROWS=4 and PREFETCH=8192. */
    double most = isa_facts()->HAS_VNNI ? 1.75 : isa_facts()->HAS_AVX512 ? 1.5 : 1.4;
    assert_true(best_speed >= 0.97 * most);
    assert_int_equal(refused_without_reason, 0);
    assert_true(refusals_at[STAGE_BUILD] > 0 && refusals_at[STAGE_BENCH] > 0);
    assert_int_equal(atomic_load(&fake.bad_published), 0);
    assert_true(atomic_load(&s->counts.published) >= 2);
    WAIT_FOR(says_converged(s));
    int builds = atomic_load(&fake.builds);
    usleep(300000);
    assert_int_equal(atomic_load(&fake.builds), builds); /* a converged server costs nothing */
    stop(s);
    assert_false(specialized("mlp_out/m1"));
}

/* One that is killed is made with the next batch, at most once each; kernels come without. */
static void a_header_is_made_once_and_nobody_depends_on_it(void **unused)
{
    (void)unused;
    static const int dies[] = {0, 1, 1000};
    for (int i = 0; i < 3; i++) {
        atomic_store(&fake.header_wanted, true);
        atomic_store(&fake.headers, 0);
        atomic_store(&fake.headers_die, dies[i]);
        struct specializer *s = start(NULL, NULL);
        WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
        if (dies[i] < 1000) {
            WAIT_FOR(!atomic_load(&fake.header_wanted));
            assert_int_equal(atomic_load(&fake.headers), dies[i] + 1);
        }
        stop(s);
        fresh_store(NULL);
    }
}

static struct {
    char slot[2][24]; /* of the oldest two, newest last */
    int n;
} proposed;

static void look_at_proposal(void *ctx, const struct trace_row *row)
{
    (void)ctx;
    if (row->at < began_s)
        return;
    memcpy(proposed.slot[1], proposed.slot[0], sizeof proposed.slot[0]);
    snprintf(proposed.slot[0], sizeof proposed.slot[0], "%s", row->slot);
    proposed.n++;
}

static void look_at_opening(void *ctx, const struct trace_row *row)
{
    double gain = 0;
    const char *said = strchr(row->text, ';');
    if (row->at >= began_s && said && sscanf(said, "; steps may be %lf %% faster", &gain) == 1)
        *(double *)ctx = gain;
}

/* Every slot has its first point on the way before any is searched further. */
static void loop_opens_with_the_known_points_of_all_slots(void **unused)
{
    (void)unused;
    if (!isa_facts()->HAS_AVX2)
        skip(); /* no START row holds */
    int whole = atomic_load(&fake.whole_probes), shadows = atomic_load(&fake.whole_shadows);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    assert_true(last_of(s, "opening") > 0);
    /* Their probes try the whole model too, so the shadow does not have to. */
    assert_int_equal(atomic_load(&fake.whole_probes), whole + 2);
    assert_int_equal(atomic_load(&fake.whole_shadows), shadows + 2);
    double gain = 0; /* each of its slots promises some */
    store_events(s->store, "opening", 0, 1, look_at_opening, &gain, NULL);
    assert_true(gain > 0);
    proposed.n = 0;
    store_events(s->store, "proposed", 0, 100000, look_at_proposal, NULL, NULL);
    assert_true(proposed.n >= 2);
    assert_string_not_equal(proposed.slot[0], proposed.slot[1]);
    assert_int_equal(atomic_load(&fake.bad_published), 0);
    stop(s);
}

/* What a search finds alone can be measured: no point is known beforehand, none is tried first. */
static void loop_without_starts_searches_from_nothing(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-starts", "false");
    WAIT_FOR(specialized("mlp_out/m1"));
    assert_true(last_of(s, "opening") == 0);
    assert_int_equal(atomic_load(&s->counts.known[KNOWN_TRIED]), 0);
    stop(s);
}

static void loop_under_bit_equal_proposes_only_points_that_declare_it(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-numerics", "bit_equal");
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char *text = NULL;
    cJSON *rows = json_of(ANSWER_DONE, specializer_kernels(s, NULL, &text), &text);
    const cJSON *row;
    int n = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(rows, "kernels"))
    {
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(row, "bit_equal")));
        n++;
    }
    assert_true(n > 5);
    cJSON_Delete(rows);
    stop(s);
}

static void loop_waits_for_traffic_and_builds_nothing_without(void **unused)
{
    (void)unused;
    atomic_store(&fake.live, false);
    int builds = atomic_load(&fake.builds);
    struct specializer *s = start(NULL, NULL);
    usleep(500000);
    assert_int_equal(atomic_load(&fake.builds), builds);
    atomic_store(&fake.live, true);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

/* The others serve eager kernels, unless they come from the store. */
static void loop_searches_only_the_slots_that_are_named(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-slots", "attn_in/m1, mlp_out");
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char *text = NULL;
    cJSON *rows = json_of(ANSWER_DONE, specializer_kernels(s, NULL, &text), &text);
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(rows, "kernels"))
        assert_string_equal(cJSON_GetObjectItem(row, "slot")->valuestring, "mlp_out/m1");
    cJSON_Delete(rows);
    assert_false(specialized("head/m1"));
    stop(s);
    s = start("--specializer-slots", "head");
    WAIT_FOR(specialized("head/m1") && specialized("mlp_out/m1")); /* found, and restored */
    stop(s);
}

/* One kernel would have to do for all ranks of the model, and would not. */
static void loop_leaves_out_what_differs_between_ranks(void **unused)
{
    (void)unused;
    unequal_rank[REGION_MLP_OUT] = 2;
    struct specializer *s = start("--specializer-slots", "head, mlp_out");
    WAIT_FOR(specialized("head/m1") && asleep(s));
    assert_false(specialized("mlp_out/m1"));
    char *text = NULL;
    cJSON *o = json_of(ANSWER_DONE, specializer_slots(s, "mlp_out/m1", &text), &text);
    assert_string_equal(cJSON_GetObjectItem(o, "why")->valuestring,
                        "rank 2 has another shape or machine there");
    assert_int_equal(cJSON_GetObjectItem(o, "candidates")->valueint, 0);
    cJSON_Delete(o);
    stop(s);
}

static void loop_does_not_start_with_a_slot_that_there_is_not(void **unused)
{
    (void)unused;
    struct err err = {{0}};
    struct config c;
    char *argv[] = {(char *)"whet", (char *)"--specializer-slots", (char *)"head/m1,mlp_in/m5",
                    NULL};
    assert_int_equal(config_parse(&c, 3, argv, &err), 0);
    assert_null(specializer_start(&c, NULL, &err));
    assert_non_null(strstr(err.msg, "\"mlp_in/m5\""));
    assert_int_equal(specializer_check(&c, &err), -1);
    config_free(&c);
}

/* ---- crashes ------------------------------------------------------------------------------- */

static void loop_gives_up_on_a_kernel_that_kills_the_process(void **unused)
{
    (void)unused;
    int killed = 0;
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not support threads after a fork */
#endif
    fake_end_traffic();           /* a child would find its lock taken for ever */
    for (int i = 0; i < 3; i++) { /* a server that is started again and again */
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            fake.loaded = 0;
            atomic_store(&fake.killer, 1);
            fake_begin_traffic();
            start(NULL, NULL);
            usleep(PATIENCE_MS * 1000);
            _exit(1);
        }
        waitpid(child, &status, 0);
        killed += WIFEXITED(status) && WEXITSTATUS(status) == 42;
    }
    assert_int_equal(fake_begin_traffic(), 0);
    assert_int_equal(killed, 3);
    struct err err;
    struct store *store = store_open(store_file, &err);
    assert_int_equal(store_deaths(store, &err), 1);
    store_close(store);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

/* ---- advice -------------------------------------------------------------------------------- */

static struct stand_in server;
static bool standing; /* `server` is open */

static void leave_server(void)
{
    if (standing)
        stand_in_close(&server);
    standing = false;
}

static struct specializer *start_advised(int mode, const char *option, const char *value)
{
    char url[80];
    stand_in_open(&server);
    standing = true;
    stand_in_say(
        &server,
        strdup(
            "{\"version\":1,\"regions\":[{\"region\":\"mlp_out/m1\",\"label\":\"from the model\","
            "\"priority\":[],\"hints\":{\"PREFETCH\":[8192],\"ROWS\":[4]},\"risks\":[]}]}"));
    atomic_store(&server.mode, mode);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", server.port);
    setenv("no_proxy", "127.0.0.1", 1);
    setenv("WHET_ADVISER_URL", url, 1);
    struct specializer *s = start(option, value);
    unsetenv("WHET_ADVISER_URL");
    return s;
}

static int advised, advised_wrongly;

static void look_for_advice(void *ctx, const struct trace_row *row)
{
    (void)ctx;
    advised += strcmp(row->event, "advice") == 0 && strstr(row->text, "from the model");
    advised_wrongly += strcmp(row->event, "advice_rejected") == 0;
}

static bool was_advised(struct specializer *s, bool rightly)
{
    advised = advised_wrongly = 0;
    store_traces(s->store, NULL, 0, 0, look_for_advice, NULL, NULL);
    return (rightly ? advised : advised_wrongly) > 0;
}

/* The reply is right for one slot; the same for another is not. Each is searched by itself: which
 * of two is asked about first is chance, and three wrong replies open the breaker. */
static void loop_asks_a_language_model_about_its_slots(void **unused)
{
    (void)unused;
    struct specializer *s = start_advised(STAND_IN_OK, "--specializer-slots", "mlp_out");
    WAIT_FOR(specialized("mlp_out/m1") && was_advised(s, true));
    assert_true(stand_in_heard(&server, "f32_gflop_s"));
    stop(s);
    leave_server();
    fresh_store(NULL);
    s = start_advised(STAND_IN_OK, "--specializer-slots", "head");
    WAIT_FOR(specialized("head/m1") && was_advised(s, false));
    stop(s);
}

static void loop_goes_on_while_a_language_model_is_silent(void **unused)
{
    (void)unused;
    struct specializer *s = start_advised(STAND_IN_SILENT, "--adviser-timeout", "600");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    WAIT_FOR(atomic_load(&server.requests) == 1); /* it is still being waited for */
    stop(s); /* but not now: that would be longer than a test may take */
}

static void loop_searches_a_tree_too(void **unused)
{
    (void)unused;
    struct specializer *s = start_advised(STAND_IN_OK, "--specializer-strategy", "mcts");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    struct record_filter all = {0};
    best_speed = 0;
    store_each(s->store, &all, look_at, NULL, NULL);
    double most = isa_facts()->HAS_VNNI ? 1.75 : isa_facts()->HAS_AVX512 ? 1.5 : 1.4;
    assert_true(best_speed >= 0.97 * most);
    assert_int_equal(atomic_load(&fake.bad_published), 0);
    stop(s);
}

/* Batches begun since the loop was started. */
static void count_batch(void *ctx, const struct trace_row *row)
{
    *(int *)ctx += row->at >= began_s;
}

static int batches(struct specializer *s)
{
    int n = 0;
    store_events(s->store, "batch", 0, 100000, count_batch, &n, NULL);
    return n;
}

static int64_t begun_ns;

/* What may have been tried since `begun_ns` when each of two slots is tried anew after five
 * seconds: `most` of the first time, and so much again for every other. */
static int tried_at_most(int most)
{
    return most + most * (int)((double)(clock_ns() - begun_ns) * 1e-9 / 5);
}

/* Nothing was decided, and nothing will be if it is tried at once again and again: what that costs
 * are inputs of live steps, and the trace. */
static void loop_does_not_spin_when_the_builds_of_the_hour_are_used_up(void **unused)
{
    (void)unused;
    begun_ns = clock_ns();
    struct specializer *s = start("--specializer-builds-per-hour", "1");
    WAIT_FOR(batches(s) >= 1);
    usleep(500000);
    int begun = batches(s);
    assert_in_range(begun, 1, tried_at_most(6));
    WAIT_FOR(atomic_load(&s->doing) == DOING_CAPPED);
    assert_false(says_converged(s)); /* there is more to try, in the next hour */
    stop(s);
}

/* While the store takes no candidate none is judged: they are all there when it does again. */
static void loop_forgets_no_point_while_the_disk_is_full(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start("--specializer-paused", "true");
    fill_disk("INSERT ON candidate");
    uint64_t errors = store_errors(s->store);
    begun_ns = clock_ns();
    expect(ANSWER_DONE, specializer_set_mode(s, SPECIALIZER_RUN, "r1", &text), &text);
    WAIT_FOR(store_errors(s->store) > errors);
    usleep(500000);
    empty_disk();
    errors = store_errors(s->store) - errors;
    assert_true(errors < (uint64_t)tried_at_most(50));
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    stop(s);
}

static atomic_bool enough;
static pthread_t requests;
static bool coming; /* `requests` runs */

/* Requests that come and go: 20 ms of steps, 20 ms of none. */
static void *come_and_go(void *unused)
{
    (void)unused;
    for (int i = 0; !atomic_load(&enough); i++) {
        usleep(20000);
        atomic_store(&fake.live, i % 2 == 0);
    }
    atomic_store(&fake.live, true);
    return NULL;
}

static void let_them_be_enough(void)
{
    atomic_store(&enough, true);
    if (coming)
        pthread_join(requests, NULL);
    coming = false;
}

/* What is built and measured while nothing is served is judged by live steps all the same. */
static void loop_that_works_only_when_idle_publishes_between_requests(void **unused)
{
    (void)unused;
    atomic_store(&enough, false);
    assert_int_equal(pthread_create(&requests, NULL, come_and_go, NULL), 0);
    coming = true;
    struct specializer *s = start("--specializer-idle-only", "true");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    let_them_be_enough();
    stop(s);
}

/* A test that failed left more than its loop. */
static int leave_nothing(void **unused)
{
    let_them_be_enough();
    memset(unequal_rank, 0, sizeof unequal_rank);
    stop_what_runs(unused);
    leave_server();
    return 0;
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh_store, leave_nothing)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(loop_has_not_converged_before_it_saw_steps),
        TEST(loop_publishes_a_fast_kernel_that_passed_and_then_sleeps),
        TEST(a_header_is_made_once_and_nobody_depends_on_it),
        TEST(loop_opens_with_the_known_points_of_all_slots),
        TEST(loop_without_starts_searches_from_nothing),
        TEST(loop_under_bit_equal_proposes_only_points_that_declare_it),
        TEST(loop_waits_for_traffic_and_builds_nothing_without),
        TEST(loop_searches_only_the_slots_that_are_named),
        TEST(loop_leaves_out_what_differs_between_ranks),
        TEST(loop_does_not_start_with_a_slot_that_there_is_not),
        TEST(loop_gives_up_on_a_kernel_that_kills_the_process),
        TEST(loop_asks_a_language_model_about_its_slots),
        TEST(loop_goes_on_while_a_language_model_is_silent),
        TEST(loop_searches_a_tree_too),
        TEST(loop_does_not_spin_when_the_builds_of_the_hour_are_used_up),
        TEST(loop_forgets_no_point_while_the_disk_is_full),
        TEST(loop_that_works_only_when_idle_publishes_between_requests),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
