/* SPDX-License-Identifier: Apache-2.0 */
/* What a row of the fleet's database may be, and what becomes of any other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dispatch.h"
#include "engine/plan.h"
#include "specializer/candidate/hash.h"
#include "specializer/fleet/fleet_db.h"
#include "specializer/fleet/fleet_row.h"

static struct dispatch *slots;
static char knobs[400];

static int set_up(void **state)
{
    (void)state;
    slots = dispatch_open_names();
    struct point p = template_defaults(template_find("mlp_out"));
    point_text(template_find("mlp_out"), &p, knobs, sizeof knobs);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dispatch_close(slots);
    return 0;
}

/* A row that is right. */
static void right(const char *value[FLEET_COLUMNS])
{
    value[FLEET_SEQ] = "17";
    value[FLEET_KEY] = "0123456789abcdef";
    value[FLEET_SERVER] = "fedcba9876543210";
    value[FLEET_SLOT] = "mlp_out/m1";
    value[FLEET_TEMPLATE] = "mlp_out";
    value[FLEET_SOURCE] = "00000000000000aa";
    value[FLEET_KNOBS] = knobs;
    value[FLEET_STATE] = "active";
    value[FLEET_OWN_S] = "1.5e-05";
    value[FLEET_SPEED] = "1.75";
}

static void a_right_row_is_read(void **state)
{
    const char *value[FLEET_COLUMNS];
    struct fleet_row r;
    struct err err;
    int slot;
    (void)state;
    right(value);
    assert_int_equal(fleet_row_read(value, slots, &r, &slot, &err), 0);
    assert_string_equal(dispatch_slot_at(slots, slot)->name, "mlp_out/m1");
    assert_string_equal(r.key, "0123456789abcdef");
    assert_true(r.own_s == 1.5e-5 && r.speed == 1.75 && fleet_row_won(&r));
    value[FLEET_STATE] = "refused";
    assert_int_equal(fleet_row_read(value, slots, &r, &slot, &err), 0);
    assert_false(fleet_row_won(&r));
}

static void a_wrong_row_is_refused_by_the_name_of_its_column(void **state)
{
    char many[4096];
    memset(many, '9', sizeof many - 1);
    many[sizeof many - 1] = 0;
    const struct {
        enum fleet_column column;
        const char *value, *name;
    } rows[] = {
        {FLEET_KEY, "0123456789ABCDEF", "key"},
        {FLEET_KEY, "", "key"},
        {FLEET_SERVER, many, "server"},
        {FLEET_SLOT, "mlp_out/m1'; --", "slot"},
        {FLEET_TEMPLATE, "mlp_in", "template"}, /* of another region */
        {FLEET_TEMPLATE, "../mlp_out", "template"},
        {FLEET_SOURCE, "zz", "source"},
        {FLEET_KNOBS, "", "point"},
        {FLEET_KNOBS, many, "point"},
        {FLEET_KNOBS, "ISA=99999999999999999999", "point"},
        {FLEET_STATE, "emperor", "state"},
        {FLEET_OWN_S, "-1", "time of a run"},
        {FLEET_OWN_S, "inf", "time of a run"},
        {FLEET_OWN_S, "1e-5 or so", "time of a run"},
        {FLEET_SPEED, "nan", "speed"},
        {FLEET_SPEED, "1e300", "speed"},
        {FLEET_SPEED, "", "speed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *value[FLEET_COLUMNS];
        struct fleet_row r;
        struct err err = {""};
        int slot;
        right(value);
        value[rows[i].column] = rows[i].value;
        assert_int_equal(fleet_row_read(value, slots, &r, &slot, &err), -1);
        assert_non_null(strstr(err.msg, rows[i].name));
    }
}

/* Any bytes in any column: what is taken is a legal slot with a point of one of its templates. */
static void a_row_of_any_bytes_is_a_row_or_refused(void **state)
{
    uint64_t random = 1;
    int taken = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const char *value[FLEET_COLUMNS];
        char text[FLEET_COLUMNS][512];
        struct fleet_row r;
        int slot = -1;
        right(value);
        for (int c = 0; c < FLEET_COLUMNS; c++)
            snprintf(text[c], sizeof text[c], "%s", value[c]);
        for (int n = random_below(&random, 3); n >= 0; n--) {
            char *t = text[random_below(&random, FLEET_COLUMNS)];
            size_t length = strlen(t);
            if (length > 0)
                t[random_next(&random) % length] = (char)random_next(&random);
        }
        for (int c = 0; c < FLEET_COLUMNS; c++)
            value[c] = text[c];
        if (fleet_row_read(value, slots, &r, &slot, NULL) != 0)
            continue;
        taken++;
        const struct slot *s = dispatch_slot_at(slots, slot);
        assert_true(template_fits(r.template, r.template->machine, s->region, s->m));
        for (int k = 0; k < r.template->knobs; k++) {
            bool listed = false;
            for (int v = 0; v < r.template->knob[k].values; v++)
                listed |= r.template->knob[k].value[v] == r.point.value[k];
            assert_true(listed);
        }
        assert_true(isfinite(r.own_s) && r.own_s >= 0 && isfinite(r.speed) && r.speed >= 0);
        assert_true(fleet_is_key(r.key) && fleet_is_key(r.server) && fleet_is_key(r.source));
    }
    assert_true(taken > 100); /* or the loop looked at nothing */
}

/* What a row is good for, from a proposal on. */
static void a_row_is_on_trial_then_offered_unless_it_was_refused(void **state)
{
    struct fleet_row r = {.state = LIFE_PROPOSED};
    (void)state;
    assert_true(fleet_row_on_trial(&r) && !fleet_row_offered(&r));
    r = (struct fleet_row){.state = LIFE_BENCHED, .own_s = 1e-5, .speed = 1.5};
    assert_true(fleet_row_offered(&r) && !fleet_row_on_trial(&r) && !fleet_row_won(&r));
    r.state = LIFE_ACTIVE;
    assert_true(fleet_row_offered(&r) && fleet_row_won(&r));
    for (enum life state_of = LIFE_DEFERRED; state_of <= LIFE_DISABLED; state_of++) {
        r.state = state_of;
        assert_false(fleet_row_offered(&r) || fleet_row_on_trial(&r));
    }
}

static void untrusted_words_are_one_line_of_ascii(void **state)
{
    char out[FLEET_WORD], many[4096];
    (void)state;
    fleet_plain("FATAL:  no\n\tDETAIL: \x1b[2J\xff\n", out);
    assert_string_equal(out, "FATAL:  no  DETAIL: ?[2J?");
    memset(many, 'x', sizeof many - 1);
    many[sizeof many - 1] = 0;
    fleet_plain(many, out);
    assert_int_equal(strlen(out), FLEET_WORD - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_row_is_read),
        cmocka_unit_test(a_wrong_row_is_refused_by_the_name_of_its_column),
        cmocka_unit_test(a_row_of_any_bytes_is_a_row_or_refused),
        cmocka_unit_test(a_row_is_on_trial_then_offered_unless_it_was_refused),
        cmocka_unit_test(untrusted_words_are_one_line_of_ascii),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
