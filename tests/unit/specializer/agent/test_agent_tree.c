/* SPDX-License-Identifier: Apache-2.0 */
/* The tree's policy: what is worked on next, when a node is dead, when there is nothing left. */
#include "specializer/agent/agent_store.h"
#include "tests/unit/specializer/store_world.h"

static int32_t add(struct agent_tree *t, int32_t parent, enum agent_state state, double speed)
{
    int32_t id = tree_add(t, parent);
    t->node[id].state = state;
    t->node[id].speed = speed;
    return id;
}

static void what_is_begun_is_finished_before_more_is_planned(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 1};
    int32_t node;
    assert_int_equal(tree_next(&t, &node), AGENT_NOTHING);
    int32_t root = add(&t, -1, AGENT_READY, 0);
    assert_int_equal(tree_next(&t, &node), AGENT_TRY);
    assert_int_equal(node, root);
    t.node[root].state = AGENT_MEASURED;
    t.node[root].speed = 0.5;
    assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
    assert_int_equal(node, root);
    int32_t a = add(&t, root, AGENT_PLANNED, 0);
    assert_int_equal(tree_next(&t, &node), AGENT_CODE);
    int32_t b = add(&t, root, AGENT_BROKEN, 0);
    assert_int_equal(tree_next(&t, &node), AGENT_DEBUG);
    assert_int_equal(node, b);
    t.node[a].state = AGENT_READY;
    assert_int_equal(tree_next(&t, &node), AGENT_TRY);
    assert_int_equal(node, a);
    tree_free(&t);
}

static void a_text_is_repaired_twice_and_then_failed(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 1};
    int32_t n = add(&t, -1, AGENT_READY, 0);
    for (int i = 0; i < DEBUGS_MOST; i++) {
        tree_refuse(&t, n, true);
        assert_int_equal(t.node[n].state, AGENT_BROKEN);
        t.node[n].debugs++;
    }
    tree_refuse(&t, n, true);
    assert_int_equal(t.node[n].state, AGENT_FAILED);
    int32_t m = add(&t, -1, AGENT_READY, 0);
    tree_refuse(&t, m, false);
    assert_int_equal(t.node[m].state, AGENT_FAILED);
    tree_free(&t);
}

static void three_failing_children_kill_a_node_but_not_its_siblings(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 7};
    int32_t node, root = add(&t, -1, AGENT_MEASURED, 0.5);
    int32_t fast = add(&t, root, AGENT_MEASURED, 2), slow = add(&t, root, AGENT_MEASURED, 1);
    for (int i = 0; i < FAILING_CHILDREN_MOST; i++) {
        assert_false(tree_closed(&t, fast));
        add(&t, fast, AGENT_FAILED, 0);
    }
    assert_true(tree_closed(&t, fast));
    assert_false(tree_closed(&t, slow));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
        assert_true(node == root || node == slow);
    }
    tree_free(&t);
}

/* A leader that has brought something forth is not given up for three failures beside it. */
static void a_child_that_was_right_keeps_its_parent_alive(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 7};
    int32_t node, root = add(&t, -1, AGENT_MEASURED, 0.5);
    int32_t fast = add(&t, root, AGENT_MEASURED, 2);
    add(&t, fast, AGENT_MEASURED, 1.9);
    for (int i = 0; i < 2 * FAILING_CHILDREN_MOST; i++)
        add(&t, fast, AGENT_FAILED, 0);
    assert_false(tree_closed(&t, fast));
    int chosen = 0;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
        chosen += node == fast;
    }
    assert_true(chosen > 50);
    /* One whose repair is still under way has not failed yet. */
    int32_t other = add(&t, root, AGENT_MEASURED, 1);
    for (int i = 0; i < FAILING_CHILDREN_MOST; i++)
        add(&t, other, i ? AGENT_FAILED : AGENT_BROKEN, 0);
    assert_false(tree_closed(&t, other));
    tree_free(&t);
}

static void the_root_has_five_children_at_most(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 7};
    int32_t node, root = add(&t, -1, AGENT_MEASURED, 3);
    for (int i = 0; i < ROOT_CHILDREN_MOST; i++) {
        assert_false(tree_closed(&t, root));
        add(&t, root, AGENT_MEASURED, 0.1 * i);
    }
    assert_true(tree_closed(&t, root)); /* although it is the fastest */
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
        assert_int_not_equal(node, root);
    }
    tree_free(&t);
}

static void a_dead_tree_proposes_nothing(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 7};
    int32_t node, root = add(&t, -1, AGENT_MEASURED, 1);
    for (int i = 0; i < FAILING_CHILDREN_MOST; i++)
        add(&t, root, AGENT_FAILED, 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(tree_next(&t, &node), AGENT_NOTHING);
    tree_free(&t);
    t = (struct agent_tree){0};
    add(&t, -1, AGENT_FAILED, 0); /* a seed that does not even build */
    assert_int_equal(tree_next(&t, &node), AGENT_NOTHING);
    tree_free(&t);
}

/* With odds 0.65 + 0.35/3 the fastest of three, else one of the others. */
static void the_fastest_grows_most_and_others_sometimes(void **state)
{
    (void)state;
    struct agent_tree t = {.random = 42};
    int32_t node, root = add(&t, -1, AGENT_MEASURED, 1);
    int32_t fast = add(&t, root, AGENT_MEASURED, 3);
    add(&t, root, AGENT_MEASURED, 2);
    int grown[3] = {0};
    for (int i = 0; i < 3000; i++) {
        assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
        grown[node]++;
    }
    assert_true(grown[fast] > 2300 && grown[fast] < 2650);
    assert_true(grown[2] > 350);
    assert_int_equal(grown[0], 0); /* a text is faster than the seed */
    t.node[0].speed = 4;
    assert_int_equal(tree_next(&t, &node), AGENT_PLAN);
    for (int i = 0; i < 3000; i++) {
        tree_next(&t, &node);
        grown[node]++;
    }
    assert_true(grown[0] > 2100);
    tree_free(&t);
}

static void leaders_are_the_fastest_measured_in_order(void **state)
{
    (void)state;
    struct agent_tree t = {0};
    int32_t id[3];
    assert_int_equal(tree_leaders(&t, id, 3), 0);
    static const double speed[] = {1, 1.5, 0.2, 3, 2};
    for (int i = 0; i < 5; i++)
        add(&t, i - 1, AGENT_MEASURED, speed[i]);
    add(&t, 0, AGENT_FAILED, 9);
    assert_int_equal(tree_leaders(&t, id, 3), 3);
    assert_true(id[0] == 3 && id[1] == 4 && id[2] == 1);
    strcpy(t.node[1].source, "0123456789abcdef");
    assert_int_equal(tree_same(&t, "0123456789abcdef", 4), 1);
    assert_int_equal(tree_same(&t, "0123456789abcdef", 1), -1);
    assert_int_equal(tree_same(&t, "", 1), -1);
    tree_free(&t);
}

/* Counts of a store that a hand has changed: a sum of them is still one. */
static void counts_of_a_store_can_be_summed(void **state)
{
    (void)state;
    struct agent_tree t = {0};
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    assert_non_null(s);
    for (int32_t i = 0; i < 2; i++) {
        struct agent_node n = {.id = i, .parent = i - 1, .attempts = INT32_MAX, .debugs = -7};
        n.text = (char *)(size_t) "int x;";
        assert_int_equal(agent_store_put(s, "env", "mlp_out/m1", &n, &err), 0);
    }
    assert_int_equal(agent_store_tree(s, "env", "mlp_out/m1", &t, &err), 0);
    assert_int_equal(t.nodes, 2);
    assert_in_range(tree_attempts(&t), 2, INT32_MAX);
    assert_int_equal(t.node[1].debugs, 0);
    tree_free(&t);
    store_close(s);
}

static void states_have_names(void **state)
{
    (void)state;
    for (int i = 0; i < AGENT_STATES; i++)
        assert_int_equal(agent_state_parse(agent_state_name((enum agent_state)i)), i);
    assert_int_equal(agent_state_parse("sleeping"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_begun_is_finished_before_more_is_planned),
        cmocka_unit_test(a_text_is_repaired_twice_and_then_failed),
        cmocka_unit_test(three_failing_children_kill_a_node_but_not_its_siblings),
        cmocka_unit_test(a_child_that_was_right_keeps_its_parent_alive),
        cmocka_unit_test(the_root_has_five_children_at_most),
        cmocka_unit_test(a_dead_tree_proposes_nothing),
        cmocka_unit_test(the_fastest_grows_most_and_others_sometimes),
        cmocka_unit_test(leaders_are_the_fastest_measured_in_order),
        cmocka_unit_test(counts_of_a_store_can_be_summed),
        cmocka_unit_test(states_have_names),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
