/* SPDX-License-Identifier: Apache-2.0 */
/* What knobs are for (kernels/roles.def): how far apart values are, and that every table's knobs
 * have roles and defaults that fit them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/err.h"
#include "specializer/agent/agent_source.h"
#include "specializer/search/space.h"

static double apart(enum knob_role r, int32_t a, int32_t b)
{
    return fabs(role_place(r, a) - role_place(r, b));
}

static void values_are_as_far_apart_as_their_scale_says(void **unused)
{
    (void)unused;
    assert_float_equal(apart(ROLE_ROWS, 4, 8), 1, 1e-12); /* AMOUNT: octaves */
    assert_float_equal(apart(ROLE_ROWS, 2, 4), 1, 1e-12);
    assert_true(apart(ROLE_ROWS, 4, 6) < apart(ROLE_ROWS, 4, 1));
    assert_float_equal(apart(ROLE_NEXT, 0, 1), 1, 1e-12); /* COUNT: 0 is the least */
    assert_true(apart(ROLE_NEXT, 0, 2) < apart(ROLE_NEXT, 0, 16));
    assert_true(apart(ROLE_PERSIST, 0, 1) > ROLE_APART / 2); /* SWITCH: 0 is something else */
    assert_float_equal(apart(ROLE_PERSIST, 1, 2), 1, 1e-12);
    assert_true(apart(ROLE_ISA, 2, 3) > ROLE_APART / 2); /* CATEGORY: everything is */
    assert_float_equal(apart(ROLE_ISA, 2, 2), 0, 0);
}

static void check(const struct template *t)
{
    bool has[ROLE_COUNT] = {false};
    for (int k = 0; k < t->knobs; k++) {
        enum knob_role r = t->knob[k].role;
        assert_int_equal(template_role(t, r), k);
        has[r] = true;
        for (int v = 0; v < t->knob[k].values; v++) {
            int32_t value = t->knob[k].value[v];
            if (value <= 0 && role_of(r)->scale == SCALE_AMOUNT)
                fail_msg("%s: knob %s has the value %d, and its role is an AMOUNT, which is more "
                         "than 0: kernels/roles.def has others",
                         t->file, t->knob[k].name, value);
            assert_true(fabs(role_place(r, value)) <= ROLE_APART * 10.0);
            for (int w = 0; w < v; w++)
                if (!(apart(r, value, t->knob[k].value[w]) > 0))
                    fail_msg("%s: knob %s has values %d and %d, which its role does not tell apart "
                             "(kernels/roles.def)",
                             t->file, t->knob[k].name, t->knob[k].value[w], value);
        }
    }
    for (int r = 0; r < ROLE_COUNT; r++)
        if (!has[r]) {
            struct point p = template_defaults(t);
            assert_int_equal(template_role(t, (enum knob_role)r), -1);
            assert_int_equal(role_value(t, &p, (enum knob_role)r),
                             role_of((enum knob_role)r)->neutral);
        }
}

static void every_knob_has_a_role_that_fits_its_values(void **unused)
{
    (void)unused;
    for (int i = 0; i < template_count(); i++)
        check(template_at(i));
    for (int r = 0; r < REGION_COUNT; r++)
        for (int m = MACHINE_CPU; m <= MACHINE_CUDA; m++)
            if (agent_template((enum machine_kind)m, (enum region)r))
                check(agent_template((enum machine_kind)m, (enum region)r));
}

/* A family's number says its template and the kinds of all its roles: no two mixes share one. */
static void kinds_of_a_template_have_families_of_their_own(void **unused)
{
    (void)unused;
    int families;
    const struct role_family *f = role_families(&families);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        int kinds = 1;
        for (int k = 0; k < families; k++)
            kinds *= template_role(t, f[k].role) >= 0 ? f[k].kinds : 1;
        assert_true(kinds <= space_families() / template_count());
        for (int k = 0; k < families; k++) {
            int at = template_role(t, f[k].role);
            struct point p = template_defaults(t), other = p;
            for (int v = 0; at >= 0 && v < t->knob[at].values; v++) {
                other.value[at] = t->knob[at].value[v];
                bool same = role_kind(&f[k], p.value[at]) == role_kind(&f[k], other.value[at]);
                assert_true(same == (template_family(t, &p) == template_family(t, &other)));
            }
        }
    }
}

/* Defaults stand in the tables alone: a second place would one day say something else. */
static void no_source_gives_a_knob_a_value(void **unused)
{
    (void)unused;
    int sources = 0;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        const char *text = template_source(t);
        if (t->library)
            continue;
        sources++;
        for (int k = 0; k < t->knobs; k++) {
            char *define = xasprintf("#define %s ", t->knob[k].name);
            if (strstr(text, define))
                fail_msg("%s gives knob %s a value", t->file, t->knob[k].name);
            free(define);
        }
    }
    assert_true(sources > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_as_far_apart_as_their_scale_says),
        cmocka_unit_test(every_knob_has_a_role_that_fits_its_values),
        cmocka_unit_test(no_source_gives_a_knob_a_value),
        cmocka_unit_test(kinds_of_a_template_have_families_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
