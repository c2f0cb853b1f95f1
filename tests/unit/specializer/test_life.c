/* Transitions of a kernel's life: the picture of docs/specializer.md, written down a second time
 * here as text, and what life_move does when the store says no. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "specializer/life.h"
#include "specializer/search/space.h"
#include "specializer/store/store_sql.h"

static const char *const forward[] = {"proposed", "built",  "probed", "benched",
                                      "shadowed", "canary", "active", "retired"};
enum { FORWARD = sizeof forward / sizeof *forward };

static enum life state(const char *name)
{
    int s = life_parse(name);
    assert_true(s >= 0);
    return (enum life)s;
}

static void life_names_are_read_back(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++)
        assert_int_equal(life_parse(life_name((enum life)i)), i);
    assert_int_equal(life_parse("alive"), -1);
}

static void life_goes_forward_one_stage_at_a_time(void **unused)
{
    (void)unused;
    for (int i = 0; i < FORWARD; i++)
        for (int k = i + 1; k < FORWARD; k++)
            assert_int_equal(life_allowed(state(forward[i]), state(forward[k])), k == i + 1);
}

static void life_never_activates_what_did_not_pass_the_canary(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++) {
        bool ok = i == LIFE_CANARY || i == LIFE_RETIRED; /* retired: it was active once */
        assert_int_equal(life_allowed((enum life)i, LIFE_ACTIVE), ok);
    }
}

static void life_lets_an_operator_disable_anything(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++)
        if (i != LIFE_DISABLED)
            assert_true(life_allowed((enum life)i, LIFE_DISABLED));
}

static void life_refusals_are_final(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++)
        assert_int_equal(life_allowed(LIFE_REFUSED, (enum life)i), i == LIFE_DISABLED);
}

static void life_rolls_back_only_what_served(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++)
        assert_int_equal(life_allowed((enum life)i, LIFE_ROLLED_BACK),
                         i == LIFE_ACTIVE || i == LIFE_RETIRED);
}

static void life_move_writes_before_it_changes_and_refuses_illegal_ways(void **unused)
{
    (void)unused;
    char path[] = "/tmp/whet-test-life-XXXXXX", file[64];
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/store.db", path);
    struct err err;
    struct store *store = store_open(file, &err);
    assert_non_null(store);
    struct slot slot = {.name = "mlp_out/m1"};
    struct candidate c = {.key = "0123456789abcdef", .template = template_at(0), .slot = &slot};
    struct record row;

    assert_int_equal(life_move(store, &c, LIFE_ACTIVE, NULL, NULL, &err), -1);
    assert_int_equal(c.state, LIFE_PROPOSED);
    assert_int_equal(store_get(store, c.key, &row, &err), 0);

    assert_int_equal(life_move(store, &c, LIFE_BUILT, "why", NULL, &err), 0);
    assert_int_equal(c.state, LIFE_BUILT);
    assert_int_equal(store_get(store, c.key, &row, &err), 1);
    assert_int_equal(row.state, LIFE_BUILT);

    /* A store that cannot be written: progress stops, a safety move does not. */
    assert_int_equal(store_run(store, &err, "DROP TABLE candidate", ""), 0);
    assert_int_equal(life_move(store, &c, LIFE_PROBED, NULL, NULL, &err), -1);
    assert_int_equal(c.state, LIFE_BUILT);
    assert_int_equal(life_move(store, &c, LIFE_REFUSED, "bad", NULL, &err), 0);
    assert_int_equal(c.state, LIFE_REFUSED);
    store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life_names_are_read_back),
        cmocka_unit_test(life_goes_forward_one_stage_at_a_time),
        cmocka_unit_test(life_never_activates_what_did_not_pass_the_canary),
        cmocka_unit_test(life_lets_an_operator_disable_anything),
        cmocka_unit_test(life_refusals_are_final),
        cmocka_unit_test(life_rolls_back_only_what_served),
        cmocka_unit_test(life_move_writes_before_it_changes_and_refuses_illegal_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
