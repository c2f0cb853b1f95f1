/* SPDX-License-Identifier: Apache-2.0 */
/* test_numerics.c - the levels of specializer.numerics: the option's words are the table's, each
 * allows what the ones before it do, and the evidence of each is its own. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "specializer/candidate/candidate.h"
#include "specializer/setup.h"

/* The words of the option, "a|b". */
static const char *option_words(void)
{
#define SECTION(name, help)
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, min, max, help)
#define OPT_NUM(section, name, def, min, max, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help)              \
    if (strcmp(#section "." #name, "specializer.numerics") == 0) \
        return choices;
#include "config/options.def"
    return "";
}

static void the_option_has_every_level_by_its_name(void **state)
{
    (void)state;
    char *words = xstrdup(option_words()), *rest = words, *word;
    int found = 0;
    while ((word = strsep(&rest, "|"))) {
        enum numerics n;
        if (!numerics_find(word, &n))
            fail_msg("'%s' is no level", word);
        assert_string_equal(numerics_name(n), word);
        assert_int_equal(numerics_parse(word), n);
        found++;
    }
    assert_int_equal(found, NUMERICS_COUNT);
    enum numerics untouched = NUMERICS_FP8;
    assert_false(numerics_find("exact", &untouched));
    assert_false(numerics_find("", &untouched));
    assert_false(numerics_find(NULL, &untouched));
    assert_int_equal(untouched, NUMERICS_FP8);
    free(words);
}

static void only_fp8_allows_what_reduced_does_and_e4m3(void **state)
{
    (void)state;
    for (int n = 0; n < NUMERICS_COUNT; n++) {
        bool lower = n == NUMERICS_REDUCED || n == NUMERICS_FP8;
        assert_true(numerics_allows((enum numerics)n, PRECISION_F32));
        assert_int_equal(numerics_allows((enum numerics)n, PRECISION_BF16), lower);
        assert_int_equal(numerics_allows((enum numerics)n, PRECISION_INT8), lower);
        assert_int_equal(numerics_allows((enum numerics)n, PRECISION_E4M3), n == NUMERICS_FP8);
    }
}

/* A store's rows and the fleet's are found by this key: winners of a level are restored at no
 * other, but for those of `tolerance`, which `frozen` serves. */
static void evidence_of_a_level_is_unknown_at_any_other(void **state)
{
    (void)state;
    static const char *const no_flags[] = {NULL};
    char env[NUMERICS_COUNT][17];
    for (int n = 0; n < NUMERICS_COUNT; n++) {
        struct key_parts keys;
        key_parts_fill(&keys, "a machine", "cc 1", no_flags, "a shape", (enum numerics)n);
        memcpy(env[n], keys.env, sizeof env[n]);
    }
    for (int a = 0; a < NUMERICS_COUNT; a++)
        for (int b = 0; b < NUMERICS_COUNT; b++) {
            bool same = numerics_proofs((enum numerics)a) == numerics_proofs((enum numerics)b);
            assert_int_equal(strcmp(env[a], env[b]) == 0, same);
            bool frozen = (a == NUMERICS_FROZEN && b == NUMERICS_TOLERANCE) ||
                          (b == NUMERICS_FROZEN && a == NUMERICS_TOLERANCE);
            assert_int_equal(same, a == b || frozen);
        }
}

static void facts_say_what_a_level_allows(void **state)
{
    (void)state;
    struct err err = {""};
    struct model *m = model_open("random:tiny:f8", false, NULL, NULL, &err);
    struct machine gpu = {.kind = MACHINE_CUDA, .target = "sm_90a", .sms = 132}, cpu = {0},
                   old = {.kind = MACHINE_CUDA, .target = "sm_80", .sms = 108};
    if (!m)
        fail_msg("%s", err.msg);
    for (int n = 0; n < NUMERICS_COUNT; n++) {
        enum numerics level = (enum numerics)n;
        struct facts f;
        facts_fill(&f, m, REGION_MLP_IN, 256, level);
        assert_int_equal(f.POLICY_REDUCED, level == NUMERICS_REDUCED || level == NUMERICS_FP8);
        assert_int_equal(f.POLICY_FP8, level == NUMERICS_FP8);
        m->fp8_activations = false;
        assert_false(fp8_forbidden(m, &gpu, level));
        m->fp8_activations = true;
        assert_int_equal(fp8_forbidden(m, &gpu, level), level != NUMERICS_FP8);
        assert_false(fp8_forbidden(m, &cpu, level)); /* has no such kernels */
        assert_false(fp8_forbidden(m, &old, level));
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_option_has_every_level_by_its_name),
        cmocka_unit_test(only_fp8_allows_what_reduced_does_and_e4m3),
        cmocka_unit_test(evidence_of_a_level_is_unknown_at_any_other),
        cmocka_unit_test(facts_say_what_a_level_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
