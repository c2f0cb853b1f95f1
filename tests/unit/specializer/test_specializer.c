/* The loop, on an engine and stages that pretend (fake_lab.h): what it publishes, what it refuses,
 * what survives a restart, and what operators can do to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>

#include <cmocka.h>

#include <cjson/cJSON.h>

#include "tests/unit/specializer/fake_lab.h"
#include "tests/unit/specializer/stand_in.h"

static char folder[] = "/tmp/whet-test-loop-XXXXXX";
static int stores;
static struct config config;
static char store_file[120];

/* ---- the world ------------------------------------------------------------------------------- */

static int open_world(void **unused)
{
    (void)unused;
    struct model_shape shape = {.arch = ARCH_LLAMA,
                                .layers = 1,
                                .hidden = 64,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .ffn = 128,
                                .vocab = 64,
                                .max_context = 64,
                                .eps = 1e-5f,
                                .rope_base = 10000};
    if (!mkdtemp(folder))
        return -1;
    fake.model = model_random(&shape, DTYPE_Q4_1, 1);
    const struct kernel *table[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++) {
        fake.eager[r] = (struct kernel){.id = "eager", .name = "eager", .region = (enum region)r};
        table[r] = &fake.eager[r];
    }
    fake.dispatch = dispatch_open(table);
    atomic_store(&fake.live, true);
    atomic_store(&fake.compiler, true);
    return pthread_create(&fake.traffic, NULL, fake_traffic, NULL);
}

static int close_world(void **unused)
{
    (void)unused;
    char command[80];
    atomic_store(&fake.stop, true);
    pthread_join(fake.traffic, NULL);
    dispatch_close(fake.dispatch);
    model_close(fake.model);
    for (int i = 0; i < fake.graves && i < 4096; i++)
        free(fake.grave[i]);
    config_free(&config);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* A store of its own for every test. */
static int fresh_store(void **unused)
{
    (void)unused;
    snprintf(store_file, sizeof store_file, "%s/%d/store.db", folder, stores++);
    atomic_store(&fake.audit_fails, NULL);
    atomic_store(&fake.killer, 0);
    atomic_store(&fake.compiler, true);
    atomic_store(&fake.live, true);
    return 0;
}

static struct specializer *start(const char *option, const char *value)
{
    char *argv[] = {(char *)"whet", (char *)"--store", store_file,
                    (char *)option, (char *)value,     NULL};
    struct err err = {{0}};
    config_free(&config);
    if (config_parse(&config, option ? 5 : 3, argv, &err) != 0)
        print_error("%s\n", err.msg);
    struct specializer *s = specializer_start(&config, NULL, &err);
    assert_non_null(s);
    for (int i = 0; i < 5000 && !atomic_load(&s->ready); i++)
        usleep(1000);
    assert_true(atomic_load(&s->ready));
    return s;
}

static void stop(struct specializer *s)
{
    specializer_stop(s);
    assert_int_equal(atomic_load(&fake.loaded), 0); /* everything was unloaded */
}

#define WAIT_FOR(what)                      \
    do {                                    \
        int waited = 0;                     \
        while (!(what) && waited++ < 20000) \
            usleep(1000);                   \
        assert_true(what);                  \
    } while (0)

static const struct kernel *serving(const char *slot)
{
    return atomic_load(&dispatch_find(fake.dispatch, slot)->kernel);
}

static bool specialized(const char *slot)
{
    return serving(slot)->origin != ORIGIN_EAGER;
}

static cJSON *json_of(int want_status, int status, char **text)
{
    if (status != want_status)
        print_error("%d: %s\n", status, *text);
    assert_int_equal(status, want_status);
    cJSON *o = cJSON_Parse(*text);
    assert_non_null(o);
    free(*text);
    *text = NULL;
    return o;
}

static void expect(int want_status, int status, char **text)
{
    cJSON_Delete(json_of(want_status, status, text));
}

static uint64_t asleep(struct specializer *s)
{
    return atomic_load(&s->doing) == DOING_SLEEP;
}

/* ---- the search -------------------------------------------------------------------------------
 */

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
    int builds = atomic_load(&fake.builds);
    usleep(300000);
    assert_int_equal(atomic_load(&fake.builds), builds); /* a converged server costs nothing */
    stop(s);
    assert_false(specialized("mlp_out/m1"));
}

static void loop_restores_its_winners_after_a_restart_even_when_paused(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    stop(s);
    int builds = atomic_load(&fake.builds), probes = atomic_load(&fake.probes);
    int benches = atomic_load(&fake.benches);
    atomic_store(&fake.short_probes, 0);
    atomic_store(&fake.short_benches, 0);
    int64_t begin = clock_ns();
    s = start("--specializer-paused", "true");
    WAIT_FOR(atomic_load(&s->counts.restored) == 2);
    print_message("restored in %.0f ms\n", (double)(clock_ns() - begin) * 1e-6);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    assert_int_equal(serving("mlp_out/m1")->origin, ORIGIN_RESTORED);
    /* What makes it quick: nothing compiled, nothing looked at in full, each looked at once. */
    assert_int_equal(atomic_load(&fake.builds), builds);
    assert_int_equal(atomic_load(&fake.probes), probes);
    assert_int_equal(atomic_load(&fake.benches), benches);
    assert_int_equal(atomic_load(&fake.short_probes), 2);
    assert_int_equal(atomic_load(&fake.short_benches), 2);
    stop(s);
    /* An object that is lost is built again. */
    char command[200];
    snprintf(command, sizeof command, "rm -f %s.objects/*", store_file);
    assert_int_equal(system(command), 0);
    s = start("--specializer-paused", "true");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    assert_true(atomic_load(&fake.builds) > builds);
    stop(s);
}

static void loop_without_a_compiler_restores_and_searches_nothing(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    stop(s);
    atomic_store(&fake.compiler, false);
    int builds = atomic_load(&fake.builds);
    s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    usleep(200000);
    assert_int_equal(atomic_load(&fake.builds), builds);
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    specializer_metrics(s, out);
    fclose(out);
    assert_non_null(strstr(text, "whet_specializer_compiler_available 0"));
    assert_non_null(strstr(text, "whet_specializer_searching 0"));
    free(text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_HELPLESS);
    stop(s);
}

static void loop_under_bit_equal_proposes_only_points_that_declare_it(void **unused)
{
    (void)unused;
    struct specializer *s = start("--specializer-numerics", "bit_equal");
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char *text = NULL;
    cJSON *rows = json_of(200, specializer_kernels(s, NULL, &text), &text);
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

/* ---- watching -----------------------------------------------------------------------------------
 */

static void loop_rolls_back_what_an_audit_finds_wrong_and_refuses_it_the_second_time(void **unused)
{
    (void)unused;
    struct record r;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    atomic_store(&fake.audit_fails, id);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) != 0);
    WAIT_FOR(store_get(s->store, id, &r, NULL) == 1 && (free(r.log), r.rollbacks >= 1));
    WAIT_FOR(atomic_load(&s->counts.rolled_back[ROLLBACK_AUDIT]) >= 1);
    /* It may be looked at again, fails again, and is refused for good. */
    WAIT_FOR(store_get(s->store, id, &r, NULL) == 1 && (free(r.log), r.rollbacks == 2));
    WAIT_FOR(store_get(s->store, id, &r, NULL) == 1 && (free(r.log), r.state == LIFE_REFUSED));
    WAIT_FOR(asleep(s));
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    atomic_store(&fake.audit_fails, NULL);
    stop(s);
}

static void loop_gives_up_on_a_kernel_that_kills_the_process(void **unused)
{
    (void)unused;
    int status;
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not support threads after a fork */
#endif
    for (int i = 0; i < 30; i++) { /* a server that is started again and again */
        pid_t child = fork();
        if (child == 0) {
            fake.loaded = 0;
            atomic_store(&fake.killer, 1);
            pthread_create(&fake.traffic, NULL, fake_traffic, NULL);
            struct specializer *s = start(NULL, NULL);
            usleep(30000000);
            _exit(s != NULL);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WEXITSTATUS(status), 42);
        if (i == 2)
            break;
    }
    struct err err;
    struct store *store = store_open(store_file, &err);
    assert_int_equal(store_deaths(store, &err), 1);
    store_close(store);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

/* ---- advice -----------------------------------------------------------------------------------
 */

static struct specializer *start_advised(struct stand_in *server, int mode, const char *option,
                                         const char *value)
{
    char url[80];
    stand_in_open(server);
    stand_in_say(
        server,
        strdup(
            "{\"version\":1,\"regions\":[{\"region\":\"mlp_out/m1\",\"label\":\"from the model\","
            "\"priority\":[],\"hints\":{\"PREFETCH\":[8192],\"ROWS\":[4]},\"risks\":[]}]}"));
    atomic_store(&server->mode, mode);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", server->port);
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

static bool was_advised(struct specializer *s)
{
    advised = advised_wrongly = 0;
    store_traces(s->store, NULL, 0, 0, look_for_advice, NULL, NULL);
    return advised > 0 && advised_wrongly > 0;
}

static void loop_asks_a_language_model_about_its_slots(void **unused)
{
    (void)unused;
    struct stand_in server;
    struct specializer *s = start_advised(&server, STAND_IN_OK, NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    WAIT_FOR(was_advised(s)); /* one slot's reply is right; the same for another is not */
    assert_non_null(strstr(server.request, "f32_gflop_s"));
    stop(s);
    stand_in_close(&server);
}

static void loop_goes_on_while_a_language_model_is_silent(void **unused)
{
    (void)unused;
    struct stand_in server;
    struct specializer *s = start_advised(&server, STAND_IN_SILENT, NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    assert_int_equal(atomic_load(&server.requests), 1); /* it is still being waited for */
    int64_t begin = clock_ns();
    stop(s);
    assert_true(clock_ns() - begin < INT64_C(10000000000)); /* and not when we stop */
    stand_in_close(&server);
}

static void loop_searches_a_tree_too(void **unused)
{
    (void)unused;
    struct stand_in server;
    struct specializer *s = start_advised(&server, STAND_IN_OK, "--specializer-strategy", "mcts");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    struct record_filter all = {0};
    best_speed = 0;
    store_each(s->store, &all, look_at, NULL, NULL);
    double most = isa_facts()->HAS_VNNI ? 1.75 : isa_facts()->HAS_AVX512 ? 1.5 : 1.4;
    assert_true(best_speed >= 0.97 * most);
    assert_int_equal(atomic_load(&fake.bad_published), 0);
    stop(s);
    stand_in_close(&server);
}

/* ---- operators ----------------------------------------------------------------------------------
 */

static void operators_pin_unpin_and_roll_back(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(404, specializer_pin(s, "mlp_out/m7", "eager", "r1", &text), &text);
    expect(404, specializer_pin(s, "mlp_out/m1", "0000000000000000", "r1", &text), &text);
    expect(409, specializer_pin(s, "head/m1", id, "r1", &text), &text);
    expect(400, specializer_pin(s, "head/m1", "", "r1", &text), &text);

    expect(200, specializer_pin(s, "mlp_out/m1", "eager", "r2", &text), &text);
    assert_false(specialized("mlp_out/m1"));                                    /* at once */
    expect(200, specializer_pin(s, "mlp_out/m1", "eager", "r3", &text), &text); /* idempotent */
    expect(409, specializer_rollback(s, "mlp_out/m1", NULL, "r4", &text), &text);
    stop(s);
    s = start(NULL, NULL); /* a pin survives a restart */
    WAIT_FOR(specialized("head/m1"));
    usleep(200000);
    assert_false(specialized("mlp_out/m1"));
    expect(200, specializer_pin(s, "mlp_out/m1", id, "r5", &text), &text);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->id, id) == 0); /* loaded and validated again */
    expect(200, specializer_unpin(s, "mlp_out/m1", "r6", &text), &text);
    expect(200, specializer_rollback(s, "mlp_out/m1", NULL, "r7", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    cJSON *o = json_of(200, specializer_trace(s, "mlp_out/m1", 0, false, &text), &text);
    char *printed = cJSON_PrintUnformatted(o);
    assert_non_null(strstr(printed, "\"who\":\"r7\""));
    assert_non_null(strstr(printed, "\"event\":\"pin\""));
    free(printed);
    cJSON_Delete(o);
    stop(s);
}

static void operators_disable_a_kernel_and_a_family_at_once(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(404, specializer_disable(s, "nonsense", "x", "r1", &text), &text);
    expect(409, specializer_disable(s, "eager", "x", "r1", &text), &text);
    expect(200, specializer_disable(s, id, "I do not trust it", "r1", &text), &text);
    assert_string_not_equal(serving("mlp_out/m1")->id, id);
    expect(200, specializer_disable(s, "head", "family", "r2", &text), &text);
    assert_false(specialized("head/m1"));
    usleep(300000);
    assert_false(specialized("head/m1"));
    expect(200, specializer_enable(s, "head", "r3", &text), &text);
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
    expect(200, specializer_set_mode(s, SPECIALIZER_RUN, "r1", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    expect(200, specializer_set_mode(s, SPECIALIZER_FREEZE, "r2", &text), &text);
    stop(s);
    s = start(NULL, NULL);
    assert_int_equal(atomic_load(&s->mode), SPECIALIZER_FREEZE);
    stop(s);
}

/* Frozen: winners serve and come back after a restart, nothing is built, benched or published. */
static void operators_freeze_what_serves_now(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    expect(200, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    expect(200, specializer_set_mode(s, SPECIALIZER_FREEZE, "r2", &text), &text);
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    uint64_t benched = atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_PASS]) +
                       atomic_load(&s->counts.stage[STAGE_BENCH][STAGE_REFUSE]);
    uint64_t published = atomic_load(&s->counts.published);
    int builds = atomic_load(&fake.builds);
    uint64_t looks = atomic_load(&s->counts.looks);
    WAIT_FOR(atomic_load(&s->counts.looks) > looks + 20); /* it is still audited */
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
    expect(200, specializer_set_mode(s, SPECIALIZER_RUN, "r3", &text), &text);
    WAIT_FOR(specialized("mlp_out/m1"));
    stop(s);
}

static void operators_cannot_thaw_what_the_configuration_froze(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start("--specializer-numerics", "frozen");
    WAIT_FOR(atomic_load(&s->doing) == DOING_FROZEN);
    expect(200, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    expect(409, specializer_set_mode(s, SPECIALIZER_RUN, "r2", &text), &text);
    expect(409, specializer_set_mode(s, SPECIALIZER_PAUSE, "r3", &text), &text);
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
    expect(200, specializer_set_mode(s, SPECIALIZER_FREEZE, "r1", &text), &text);
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    expect(200, specializer_rollback(s, "mlp_out/m1", "0123456789abcdef", "r2", &text), &text);
    assert_string_equal(serving("mlp_out/m1")->id, id); /* it is not there: nothing to do */
    expect(200, specializer_rollback(s, "mlp_out/m1", id, "r3", &text), &text);
    char then[24];
    snprintf(then, sizeof then, "%s", serving("mlp_out/m1")->id);
    assert_string_not_equal(then, id);
    expect(200, specializer_rollback(s, "mlp_out/m1", id, "r3", &text), &text);
    assert_string_equal(serving("mlp_out/m1")->id, then);
    stop(s);
}

static void operators_see_slots_kernels_metrics_and_the_dashboard(void **unused)
{
    (void)unused;
    char *text = NULL;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    cJSON *o = json_of(200, specializer_slots(s, "mlp_out/m1", &text), &text);
    assert_string_equal(cJSON_GetObjectItem(o, "state")->valuestring, "active");
    assert_true(cJSON_GetObjectItem(o, "gain_over_eager")->valuedouble > 0.2);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(o, "tried")) > 5);
    cJSON_Delete(o);
    expect(404, specializer_slots(s, "no/slot", &text), &text);
    o = json_of(200, specializer_slots(s, NULL, &text), &text);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(o, "slots")), 2);
    cJSON_Delete(o);
    o = json_of(200, specializer_kernels(s, serving("mlp_out/m1")->id, &text), &text);
    assert_non_null(strstr(cJSON_GetObjectItem(o, "source")->valuestring, "whet_kernel"));
    cJSON_Delete(o);
    expect(404, specializer_kernels(s, "1234", &text), &text);
    o = cJSON_Parse(text = specializer_json(s));
    assert_non_null(o);
    static const char *const keys[] = {"mode",     "doing",  "funnel",  "slots",   "trace",
                                       "numerics", "counts", "adviser", "refusals"};
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
                                        "whet_audit_looks_total",
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
    assert_int_equal(specializer_export(s, &text), 200);
    stop(s);
    fresh_store(NULL);
    s = start("--specializer-paused", "true");
    char *answer = NULL;
    cJSON *o = json_of(200, specializer_import(s, text, strlen(text), "r1", &answer), &answer);
    assert_true(cJSON_GetObjectItem(o, "imported")->valueint >= 1);
    cJSON_Delete(o);
    free(text);
    assert_false(specialized("mlp_out/m1")); /* nothing is believed */
    expect(400, specializer_import(s, "junk", 4, "r2", &answer), &answer);
    expect(200, specializer_set_mode(s, SPECIALIZER_RUN, "r3", &answer), &answer);
    int builds = atomic_load(&fake.builds);
    WAIT_FOR(strcmp(serving("mlp_out/m1")->name, name) == 0);
    assert_true(atomic_load(&fake.builds) - builds <= 24); /* it was among the first tried */
    stop(s);
}

#define TEST(f) cmocka_unit_test_setup(f, fresh_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(loop_publishes_a_fast_kernel_that_passed_and_then_sleeps),
        TEST(loop_restores_its_winners_after_a_restart_even_when_paused),
        TEST(loop_without_a_compiler_restores_and_searches_nothing),
        TEST(loop_under_bit_equal_proposes_only_points_that_declare_it),
        TEST(loop_waits_for_traffic_and_builds_nothing_without),
        TEST(loop_rolls_back_what_an_audit_finds_wrong_and_refuses_it_the_second_time),
        TEST(loop_gives_up_on_a_kernel_that_kills_the_process),
        TEST(loop_asks_a_language_model_about_its_slots),
        TEST(loop_goes_on_while_a_language_model_is_silent),
        TEST(loop_searches_a_tree_too),
        TEST(operators_pin_unpin_and_roll_back),
        TEST(operators_disable_a_kernel_and_a_family_at_once),
        TEST(operators_pause_resume_and_freeze),
        TEST(operators_freeze_what_serves_now),
        TEST(operators_cannot_thaw_what_the_configuration_froze),
        TEST(operators_may_repeat_a_rollback),
        TEST(operators_see_slots_kernels_metrics_and_the_dashboard),
        TEST(operators_carry_winners_to_another_store),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
