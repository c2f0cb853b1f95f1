/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/starts.c on a backend and a compiler that pretend (fake_engine.h): what
 * becomes of a bench's starts where there is no compiler, where it fails and where nothing can be
 * loaded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/winners.h"
#include "tests/unit/specializer/loop_world.h"

static const char *numerics = "tolerance";
static int in_digits; /* of those that were shown */

static void count(void *ctx, const struct slot *slot, const struct kernel *k)
{
    int *n = ctx;
    assert_ptr_equal(atomic_load(&slot->kernel), k);
    assert_int_not_equal(k->origin, ORIGIN_EAGER);
    in_digits += strstr(k->name, " PACK=1 ") != NULL;
    ++*n;
}

/* The starts of a step of one token: what starts_load() says, and how many it showed. */
static int load(int *shown, struct err *err)
{
    char *argv[] = {(char *)"whet",   (char *)"--store",
                    store_file,       (char *)"--specializer-numerics",
                    (char *)numerics, NULL};
    config_free(&config);
    assert_int_equal(config_parse(&config, 5, argv, err), 0);
    *shown = in_digits = 0;
    return starts_load(&config, fake.model, (struct backend *)&fake, &fake_ops, fake.dispatch, 1,
                       64, count, shown, err);
}

/* Every slot back on eager, and what was loaded unloaded. */
static void empty(void)
{
    for (int i = 0; i < dispatch_slots(fake.dispatch); i++) {
        struct slot *slot = dispatch_slot_at(fake.dispatch, i);
        struct kernel *k = (struct kernel *)atomic_load(&slot->kernel);
        dispatch_publish(fake.dispatch, slot, slot->eager);
        if (k->origin != ORIGIN_EAGER)
            fake_unload(NULL, k);
    }
    assert_int_equal(atomic_load(&fake.loaded), 0);
}

static int all_starts(void)
{
    struct err err = {""};
    int shown, n = load(&shown, &err);
    assert_true(n > 0);
    assert_int_equal(shown, n);
    empty();
    return n;
}

static void starts_are_built_once_and_published(void **unused)
{
    (void)unused;
    int builds = atomic_load(&fake.builds), probes = atomic_load(&fake.probes);
    int n = all_starts();
    assert_int_equal(atomic_load(&fake.builds), builds + n);
    assert_int_equal(all_starts(), n);
    assert_int_equal(atomic_load(&fake.builds), builds + n); /* their objects are there */
    assert_int_equal(atomic_load(&fake.probes), probes);     /* for benches: nothing is proven */
}

/* What is measured is what a search might publish. */
static void starts_keep_to_the_numerics(void **unused)
{
    (void)unused;
    numerics = "tolerance";
    all_starts();
    if (in_digits == 0)
        skip(); /* a CPU without int8 products */
    numerics = "bit_equal";
    all_starts();
    assert_int_equal(in_digits, 0);
    numerics = "tolerance";
}

static void a_start_that_is_not_built_leaves_its_slot_on_eager(void **unused)
{
    (void)unused;
    struct err err = {""};
    int shown, all = all_starts();
    fresh_store(NULL);
    atomic_store(&fake.builds_die, 1);
    assert_int_equal(load(&shown, &err), all - 1);
    assert_int_equal(shown, all - 1);
    assert_int_equal(atomic_load(&fake.loaded), all - 1);
    empty();
    fresh_store(NULL);
    atomic_store(&fake.builds_die, 1000);
    assert_int_equal(load(&shown, &err), 0);
    assert_int_equal(shown, 0);
    assert_int_equal(atomic_load(&fake.loaded), 0);
}

static void starts_without_a_compiler_are_an_error(void **unused)
{
    (void)unused;
    struct err err = {""};
    int shown;
    atomic_store(&fake.compiler, false);
    assert_int_equal(load(&shown, &err), -1);
    assert_non_null(strstr(err.msg, "no cc on PATH"));
    assert_int_equal(shown, 0);
}

static void starts_that_cannot_be_loaded_are_an_error_that_names_one(void **unused)
{
    (void)unused;
    struct err err = {""};
    int shown;
    atomic_store(&fake.no_room, true);
    assert_int_equal(load(&shown, &err), -1);
    assert_non_null(strstr(err.msg, "specializer.pack_mib"));
    assert_non_null(strstr(err.msg, " PACK="));
    assert_int_equal(shown, 0);
    assert_int_equal(atomic_load(&fake.loaded), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(starts_are_built_once_and_published, fresh_store),
        cmocka_unit_test_setup(starts_keep_to_the_numerics, fresh_store),
        cmocka_unit_test_setup(a_start_that_is_not_built_leaves_its_slot_on_eager, fresh_store),
        cmocka_unit_test_setup(starts_without_a_compiler_are_an_error, fresh_store),
        cmocka_unit_test_setup(starts_that_cannot_be_loaded_are_an_error_that_names_one,
                               fresh_store),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
