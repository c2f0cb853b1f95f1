/* SPDX-License-Identifier: Apache-2.0 */
/* The agent on a GPU, as far as that goes without one: a stand-in for the model writes CUDA, and
 * every text that obeys the rules is built for an H200 by the real build stage, in its frame, by
 * NVRTC in a child. What a cubin computes is the probe's business, which the tests play. */
#define WORLD_MACHINE MACHINE_CUDA
#include "tests/unit/specializer/agent/agent_world.h"

#include "specializer/agent/agent_source.h"
#include "specializer/build/cubin.h"
#include "tests/kernels/shop.h"

static struct shop shop;

/* Builds the text that waits: its launch facts, or the refusal goes back to the model. */
static bool trial(struct world *w, struct cubin_facts *facts)
{
    const struct agent_node *n = ready(w);
    struct candidate *c;
    struct err err = {""};
    const char *caught = shop_build_text(&shop, REGION_MLP_OUT, 1, n->text, &c, &err);
    if (caught) {
        assert_string_equal(caught, "build");
        agent_learn(w->agent, n->id, 0, err.msg, NULL);
        return false;
    }
    assert_int_equal(cubin_inspect(c->object, facts, &err), 0);
    candidate_free(c);
    return true;
}

static void seed_and_plan(struct world *w)
{
    try(w, 0.5, "", NULL);
    exchange(w, strdup(plan_all));
}

static void the_model_is_told_the_contract_of_the_gpu(void **state)
{
    struct world *w = *state;
    seed_and_plan(w);
    assert_true(stand_in_heard(&model, "You write one CUDA kernel"));
    assert_true(stand_in_heard(&model, "Contract, version 4."));
    assert_true(stand_in_heard(&model, "struct cuda_out_args {"));
    assert_true(stand_in_heard(&model, "for sm_90a"));
    assert_true(stand_in_heard(&model, "SMS=132"));
    assert_true(stand_in_heard(&model, "multiprocessors\\\":132"));
    assert_false(stand_in_heard(&model, "immintrin"));
    assert_false(stand_in_heard(&model, "{{"));
}

static void a_good_text_becomes_a_cubin_in_its_frame(void **state)
{
    struct world *w = *state;
    struct cubin_facts f;
    seed_and_plan(w);
    exchange(w, text_with("#define THREADS 512"));
    assert_true(trial(w, &f));
    assert_int_equal(f.info.region, REGION_MLP_OUT);
    assert_int_equal(f.info.launch[0].threads, 512);
    assert_int_equal(f.info.launch[0].grid[0], 576 / 16);
    assert_int_equal(f.info.launch[0].pdl, 1);
    try(w, 1.5, "", NULL);
    assert_int_equal(stored(w, 1)->state, AGENT_MEASURED);
}

static void a_compile_error_is_repaired_with_the_line_that_nvrtc_names(void **state)
{
    struct world *w = *state;
    struct cubin_facts f;
    seed_and_plan(w);
    exchange(w, text_with("#define THREADS 256\nenum { N = undefined_name };"));
    assert_false(trial(w, &f));
    assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
    exchange(w, text_with("#define THREADS 512"));
    assert_true(stand_in_heard(&model, "kernel(3): error: identifier \\\"undefined_name\\\""));
    assert_false(stand_in_heard(&model, shop.dir));
    assert_true(trial(w, &f));
}

static void a_wrong_text_is_repaired_with_the_words_of_the_probe(void **state)
{
    struct world *w = *state;
    struct cubin_facts f;
    seed_and_plan(w);
    exchange(w, text_with("#define THREADS 32"));
    assert_true(trial(w, &f));
    try(w, 0, "probe: m=1 late: row 0: 576 of 576 values not written or not finite", NULL);
    exchange(w, text_with("#define THREADS 512"));
    assert_true(stand_in_heard(&model, "m=1 late: row 0: 576 of 576"));
    assert_true(trial(w, &f));
}

static void what_the_cubin_may_not_say_is_told(void **state)
{
    struct world *w = *state;
    struct cubin_facts f;
    seed_and_plan(w);
    exchange(w, text_with("#define THREADS 256\n#define WORK_BYTES (1ll << 40)"));
    assert_false(trial(w, &f));
    exchange(w, text_with("#define THREADS 2048"));
    assert_true(stand_in_heard(&model, "1099511627776 bytes to work in"));
    assert_false(trial(w, &f));
    exchange(w, text_with("#define THREADS 512"));
    assert_true(stand_in_heard(&model, "whole warps, at most 32"));
    assert_true(trial(w, &f));
}

static void forbidden_words_never_reach_the_compiler(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *top, *reason;
    } bad[] = {
        {"#define THREADS 256\n__device__ int calls;", "text: line 3: rule state: a __device__"},
        {"#define THREADS 256\n#include <cuda.h>", "text: line 3: rule directive: #include"},
    };
    seed_and_plan(w);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        exchange(w, text_with(bad[i].top));
        assert_int_equal(stored(w, 1)->state, AGENT_BROKEN);
        assert_string_equal(stored(w, 1)->source, "");
        assert_non_null(strstr(stored(w, 1)->reason, bad[i].reason));
    }
    exchange(w, text_with("#define THREADS 256\n__device__ void f() { asm(\"trap;\"); }"));
    assert_int_equal(stored(w, 1)->state, AGENT_FAILED);
    assert_non_null(strstr(stored(w, 1)->reason, "rule assembly"));
}

static const struct agent_node *newest(struct world *w)
{
    int n = 0;
    while (stored(w, n))
        n++;
    return stored(w, n - 1);
}

static void endless_failure_ends_within_the_budget(void **state)
{
    struct world *w = *state;
    struct cubin_facts f;
    char top[80];
    int before = atomic_load(&model.requests);
    try(w, 0.5, "", NULL);
    w->config.agentic_attempts = 8;
    for (int i = 0; may(w); i++) {
        const struct agent_node *n = newest(w);
        snprintf(top, sizeof top, "#define THREADS 256\nenum { N%d = undefined_name };", i);
        if (n->id == 0 || n->state == AGENT_FAILED)
            exchange(w, strdup(plan_all));
        else if (n->state == AGENT_READY)
            assert_false(trial(w, &f));
        else
            exchange(w, text_with(top));
    }
    assert_int_equal(atomic_load(&model.requests) - before, 8); /* plan and three texts, twice */
    assert_int_equal(newest(w)->id, 2);
    assert_int_equal(newest(w)->state, AGENT_FAILED);
}

static int open_shop(void **unused)
{
    struct err err = {""};
    const char *program = getenv("WHET_BINARY");
    if (!program || shop_open_cuda(&shop, program, &err) != 0) {
        print_error("%s\n", program ? err.msg : "WHET_BINARY is not set");
        return -1;
    }
    return open_all(unused);
}

static int close_shop(void **unused)
{
    shop_close(&shop);
    return close_all(unused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_model_is_told_the_contract_of_the_gpu),
        TEST(a_good_text_becomes_a_cubin_in_its_frame),
        TEST(a_compile_error_is_repaired_with_the_line_that_nvrtc_names),
        TEST(a_wrong_text_is_repaired_with_the_words_of_the_probe),
        TEST(what_the_cubin_may_not_say_is_told),
        TEST(forbidden_words_never_reach_the_compiler),
        TEST(endless_failure_ends_within_the_budget),
    };
    return cmocka_run_group_tests(tests, open_shop, close_shop);
}
