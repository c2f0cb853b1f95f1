/* SPDX-License-Identifier: Apache-2.0 */
/* Transitions of a kernel's life: the picture of docs/specializer.md, written down a second time
 * here as text, and what life_move does when the store says no. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "config/safe_path.h"
#include "specializer/candidate/life.h"
#include "specializer/search/space.h"
#include "specializer/store/life_move.h"
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

/* Only whole steps defer, and what is deferred begins again at the beginning. */
static void life_hears_again_from_the_beginning(void **unused)
{
    (void)unused;
    for (int i = 0; i < LIFE_COUNT; i++) {
        assert_int_equal(life_allowed((enum life)i, LIFE_DEFERRED), i == LIFE_SHADOWED);
        assert_int_equal(life_allowed(LIFE_DEFERRED, (enum life)i),
                         i == LIFE_PROPOSED || i == LIFE_DISABLED);
    }
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
    safe_folder_remove(path);
}

static void keep_text(void *ctx, const struct trace_row *row)
{
    char(*said)[200] = ctx;
    int s = row->event ? life_parse(row->event) : -1;
    if (s >= 0)
        snprintf(said[s], sizeof said[s], "%s", row->text ? row->text : "");
}

/* Operators read the trace: each step on the way says what was measured. */
static void life_tells_the_trace_what_each_stage_has_shown(void **unused)
{
    (void)unused;
    static char said[LIFE_COUNT][200];
    char path[] = "/tmp/whet-test-life-XXXXXX", file[64];
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/store.db", path);
    struct err err;
    struct store *store = store_open(file, &err);
    struct slot slot = {.name = "mlp_out/m1"};
    struct candidate c = {.key = "0123456789abcdef",
                          .template = template_at(0),
                          .slot = &slot,
                          .evidence = {.build_s = 1.24,
                                       .object_bytes = 22232,
                                       .probe_cases = 12,
                                       .own_max = 3e-7,
                                       .eager_max = 4e-7,
                                       .worst = "m=1 bits",
                                       .bench = {16, 0.0748, 0.0455, 0.152},
                                       .shadow_runs = 8,
                                       .canary = {282, 0.0149, 0.0025, 0.0269}}};
    for (int s = LIFE_BUILT; s <= LIFE_CANARY; s++)
        assert_int_equal(life_move(store, &c, (enum life)s, NULL, NULL, &err), 0);
    assert_int_equal(life_move(store, &c, LIFE_ACTIVE, "in its own words", NULL, &err), 0);
    assert_int_equal(store_traces(store, NULL, 0, 0, keep_text, said, &err), 0);
    assert_string_equal(said[LIFE_BUILT], "22.2 kB in 1.2 s");
    assert_string_equal(said[LIFE_PROBED], "12 cases, largest error 0.75 times eager's (m=1 bits)");
    assert_string_equal(said[LIFE_BENCHED], "+7.5 % [+4.5, +15.2] over 16 pairs");
    assert_string_equal(said[LIFE_SHADOWED],
                        "8 live runs beside the one that serves, other bits in 0");
    assert_string_equal(said[LIFE_CANARY], "+1.5 % [+0.2, +2.7] over 282 pairs of whole steps");
    assert_string_equal(said[LIFE_ACTIVE], "in its own words");
    store_close(store);
    safe_folder_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life_names_are_read_back),
        cmocka_unit_test(life_goes_forward_one_stage_at_a_time),
        cmocka_unit_test(life_never_activates_what_did_not_pass_the_canary),
        cmocka_unit_test(life_lets_an_operator_disable_anything),
        cmocka_unit_test(life_refusals_are_final),
        cmocka_unit_test(life_hears_again_from_the_beginning),
        cmocka_unit_test(life_rolls_back_only_what_served),
        cmocka_unit_test(life_tells_the_trace_what_each_stage_has_shown),
        cmocka_unit_test(life_move_writes_before_it_changes_and_refuses_illegal_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
