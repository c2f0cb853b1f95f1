/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/agent_loop.c: which texts of a store become candidates. On a model, a
 * machine and a dispatch table that pretend (fake_stages.h); nothing is built. */
#include "tests/unit/unit.h"

#include "specializer/agent/agent_store.h"
#include "specializer/agent_loop.c"
#include "tests/unit/specializer/fake_stages.h"

static char folder[] = "/tmp/whet-test-agent-loop-XXXXXX";
static int stores;

struct world {
    struct config config;
    struct specializer s;
    struct slot_search p;
};

static struct world *open_world(void)
{
    struct world *w = xcalloc(1, sizeof *w);
    struct err err;
    char path[80];
    char *argv[] = {(char *)"whet", (char *)"--specializer-agentic", (char *)"on", NULL};
    snprintf(path, sizeof path, "%s/%d.db", folder, stores++);
    assert_int_equal(config_parse(&w->config, 3, argv, &err), 0);
    w->s.config = &w->config;
    w->s.store = store_open(path, &err);
    assert_non_null(w->s.store);
    w->s.env.machine = &fake_machine;
    w->s.env.model = fake.model;
    w->s.keys.kernel_dir = folder;
    w->s.keys.object_dir = folder;
    snprintf(w->s.keys.env, sizeof w->s.keys.env, "0123456789abcdef");
    w->s.agent = agent_open(&w->config, w->s.store, NULL, w->s.keys.env, MACHINE_CPU);
    w->p.slot = dispatch_find(fake.dispatch, "mlp_out/m1");
    w->s.slot_search = &w->p;
    w->s.slot_searches = 1;
    pthread_mutex_init(&w->s.lock, NULL);
    return w;
}

static void close_world(struct world *w)
{
    agent_close(w->s.agent);
    store_close(w->s.store);
    config_free(&w->config);
    pthread_mutex_destroy(&w->s.lock);
    free(w);
}

/* The store has a text that waits for its trial. */
static void put(struct world *w, const char *text, const char *hash)
{
    struct err err;
    struct agent_node n = {.parent = -1, .state = AGENT_READY, .text = (char *)text};
    snprintf(n.source, sizeof n.source, "%s", hash);
    assert_int_equal(agent_store_put(w->s.store, w->s.keys.env, "mlp_out/m1", &n, &err), 0);
}

/* Its candidate, or NULL; caller frees. */
static struct candidate *tried(struct world *w)
{
    struct facts f;
    const struct agent_node *n;
    const char *slot;
    int32_t node;
    assert_true(point_of(&w->s, &w->p, &f, &(const struct template *){NULL}, &(struct point){{0}}));
    agent_move(w->s.agent, &(struct agent_view){.slot = "mlp_out/m1", .facts = &f});
    assert_int_equal(agent_ready(w->s.agent, &slot, &node, &n), 1);
    return candidate_of(&w->s, &w->p, node, n);
}

static void a_text_is_tried_under_its_own_hash(void **unused)
{
    (void)unused;
    struct world *w = open_world();
    const char *seed = agent_seed(MACHINE_CPU, REGION_MLP_OUT);
    char hash[17];
    agent_body_hash(seed, hash);
    put(w, seed, hash);
    struct candidate *c = tried(w);
    assert_non_null(c);
    assert_string_equal(c->body, hash);
    candidate_free(c);
    close_world(w);
}

/* Without a hash it would be no text to whoever loads it, and run where texts must not. */
static void a_text_with_another_hash_is_not_tried(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {"", "0123456789abcdef", "../../../../away"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct world *w = open_world();
        struct agent_tree t = {0};
        put(w, agent_seed(MACHINE_CPU, REGION_MLP_OUT), wrong[i]);
        assert_null(tried(w));
        assert_int_equal(agent_store_tree(w->s.store, w->s.keys.env, "mlp_out/m1", &t, NULL), 0);
        assert_int_equal(t.node[0].state, AGENT_FAILED);
        assert_string_equal(t.node[0].reason, "text: the store has another hash for it");
        tree_free(&t);
        close_world(w);
    }
}

/* The process was killed when its tree had not been told yet. */
static void a_text_that_serves_is_right(void **unused)
{
    (void)unused;
    struct world *w = open_world();
    struct agent_tree t = {0};
    struct record r;
    struct err err;
    const char *seed = agent_seed(MACHINE_CPU, REGION_MLP_OUT);
    char hash[17];
    agent_body_hash(seed, hash);
    put(w, seed, hash);
    struct candidate *c = tried(w);
    c->evidence.speed = 1.5;
    candidate_record(c, &r);
    assert_int_equal(store_move(w->s.store, &r, LIFE_ACTIVE, "for a test", NULL, &err), 0);
    candidate_free(c);
    assert_null(tried(w));
    assert_int_equal(agent_store_tree(w->s.store, w->s.keys.env, "mlp_out/m1", &t, NULL), 0);
    assert_true(t.node[0].state == AGENT_MEASURED && t.node[0].speed == 1.5);
    assert_int_equal(store_get(w->s.store, r.key, &r, NULL), 1);
    free(r.log);
    assert_int_equal(r.state, LIFE_ACTIVE);
    tree_free(&t);
    close_world(w);
}

static int open_all(void **unused)
{
    (void)unused;
    fake_make();
    return mkdtemp(folder) ? 0 : -1;
}

static int close_all(void **unused)
{
    (void)unused;
    char command[80];
    dispatch_close(fake.dispatch);
    model_close(fake.model);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_tried_under_its_own_hash),
        cmocka_unit_test(a_text_with_another_hash_is_not_tried),
        cmocka_unit_test(a_text_that_serves_is_right),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
