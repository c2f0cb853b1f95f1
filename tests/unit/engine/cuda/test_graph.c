/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/graph.c: which wide steps are to become graphs. No builder thread runs, so
 * what was asked for stays in the builder. */
#include "tests/unit/unit.h"

#include <stdlib.h>

#include "engine/cuda/graph.c"
#include "engine/cuda/ops.h"

static struct kernel eager[REGION_NODES], other;

static struct kernel_choice prompt(int32_t m, int32_t tiles)
{
    struct kernel_choice c = {.m = m, .rows = 1, .context = 256, .tiles = tiles};
    for (int r = 0; r < REGION_NODES; r++)
        c.kernel[r] = &eager[r];
    return c;
}

static int open_rig(void **state)
{
    struct backend *b = xcalloc(1, sizeof *b);
    pthread_mutex_init(&b->builder.lock, NULL);
    pthread_cond_init(&b->builder.wake, NULL);
    *state = b;
    return 0;
}

static int close_rig(void **state)
{
    free(*state);
    return 0;
}

static bool asked(struct backend *b)
{
    bool was = b->builder.cell != NULL;
    if (was)
        b->builder.cell->asked = false;
    b->builder.cell = NULL;
    return was;
}

static void a_wide_step_is_asked_for_when_it_has_come_three_times(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = prompt(2048, 32);
    for (int i = 1; i <= 3; i++) {
        assert_null(graph_get_wide(b, &c));
        assert_int_equal(asked(b), i == 3);
    }
}

static void steps_that_all_differ_never_are(void **state)
{
    struct backend *b = *state;
    for (int i = 0; i < 200; i++) {
        struct kernel_choice c = prompt(128 + 64 * (i % 30), 2 + i % 17);
        assert_null(graph_get_wide(b, &c));
        assert_false(asked(b));
    }
}

/* A canary's steps and those beside them are alike; each kind needs a graph of its own. */
static void kernels_that_alternate_do_not_start_the_count_again(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = prompt(2048, 32), k = c;
    k.kernel[REGION_MLP_IN] = &other;
    graph_get_wide(b, &c);
    graph_get_wide(b, &k);
    assert_false(asked(b));
    graph_get_wide(b, &c);
    assert_true(asked(b));
}

static void only_the_very_same_graph_serves_a_wide_step(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = prompt(2048, 32), mixed = c, k = c;
    struct cell *cell = graph_cell(b, &c);
    cell->variant[1] = (struct variant){.choice = c, .exec = (cudaGraphExec_t)&other};
    assert_ptr_equal(graph_get_wide(b, &c), &cell->variant[1]);
    assert_true(graph_known(b, &c));
    k.kernel[REGION_MLP_IN] = &other;
    assert_null(graph_get_wide(b, &k)); /* not even one with eager in its place */
    mixed.tiles = 24;
    mixed.singles = 8; /* the same cell */
    assert_ptr_equal(graph_cell(b, &mixed), cell);
    assert_null(graph_get_wide(b, &mixed));
    assert_false(graph_known(b, &mixed));
}

/* cudaGraphExecUpdate() would leave a node's cluster as it was. */
static void an_executable_is_not_updated_to_other_clusters(void **state)
{
    struct loaded plain = {.info = {.launches = 1, .launch = {{.pdl = 1, .cluster = 1}}}};
    struct loaded again = plain, pairs = plain, edge = plain, twice = plain, algorithm = {0};
    struct kernel k[] = {{.backend = &plain}, {.backend = &again}, {.backend = &pairs},
                         {.backend = &edge},  {.backend = &twice}, {.backend = &algorithm}};
    struct kernel_choice c = prompt(64, 0), d = c;
    (void)state;
    pairs.info.launch[0].cluster = 2;
    edge.info.launch[0].pdl = 0;
    twice.info.launches = 2;
    algorithm.lt = (struct lt *)&plain; /* one */
    assert_true(updatable(&c, &d));
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            c.kernel[REGION_ATTN] = &k[i];
            d.kernel[REGION_ATTN] = &k[j];
            assert_int_equal(updatable(&c, &d), i == j || (i < 2 && j < 2));
        }
    c.kernel[REGION_ATTN] = &eager[REGION_ATTN]; /* the library may choose clusters */
    assert_false(updatable(&c, &d));
    d = c;
    d.context = 512;
    assert_true(updatable(&c, &d));
    d.rows = 2;
    assert_false(updatable(&c, &d));
    d.rows = c.rows;
    d.singles = 3; /* one node more */
    assert_false(updatable(&c, &d));
}

/* Steps of one token in each sequence; `k` in one slot. */
static struct kernel_choice decodes(const struct kernel *k, bool trial)
{
    struct kernel_choice c = prompt(1, 0);
    c.decode = true;
    c.kernel[REGION_MLP_IN] = k;
    c.trial = trial;
    return c;
}

static void a_wide_step_of_decodes_is_asked_for_when_it_comes_again(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = decodes(&other, false), more;
    c.m = c.rows = 256;
    assert_null(graph_get_wide(b, &c));
    assert_false(asked(b));
    assert_null(graph_get_wide(b, &c));
    assert_true(asked(b));
    more = c;
    more.m = more.rows = 320;
    assert_ptr_not_equal(graph_cell(b, &more), graph_cell(b, &c));
    more = c;
    more.context = 1024;
    assert_ptr_not_equal(graph_cell(b, &more), graph_cell(b, &c));
    more = c;
    more.decode = false;
    assert_ptr_not_equal(graph_cell(b, &more), graph_cell(b, &c));
    for (int i = 0; i < CELLS; i++) /* each is found when kernels are unloaded */
        for (int n = 0; n < i; n++)
            assert_ptr_not_equal(cell_at(b, i), cell_at(b, n));
}

static struct loaded code[] = {{.number = 1}, {.number = 2}, {.number = 3}};
static struct kernel before = {.region = REGION_MLP_IN, .backend = &code[0]};
static struct kernel candidate = {.region = REGION_MLP_IN, .backend = &code[1]};
static struct kernel better = {.region = REGION_MLP_IN, .backend = &code[2]};

/* In a cell that has no other graph yet: or a refused kernel would serve there. */
static void a_canarys_graph_stands_in_for_no_other(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = decodes(&better, false), k = decodes(&candidate, true);
    struct cell *cell = graph_cell(b, &c);
    cell->variant[2] = (struct variant){.choice = k, .exec = (cudaGraphExec_t)&other};
    assert_null(graph_get(b, &c));
    assert_true(asked(b));
    assert_ptr_equal(graph_get(b, &k), &cell->variant[2]);
    assert_null(graph_get(b, &c));
}

static void it_serves_once_its_kernel_is_in_the_slot(void **state)
{
    struct backend *b = *state;
    struct kernel_choice k = decodes(&candidate, true), published = decodes(&candidate, false);
    struct kernel_choice next = decodes(&better, false);
    struct cell *cell = graph_cell(b, &k);
    cell->variant[2] = (struct variant){.choice = k, .exec = (cudaGraphExec_t)&other};
    assert_ptr_equal(graph_get(b, &published), &cell->variant[2]);
    assert_false(asked(b));
    /* and then stands in while the next one's is made */
    assert_ptr_equal(graph_get(b, &next), &cell->variant[2]);
    assert_true(asked(b));
}

/* All ranks run a sum with the same kernel, so a graph with another one is never run for it. */
static void a_graph_has_its_kernel_of_reduce_and_no_other(void **state)
{
    struct backend *b = *state;
    static struct loaded of[] = {{.number = 4}, {.number = 5}};
    static struct kernel one = {.region = REGION_REDUCE, .backend = &of[0]};
    static struct kernel two = {.region = REGION_REDUCE, .backend = &of[1]};
    struct collective world = {NULL, 0, 2};
    struct kernel_choice c = decodes(&candidate, false), next = c;
    struct cell *cell = graph_cell(b, &c);
    c.kernel[REGION_REDUCE] = &one;
    next.kernel[REGION_REDUCE] = &two;
    cell->variant[2] = (struct variant){.choice = c, .exec = (cudaGraphExec_t)&other};
    assert_ptr_equal(graph_get(b, &c), &cell->variant[2]);
    assert_ptr_equal(graph_get(b, &next), &cell->variant[2]); /* a rank alone: until it is made */
    assert_true(asked(b));
    b->options.collective = &world;
    assert_null(graph_get(b, &next));
    assert_true(graph_uses(b, &one, false));
    assert_true(updatable(&c, &next));
    of[0].info.launches = 1;
    assert_false(updatable(&c, &next));
    b->options.collective = NULL;
}

/* An operator's rollback: the kernel that leaves may be wrong. */
static void a_kernel_does_not_stand_in_for_the_one_before_it(void **state)
{
    struct backend *b = *state;
    struct kernel_choice now = decodes(&candidate, false), back = decodes(&before, false);
    struct cell *cell = graph_cell(b, &now);
    cell->variant[2] = (struct variant){.choice = now, .exec = (cudaGraphExec_t)&other};
    assert_ptr_equal(graph_get(b, &now), &cell->variant[2]);
    assert_null(graph_get(b, &back));
    assert_true(asked(b));
}

/* It was rolled back while steps were of another cell, and then the slot got a newer kernel. */
static void a_kernel_that_was_unloaded_stands_in_for_none(void **state)
{
    struct backend *b = *state;
    struct kernel_choice then = decodes(&before, false), now = decodes(&better, false);
    struct cell *cell = graph_cell(b, &now);
    cell->variant[2] = (struct variant){.choice = then, .exec = (cudaGraphExec_t)&other};
    assert_ptr_equal(graph_get(b, &now), &cell->variant[2]); /* it is the one before it */
    pthread_mutex_init(&b->load_lock, NULL);
    cuda_unload(b, &before);
    assert_null(graph_get(b, &now));
    assert_true(asked(b));
    code[0].retired = false;
}

/* Its code would be unloaded under the builder's hands. */
static void a_kernel_is_in_use_while_the_builder_captures_it(void **state)
{
    struct backend *b = *state;
    struct builder *g = &b->builder;
    struct kernel_choice k = decodes(&candidate, false), next = prompt(8, 0);
    assert_null(graph_get(b, &k));
    assert_true(graph_uses(b, &candidate, true)); /* asked for */
    g->busy = true;                               /* as builder_main() takes it */
    g->making = g->leaving = g->request;
    g->leaving.kernel[REGION_MLP_IN] = &before;
    g->cell = NULL;
    assert_null(graph_get(b, &next)); /* another cell's is asked for meanwhile */
    assert_non_null(g->cell);
    assert_true(graph_uses(b, &candidate, true));
    assert_true(graph_uses(b, &before, true));
    g->busy = false;
    assert_false(graph_uses(b, &candidate, true));
    assert_false(graph_uses(b, &before, true));
}

/* The device may be short of memory for as long as a probe runs. */
static void what_could_not_be_captured_is_not_tried_again_at_once(void **state)
{
    struct backend *b = *state;
    struct kernel_choice c = decodes(&before, false);
    struct cell *cell = graph_cell(b, &c);
    assert_null(graph_get(b, &c));
    assert_true(asked(b));
    after_request(b, cell, true);
    for (b->steps = 1; b->steps < FAILED_STEPS; b->steps++) {
        assert_null(graph_get(b, &c));
        assert_false(asked(b));
    }
    assert_null(graph_get(b, &c));
    assert_true(asked(b));
    after_request(b, cell, false);
    b->steps++;
    assert_false(graph_there(b, &c));
    assert_true(asked(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_wide_step_is_asked_for_when_it_has_come_three_times,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(a_wide_step_of_decodes_is_asked_for_when_it_comes_again,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(steps_that_all_differ_never_are, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(kernels_that_alternate_do_not_start_the_count_again,
                                        open_rig, close_rig),
        cmocka_unit_test_setup_teardown(only_the_very_same_graph_serves_a_wide_step, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(a_canarys_graph_stands_in_for_no_other, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(a_graph_has_its_kernel_of_reduce_and_no_other, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(it_serves_once_its_kernel_is_in_the_slot, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(a_kernel_does_not_stand_in_for_the_one_before_it, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(a_kernel_that_was_unloaded_stands_in_for_none, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(a_kernel_is_in_use_while_the_builder_captures_it, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(what_could_not_be_captured_is_not_tried_again_at_once,
                                        open_rig, close_rig),
        cmocka_unit_test(an_executable_is_not_updated_to_other_clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
