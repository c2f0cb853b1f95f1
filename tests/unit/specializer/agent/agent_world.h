/* SPDX-License-Identifier: Apache-2.0 */
/* agent_world.h - an agent with a stand-in for its model: a store, a line, a tree for one slot
 * (mlp_out/m1), and the moves that its tests are made of. Trials are played by the test. Included
 * by test_agent.c (texts for the CPU) and test_agent_cuda.c, which define WORLD_MACHINE before. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_AGENT_AGENT_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_AGENT_AGENT_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "config/clock.h"
#include "specializer/adviser/llm.h"
#include "specializer/agent/agent.h"
#include "specializer/agent/agent_store.h"
#include "specializer/store/store.h"
#include "tests/unit/specializer/stand_in.h"

static const struct machine world_machine = {
    .device = "test", .kind = WORLD_MACHINE, .sms = 132, .target = "sm_90a"};
static struct stand_in model;
static char folder[] = "/tmp/whet-test-agent-XXXXXX";
static int stores;

struct world {
    struct config config;
    struct store *store;
    struct llm *llm;
    struct agent *agent;
    char path[80];
    struct facts facts;
    struct agent_view view;
};

static const char plan_all[] = "{\"version\":1,\"label\":\"idea\",\"plan\":\"do it\",\"spans\":[{"
                               "\"first\":1,\"last\":2}]}";

/* A reply with the seed's third line onwards as it is and `top` in the span. */
__attribute__((unused)) static char *text_with(const char *top)
{
    const char *seed = agent_seed(WORLD_MACHINE, REGION_MLP_OUT),
               *rest = strchr(strchr(seed, '\n') + 1, '\n') + 1;
    char *out = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&out, &n);
    fprintf(f, "```c\n// [span 1]\n%s\n// [end 1]\n%s```", top, rest);
    fclose(f);
    return out;
}

static void reopen(struct world *w)
{
    struct err err;
    agent_close(w->agent);
    llm_close(w->llm);
    store_close(w->store);
    w->store = store_open(w->path, &err);
    w->llm = llm_open(&w->config, w->store, &err);
    assert_non_null(w->llm);
    w->agent = agent_open(&w->config, w->store, w->llm, "0123456789abcdef", WORLD_MACHINE);
    assert_non_null(w->agent);
}

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    char url[80];
    struct err err = {""};
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", model.port);
    snprintf(w->path, sizeof w->path, "%s/%d.db", folder, stores++);
    char *argv[] = {(char *)"whet",
                    (char *)"--specializer-agentic",
                    (char *)"on",
                    (char *)"--adviser-url",
                    url,
                    (char *)"--agentic-price-in",
                    (char *)"10",
                    (char *)"--adviser-calls-per-hour",
                    (char *)"1000",
                    NULL};
    if (config_parse(&w->config, 9, argv, &err) != 0)
        print_error("%s\n", err.msg);
    w->facts = (struct facts){.REGION = REGION_MLP_OUT,
                              .M_MAX = 1,
                              .HIDDEN = 64,
                              .HEADS = 1,
                              .KV_HEADS = 1,
                              .HEAD_DIM = 64,
                              .FFN = 128,
                              .WTYPE = DTYPE_Q4_1,
                              .SMS = WORLD_MACHINE == MACHINE_CUDA ? 132 : 0};
    w->view = (struct agent_view){.slot = "mlp_out/m1",
                                  .facts = &w->facts,
                                  .m_from = 1,
                                  .threads = 1,
                                  .machine = &world_machine,
                                  .incumbent = "eager"};
    reopen(w);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    agent_close(w->agent);
    llm_close(w->llm);
    store_close(w->store);
    config_free(&w->config);
    free(w);
    return 0;
}

__attribute__((unused)) static bool may(struct world *w)
{
    int measured, dry;
    return agent_may(w->agent, "mlp_out/m1", &measured, &dry);
}

/* One question, answered with `content`. */
static void exchange(struct world *w, char *content)
{
    stand_in_say(&model, content);
    assert_true(agent_idle(w->agent));
    int before = atomic_load(&model.requests);
    agent_move(w->agent, &w->view);
    assert_true(llm_wait(w->llm, 300)); /* a limit, never reached */
    agent_poll(w->agent);
    assert_int_equal(atomic_load(&model.requests), before + 1);
}

/* The text that waits for its trial; moves on to it if need be. */
static const struct agent_node *ready(struct world *w)
{
    const struct agent_node *n;
    const char *slot;
    int32_t node;
    if (!agent_ready(w->agent, &slot, &node, &n))
        agent_move(w->agent, &w->view);
    assert_int_equal(agent_ready(w->agent, &slot, &node, &n), 1);
    assert_string_equal(slot, "mlp_out/m1");
    assert_int_equal(n->id, node);
    return n;
}

__attribute__((unused)) static void try(struct world *w, double speed, const char *reason,
                                        const char *log)
{
    agent_learn(w->agent, ready(w)->id, speed, reason, log);
}

static const struct agent_node *stored(struct world *w, int id)
{
    static struct agent_tree t;
    tree_free(&t);
    assert_int_equal(agent_store_tree(w->store, "0123456789abcdef", "mlp_out/m1", &t, NULL), 0);
    return id < t.nodes ? &t.node[id] : NULL;
}

static int open_all(void **unused)
{
    (void)unused;
    setenv("no_proxy", "127.0.0.1", 1);
    stand_in_open(&model);
    return mkdtemp(folder) ? 0 : -1;
}

static int close_all(void **unused)
{
    (void)unused;
    char command[80];
    stand_in_close(&model);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)

#endif
