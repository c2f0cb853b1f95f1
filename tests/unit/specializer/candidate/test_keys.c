/* SPDX-License-Identifier: Apache-2.0 */
/* test_keys.c - what evidence depends on: a rank's part of a model, found by name or cut out of the
 * whole, is one environment, so that what a search of random:NAME/N found is a rank's; and nothing
 * else is. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "specializer/candidate/candidate.h"
#include "specializer/candidate/template.h"
#include "specializer/search/known.h"

static struct model *opened(const char *path, int32_t world, int32_t rank)
{
    struct err err = {""};
    struct model *m = model_open_part(path, world, rank, false, NULL, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    return m;
}

/* The environment's key; `heading` is what an export says of it, to be freed. */
static void environment(const char *path, int32_t world, int32_t rank, char env[17], char **heading)
{
    static const char *const no_flags[] = {NULL};
    static const struct machine machine = {.device = "a machine, 1 thread"};
    struct model *m = opened(path, world, rank);
    struct key_parts keys;
    char *shape = model_shape_text(m);
    key_parts_fill(&keys, machine.device, "cc 1", no_flags, shape, NUMERICS_TOLERANCE);
    memcpy(env, keys.env, 17);
    *heading = known_heading(&machine, m, 1, NUMERICS_TOLERANCE);
    free(shape);
    model_close(m);
}

static bool same(const char *path, int32_t world, int32_t rank, const char *other,
                 int32_t other_world)
{
    char a[17], b[17], *x, *y;
    environment(path, world, rank, a, &x);
    environment(other, other_world, 0, b, &y);
    bool env = strcmp(a, b) == 0, heading = strcmp(x, y) == 0;
    free(x);
    free(y);
    if (env && !heading)
        fail_msg("%s, %d, and %s: one environment that exports call by two names", path, world,
                 other);
    return env;
}

static void a_part_by_name_is_the_environment_of_every_rank(void **state)
{
    (void)state;
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_true(same("random:tiny", 2, rank, "random:tiny/2", 1));
        assert_true(same("random:tiny:q8_0", 2, rank, "random:tiny/2:q8_0", 1));
        assert_true(same("random:tiny:q4_0+q8_0", 2, rank, "random:tiny/2:q4_0+q8_0", 1));
    }
    for (int32_t rank = 0; rank < 4; rank++)
        assert_true(same("random:tiny", 4, rank, "random:tiny/4", 1));
}

static void other_parts_and_formats_are_other_environments(void **state)
{
    (void)state;
    assert_false(same("random:tiny", 2, 0, "random:tiny/4", 1));
    assert_false(same("random:tiny", 2, 0, "random:tiny/2:q8_0", 1));
    assert_false(same("random:tiny", 1, 0, "random:tiny/2", 1));
    assert_true(same("random:tiny", 1, 0, "random:tiny/1", 1));
    assert_false(same("random:tiny:q4_0", 1, 0, "random:tiny:q4_0+q8_0", 1));
    /* The other layer has more bits: one that runs a kernel in as many layers, but not in these. */
    assert_false(same("random:tiny:q8_0+q4_0", 1, 0, "random:tiny:q4_0+q8_0", 1));
}

/* What was found before there were classes is found again. */
static void where_layers_are_alike_nothing_of_formats_is_added(void **state)
{
    (void)state;
    struct model *m = opened("random:tiny:q8_0", 1, 0);
    char *text = model_shape_text(m);
    assert_null(strstr(text, "formats="));
    free(text);
    model_close(m);
    m = opened("random:tiny:q8_0+q4_0", 1, 0);
    text = model_shape_text(m);
    assert_non_null(strstr(text, "formats="));
    free(text);
    model_close(m);
}

/* The -D of KV_BF16 that builds for this slot are given; NULL: none. To be freed. */
static char *kv_flag(const struct model *m, const char *template, enum region r)
{
    const struct template *t = template_find(template);
    const struct point p = template_defaults(t);
    struct facts f;
    char *found = NULL;
    facts_fill(&f, m, r, 1, NUMERICS_TOLERANCE);
    char **flag = point_flags(t, &p, &f);
    for (int i = 0; flag[i]; i++) {
        if (strncmp(flag[i], "-DKV_BF16", 9) == 0)
            found = flag[i];
        else
            free(flag[i]);
    }
    free(flag);
    return found;
}

/* One type's evidence and objects are never the other's; those of floats, which there were first,
 * are what they were. */
static void a_cache_of_another_type_is_another_environment(void **state)
{
    (void)state;
    struct model *m = opened("random:tiny", 1, 0);
    const struct machine machine = {.device = "a machine, 1 thread"};
    char *floats = model_shape_text(m), *heading = known_heading(&machine, m, 1, 0);
    assert_null(strstr(floats, "kv="));
    assert_null(strstr(heading, "kv="));
    assert_null(kv_flag(m, "attn", REGION_ATTN));
    m->shape.kv_bf16 = true;
    char *halves = model_shape_text(m), *other = known_heading(&machine, m, 1, 0);
    assert_non_null(strstr(halves, " kv=bf16"));
    assert_non_null(strstr(other, " kv=bf16\nweights"));
    char *flag = kv_flag(m, "attn", REGION_ATTN);
    assert_string_equal(flag, "-DKV_BF16=1");
    free(flag);
    flag = kv_flag(m, "attn_in", REGION_ATTN_IN);
    assert_string_equal(flag, "-DKV_BF16=1");
    free(flag);
    free(floats);
    free(halves);
    free(heading);
    free(other);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_by_name_is_the_environment_of_every_rank),
        cmocka_unit_test(other_parts_and_formats_are_other_environments),
        cmocka_unit_test(where_layers_are_alike_nothing_of_formats_is_added),
        cmocka_unit_test(a_cache_of_another_type_is_another_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
