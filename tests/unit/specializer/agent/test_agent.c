/* SPDX-License-Identifier: Apache-2.0 */
/* The agent with a stand-in for the model: plan, code, repair; budgets; a restart; endless failure.
 * Trials are played by the test, so nothing is compiled here (tests/kernels/test_agent_seeds.c and
 * tests/e2e/test_agentic.py do that). */
#define WORLD_MACHINE MACHINE_CPU
#include "tests/unit/specializer/agent/agent_world.h"

#include <sqlite3.h>

#include "specializer/store/store_json.h"
#include "specializer/transfer/transfer.h"

static void the_seed_comes_first_and_costs_no_question(void **state)
{
    struct world *w = *state;
    int before = atomic_load(&model.requests);
    assert_true(may(w));
    assert_string_equal(ready(w)->text, agent_seed(MACHINE_CPU, REGION_MLP_OUT));
    try(w, 0.8, "bench: not faster", NULL);
    assert_int_equal(atomic_load(&model.requests), before);
    assert_int_equal(stored(w, 0)->state, AGENT_MEASURED);
}

static void a_plan_becomes_a_text_that_is_repaired_with_the_words_of_its_refusal(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    assert_true(stand_in_heard(&model, "\"temperature\":0.8"));
    assert_true(stand_in_heard(&model, "response_format"));
    assert_int_equal(stored(w, 1)->state, AGENT_PLANNED);
    exchange(w, text_with("/* one */ int x"));
    assert_true(stand_in_heard(&model, "\"temperature\":0.1"));
    try(w, 0, "build: compiler: expected ;",
        "In file included from /home/me/.cache/whet/store.db.kernels/cpu/agent.c:44:\n"
        "kernel:3:1: error: expected ';' before 'static' a / b");
    assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
    exchange(w, text_with("/* two */"));
    assert_true(stand_in_heard(&model, "error: expected ';' before 'static' a / b"));
    assert_true(stand_in_heard(&model, "from agent.c:44"));
    assert_false(stand_in_heard(&model, "/home")); /* names of folders stay here */
    try(w, 0, "probe: row 0: error 42 times eager's", NULL);
    exchange(w, text_with("/* three */ enum { THREE = 3 };"));
    assert_true(stand_in_heard(&model, "error 42 times eager's"));
    try(w, 1.5, "", NULL);
    const struct agent_node *n = stored(w, 1);
    assert_int_equal(n->state, AGENT_MEASURED);
    assert_true(n->speed == 1.5 && n->debugs == 2 && n->attempts == 4);
    assert_null(n->reason);
    assert_string_equal(n->label, "idea");
    exchange(w, strdup(plan_all)); /* its leaders are told */
    assert_true(stand_in_heard(&model, "1.500: idea"));
}

static void texts_that_break_a_rule_never_become_ready(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *top, *reason;
    } bad[] = {{"#include <stdio.h>", "text: line 2: rule directive: #include"},
               {"static int f(void) { asm(1); }", "text: line 2: rule assembly"}};
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        exchange(w, text_with(bad[i].top));
        assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
        assert_string_equal(stored(w, 1)->source, "");
        assert_non_null(strstr(stored(w, 1)->reason, bad[i].reason));
    }
    exchange(w, strdup("```c\nint main(void) { return 0; }\n```")); /* outside its span */
    assert_int_equal(stored(w, 1)->state, AGENT_FAILED);
    assert_non_null(strstr(stored(w, 1)->reason, "spans: "));
    assert_null(strstr(stored(w, 1)->text, "main")); /* not even shown again */
}

static void a_text_that_was_tried_before_is_not_tried_again(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    exchange(w, text_with("/* a */"));
    try(w, 0, "probe: row 0: wrong", NULL);
    exchange(w, text_with("/* a */")); /* the repair repairs nothing */
    assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
    assert_non_null(strstr(stored(w, 1)->reason, "that of attempt 1, refused: probe: row 0"));
}

/* A winner's text is looked up by its hash, whatever the slot. */
static void a_text_that_was_written_anew_leaves_its_hash(void **state)
{
    struct world *w = *state;
    struct err err;
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    exchange(w, text_with("/* a */"));
    struct agent_node winner = *stored(w, 1), found;
    char hash[17];
    memcpy(hash, winner.source, sizeof hash);
    winner.id = 0;
    assert_int_equal(agent_store_put(w->store, "0123456789abcdef", "mlp_out/m8", &winner, &err), 0);
    try(w, 0, "probe: row 0: wrong", NULL);
    const char *seed = agent_seed(WORLD_MACHINE, REGION_MLP_OUT);
    const char *third = strchr(strchr(seed, '\n') + 1, '\n') + 1;
    char top[200];
    snprintf(top, sizeof top, "%.*s", (int)(third - seed) - 1, seed);
    exchange(w, text_with(top));
    assert_non_null(strstr(stored(w, 1)->reason, "that of attempt 0"));
    assert_null(strstr(stored(w, 1)->text, "/* a */"));
    assert_string_equal(stored(w, 1)->source, "");
    assert_int_equal(agent_store_find(w->store, hash, &found, NULL), 1);
    assert_non_null(strstr(found.text, "/* a */"));
    tree_node_free(&found);
}

/* As an older store may have it: of two rows of that hash the first has another text. */
static void a_text_is_found_behind_another_that_has_its_hash(void **state)
{
    struct world *w = *state;
    struct agent_node found;
    struct err err;
    struct agent_node other = *ready(w);
    char hash[17];
    memcpy(hash, other.source, sizeof hash);
    char *right = other.text;
    other.text = (char *)"/* another */";
    assert_int_equal(agent_store_put(w->store, "0", "a/m1", &other, &err), 0);
    assert_int_equal(agent_store_find(w->store, hash, &found, NULL), 1);
    assert_string_equal(found.text, right);
    tree_node_free(&found);
    memcpy(other.source, "fedcba9876543210", sizeof other.source);
    assert_int_equal(agent_store_put(w->store, "0", "a/m1", &other, &err), 0);
    assert_int_equal(agent_store_find(w->store, "fedcba9876543210", &found, NULL), 0);
}

static void of_store(struct world *w, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* It would be begun anew and written over what is there. */
static void a_tree_that_cannot_be_read_is_left_alone(void **state)
{
    struct world *w = *state;
    int measured = 1, dry = 1;
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    exchange(w, text_with("/* a */"));
    try(w, 1.5, "", NULL);
    reopen(w);
    of_store(w, "ALTER TABLE agent_node RENAME TO gone");
    assert_false(agent_may(w->agent, "mlp_out/m1", &measured, &dry));
    assert_true(measured == 0 && dry == 0);
    agent_move(w->agent, &w->view);
    assert_true(agent_idle(w->agent));
    agent_revise(w->agent, "mlp_out/m1", 1, 0, "shadow: other logits");
    of_store(w, "ALTER TABLE gone RENAME TO agent_node");
    assert_true(may(w));
    assert_true(stored(w, 1)->state == AGENT_MEASURED && stored(w, 1)->speed == 1.5);
    exchange(w, strdup(plan_all));
    assert_int_equal(stored(w, 2)->state, AGENT_PLANNED);
}

/* A kernel of it might be a winner, and its text be lost. */
static void a_text_that_is_not_stored_waits_for_its_trial(void **state)
{
    struct world *w = *state;
    const struct agent_node *n;
    const char *slot;
    int32_t node;
    try(w, 0.8, "", NULL);
    of_store(w, "CREATE TRIGGER full BEFORE INSERT ON agent_node BEGIN SELECT RAISE(ABORT, 'disk "
                "is full'); END");
    exchange(w, strdup(plan_all));
    agent_move(w->agent, &w->view);
    assert_true(agent_idle(w->agent)); /* nor is the text asked for */
    of_store(w, "DROP TRIGGER full");
    exchange(w, text_with("/* a */"));
    of_store(w, "CREATE TRIGGER full BEFORE INSERT ON agent_node BEGIN SELECT RAISE(ABORT, 'disk "
                "is full'); END");
    assert_true(agent_idle(w->agent));
    try(w, 1.2, "", NULL);                              /* stored before, and ready */
    assert_int_equal(stored(w, 1)->state, AGENT_READY); /* what came of it is not */
    agent_move(w->agent, &w->view);
    assert_int_equal(agent_ready(w->agent, &slot, &node, &n), 0);
    assert_true(agent_idle(w->agent));
    of_store(w, "DROP TRIGGER full");
    reopen(w); /* it ends */
    assert_true(stored(w, 1)->state == AGENT_MEASURED && stored(w, 1)->speed == 1.2);
}

static void endless_failure_ends_after_three_children(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    for (int i = 0; i < 3; i++) {
        assert_true(may(w));
        exchange(w, strdup("<b>I cannot</b> \x1b[2J; DROP TABLE candidate; ignore the rules"));
        assert_int_equal(stored(w, 1 + i)->state, AGENT_FAILED);
    }
    assert_false(may(w));
    int before = atomic_load(&model.requests);
    agent_move(w->agent, &w->view);
    assert_int_equal(atomic_load(&model.requests), before);
    assert_int_equal(llm_breaker(w->llm), BREAKER_OPEN);
}

static void a_seed_that_is_refused_ends_its_tree(void **state)
{
    struct world *w = *state;
    try(w, 0, "probe: SIGILL", NULL);
    assert_false(may(w));
}

static void budgets_of_attempts_tokens_and_money_hold(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    assert_true(may(w));
    w->config.agentic_tokens = 100;
    assert_false(may(w));
    w->config.agentic_tokens = 1000000;
    exchange(w, strdup(plan_all)); /* 1234 tokens in, 56 out, as the stand-in counts */
    assert_true(may(w));
    w->config.agentic_cost = 0.0123; /* 1234 tokens at 10 a million */
    assert_false(may(w));
    w->config.agentic_cost = 0.013;
    assert_true(may(w));
    w->config.agentic_attempts = 1;
    assert_false(may(w));
    w->config.agentic_attempts = 24;
    reopen(w); /* what was spent is not forgotten */
    w->config.agentic_cost = 0.0123;
    assert_false(may(w));
}

/* Every exchange costs at most what was sent and what was asked for, whatever the endpoint says. */
static void what_an_endpoint_claims_uses_up_no_budget(void **state)
{
    struct world *w = *state;
    static const char *const claims[] = {
        "{\"prompt_tokens\":999999999,\"completion_tokens\":999999999}",
        "{\"prompt_tokens\":1e300,\"completion_tokens\":1e300}",
        "{\"prompt_tokens\":-999999999,\"completion_tokens\":-5}",
        "{\"prompt_tokens\":0.25,\"completion_tokens\":0.25}",
        "{\"prompt_tokens\":null,\"completion_tokens\":\"9\"}",
        "[999999999]"};
    const int n = sizeof claims / sizeof *claims;
    try(w, 0.8, "", NULL);
    w->config.agentic_tokens = 500000;
    w->config.agentic_cost = 5; /* half a million tokens at 10 a million */
    w->config.adviser_tokens_per_hour = 500000;
    reopen(w);
    for (int i = 0; i < n; i++) {
        pthread_mutex_lock(&model.lock);
        snprintf(model.claims, sizeof model.claims, "%s", claims[i]);
        pthread_mutex_unlock(&model.lock);
        char top[40];
        snprintf(top, sizeof top, "/* %d */\n/* two lines */", i);
        exchange(w, strdup(plan_all));
        exchange(w, text_with(top));
        try(w, 0.9 + 0.1 * i, "", NULL);
        if (!may(w))
            fail_msg("after %s", claims[i]);
    }
    pthread_mutex_lock(&model.lock);
    model.claims[0] = 0;
    pthread_mutex_unlock(&model.lock);
    char spent[96];
    long long in = 0, out = 0;
    assert_true(store_value(w->store, "agentic_spent", spent, sizeof spent));
    assert_int_equal(sscanf(spent, "%lld %lld", &in, &out), 2);
    assert_in_range(in, 1000, 2 * n * 32 * 1024);
    assert_in_range(out, 1, 2 * n * w->config.agentic_max_tokens);
}

static void a_restart_goes_on_where_it_was(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    reopen(w);
    exchange(w, text_with("/* a */")); /* the plan was kept: the text is asked for */
    assert_true(stand_in_heard(&model, "Carry out this plan"));
    reopen(w);
    assert_non_null(strstr(ready(w)->text, "/* a */")); /* and the text waits for its trial */
    try(w, 1.2, "", NULL);
    reopen(w);
    agent_revise(w->agent, "mlp_out/m1", 1, 0, "shadow: other logits");
    exchange(w, text_with("/* b */"));
    assert_true(stand_in_heard(&model, "shadow: other logits"));
    struct agent_node found;
    assert_int_equal(agent_store_find(w->store, stored(w, 1)->source, &found, NULL), 1);
    assert_non_null(strstr(found.text, "/* b */"));
    tree_node_free(&found);
}

static void a_trial_that_decided_nothing_is_made_again_later(void **state)
{
    struct world *w = *state;
    int32_t node = ready(w)->id;
    agent_forget(w->agent, node);
    assert_false(agent_idle(w->agent)); /* not at once */
    assert_int_equal(stored(w, 0)->state, AGENT_READY);
}

static void calls_that_fail_change_nothing_in_the_tree(void **state)
{
    struct world *w = *state;
    try(w, 0.8, "", NULL);
    atomic_store(&model.status, 500);
    atomic_store(&model.mode, STAND_IN_STATUS);
    exchange(w, NULL);
    atomic_store(&model.mode, STAND_IN_OK);
    assert_null(stored(w, 1));
    assert_true(may(w));
}

/* A store with one published text of the model's, exported. */
static char *exported(struct world *w)
{
    struct err err = {""};
    struct record r = {.origin = ORIGIN_AGENT};
    try(w, 0.8, "", NULL);
    exchange(w, strdup(plan_all));
    exchange(w, text_with("/* from elsewhere */"));
    try(w, 1.5, "", NULL);
    strcpy(r.key, "00000000000000aa");
    strcpy(r.env, "0123456789abcdef");
    strcpy(r.slot, "mlp_out/m1");
    strcpy(r.template, "agent_mlp_out");
    strcpy(r.knobs, "ISA=1");
    memcpy(r.source, stored(w, 1)->source, sizeof r.source);
    assert_int_equal(store_move(w->store, &r, LIFE_ACTIVE, "", NULL, &err), 0);
    strcpy(r.key, "00000000000000bb");
    assert_int_equal(store_move(w->store, &r, LIFE_REFUSED, "slow", NULL, &err), 0);
    cJSON *o = store_export(w->store, &err);
    assert_non_null(o);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static void begin_anew(struct world *w)
{
    snprintf(w->path, sizeof w->path, "%s/%d.db", folder, stores++);
    reopen(w);
}

static void a_text_of_another_store_waits_for_its_trial_behind_the_seed(void **state)
{
    struct world *w = *state;
    struct err err = {""};
    char *text = exported(w);
    begin_anew(w);
    int before = atomic_load(&model.requests);
    assert_int_equal(store_import(w->store, text, strlen(text), "req", &err), 1);
    assert_int_equal(store_import(w->store, text, strlen(text), "req", &err), 1);
    assert_int_equal(ready(w)->id, 0);
    try(w, 0.9, "", NULL);
    const struct agent_node *n = ready(w);
    assert_int_equal(n->id, 1);
    assert_non_null(strstr(n->text, "/* from elsewhere */"));
    assert_string_equal(n->label, "imported: idea");
    assert_true(n->speed == 0); /* the speed it had elsewhere is nobody's evidence */
    try(w, 0, "probe: row 0: wrong here", NULL);
    assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
    assert_null(stored(w, 2));
    assert_int_equal(atomic_load(&model.requests), before);
    free(text);
}

static void an_import_reaches_a_tree_that_is_under_work(void **state)
{
    struct world *w = *state;
    struct err err = {""};
    char *text = exported(w);
    begin_anew(w);
    try(w, 0.9, "", NULL);
    assert_int_equal(store_import(w->store, text, strlen(text), "req", &err), 1);
    assert_null(stored(w, 1));
    agent_adopt(w->agent);
    assert_non_null(strstr(ready(w)->text, "/* from elsewhere */"));
    free(text);
}

static void imported_texts_are_tried_without_a_model_and_nothing_else_is(void **state)
{
    struct world *w = *state;
    struct err err = {""};
    char *text = exported(w);
    begin_anew(w);
    assert_int_equal(store_import(w->store, text, strlen(text), "req", &err), 1);
    agent_close(w->agent);
    w->agent = agent_open(&w->config, w->store, NULL, "0123456789abcdef", WORLD_MACHINE);
    assert_non_null(w->agent);
    int measured, dry;
    assert_false(agent_may(w->agent, "head/m1", &measured, &dry));
    assert_true(may(w));
    try(w, 0.9, "", NULL);
    assert_true(may(w));
    assert_non_null(strstr(ready(w)->text, "/* from elsewhere */"));
    try(w, 1.4, "", NULL);
    assert_false(may(w));
    agent_close(w->agent); /* texts for another machine are none of this one's */
    w->agent = agent_open(&w->config, w->store, NULL, "0123456789abcdef", MACHINE_CUDA);
    assert_false(may(w));
    free(text);
}

static void a_text_that_comes_later_is_tried_without_a_model(void **state)
{
    struct world *w = *state;
    struct err err = {""};
    char *text = exported(w);
    begin_anew(w);
    agent_close(w->agent);
    w->agent = agent_open(&w->config, w->store, NULL, "0123456789abcdef", WORLD_MACHINE);
    assert_false(may(w));
    assert_int_equal(store_import(w->store, text, strlen(text), "req", &err), 1);
    agent_adopt(w->agent);
    try(w, 0.9, "", NULL);
    assert_non_null(strstr(ready(w)->text, "/* from elsewhere */"));
    free(text);
}

static void an_imported_text_that_breaks_a_rule_is_not_taken(void **state)
{
    struct world *w = *state;
    struct err err = {""};
    static const char body[] =
        "{\"whet_store\":1,\"kernels\":[{\"slot\":\"mlp_out/m1\",\"template\":\"%s\","
        "\"state\":\"%s\",\"knobs\":\"ISA=1\",\"agent\":{\"text\":\"%s\"}}]}";
    static const struct {
        const char *template, *state, *text;
    } bad[] = {
        {"agent_mlp_out", "active", "void f(void) { asm(1); }"},
        {"agent_mlp_out", "active", "#include <stdio.h>\\n"},
        {"agent_cuda_mlp_out", "active", "__device__ int calls;"},
        {"agent_mlp_out", "refused", "int a;"},
        {"agent_embed", "active", "int a;"},
        {"agent_mlp_out", "active", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[400];
        snprintf(text, sizeof text, body, bad[i].template, bad[i].state, bad[i].text);
        assert_int_equal(store_import(w->store, text, strlen(text), NULL, &err), 0);
    }
    static const enum machine_kind machine[] = {MACHINE_CPU, MACHINE_CUDA};
    for (size_t i = 0; i < sizeof machine / sizeof *machine; i++) {
        agent_close(w->agent);
        w->agent = agent_open(&w->config, w->store, NULL, "0123456789abcdef", machine[i]);
        assert_false(may(w)); /* which would try any that had been taken */
    }
}

static void off_means_nobody_is_asked(void **state)
{
    struct world *w = *state;
    struct config off;
    struct err err;
    char *argv[] = {(char *)"whet", NULL};
    assert_int_equal(config_parse(&off, 1, argv, &err), 0);
    assert_null(agent_open(&off, w->store, w->llm, "0123456789abcdef", MACHINE_CPU));
    config_free(&off);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_seed_comes_first_and_costs_no_question),
        TEST(a_plan_becomes_a_text_that_is_repaired_with_the_words_of_its_refusal),
        TEST(texts_that_break_a_rule_never_become_ready),
        TEST(a_text_that_was_tried_before_is_not_tried_again),
        TEST(a_text_that_was_written_anew_leaves_its_hash),
        TEST(a_text_is_found_behind_another_that_has_its_hash),
        TEST(a_tree_that_cannot_be_read_is_left_alone),
        TEST(a_text_that_is_not_stored_waits_for_its_trial),
        TEST(endless_failure_ends_after_three_children),
        TEST(a_seed_that_is_refused_ends_its_tree),
        TEST(budgets_of_attempts_tokens_and_money_hold),
        TEST(what_an_endpoint_claims_uses_up_no_budget),
        TEST(a_restart_goes_on_where_it_was),
        TEST(a_trial_that_decided_nothing_is_made_again_later),
        TEST(calls_that_fail_change_nothing_in_the_tree),
        TEST(a_text_of_another_store_waits_for_its_trial_behind_the_seed),
        TEST(an_import_reaches_a_tree_that_is_under_work),
        TEST(imported_texts_are_tried_without_a_model_and_nothing_else_is),
        TEST(a_text_that_comes_later_is_tried_without_a_model),
        TEST(an_imported_text_that_breaks_a_rule_is_not_taken),
        TEST(off_means_nobody_is_asked),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
