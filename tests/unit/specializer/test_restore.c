/* SPDX-License-Identifier: Apache-2.0 */
/* Restores, in the loop that pretends (loop_world.h): winners come back after a restart, whatever
 * has become of their objects, of the compiler or of the machine meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/specializer/loop_world.h"

static void lose_objects(void)
{
    char command[200];
    snprintf(command, sizeof command, "rm -f %s.objects/*", store_file);
    assert_int_equal(system(command), 0);
}

static void loop_restores_its_winners_after_a_restart_even_when_paused(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    char id[24];
    snprintf(id, sizeof id, "%s", serving("mlp_out/m1")->id);
    stop(s);
    int builds = atomic_load(&fake.builds), probes = atomic_load(&fake.probes);
    int benches = atomic_load(&fake.benches);
    atomic_store(&fake.short_probes, 0);
    atomic_store(&fake.short_benches, 0);
    int64_t begin = clock_ns();
    s = start("--specializer-paused", "true");
    WAIT_FOR(atomic_load(&s->counts.restored) == 2);
    print_message("restored in %.0f ms\n", (double)(clock_ns() - begin) * 1e-6);
    assert_string_equal(serving("mlp_out/m1")->id, id);
    assert_int_equal(serving("mlp_out/m1")->origin, ORIGIN_RESTORED);
    /* What makes it quick: nothing compiled, nothing looked at in full, each looked at once. */
    assert_int_equal(atomic_load(&fake.builds), builds);
    assert_int_equal(atomic_load(&fake.probes), probes);
    assert_int_equal(atomic_load(&fake.benches), benches);
    assert_int_equal(atomic_load(&fake.short_probes), 2);
    assert_int_equal(atomic_load(&fake.short_benches), 2);
    stop(s);
    /* An object that is lost is built again. */
    lose_objects();
    s = start("--specializer-paused", "true");
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    assert_true(atomic_load(&fake.builds) > builds);
    stop(s);
}

/* The machine was busy when it was measured, and looks slower than it is. */
static void loop_restores_what_is_faster_than_the_machine_seems_to_allow(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    stop(s);
    atomic_store(&fake.too_fast, true);
    s = start("--specializer-paused", "true");
    WAIT_FOR(!specializer_restoring(s));
    atomic_store(&fake.too_fast, false);
    assert_int_equal(atomic_load(&s->counts.restored), 2);
    assert_true(specialized("mlp_out/m1") && specialized("head/m1"));
    stop(s);
}

static void loop_without_a_compiler_restores_and_searches_nothing(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && asleep(s));
    stop(s);
    atomic_store(&fake.compiler, false);
    int builds = atomic_load(&fake.builds);
    s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1"));
    WAIT_FOR(atomic_load(&s->doing) == DOING_HELPLESS);
    usleep(200000);
    assert_int_equal(atomic_load(&fake.builds), builds);
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    specializer_metrics(s, out);
    fclose(out);
    assert_non_null(strstr(text, "whet_specializer_compiler_available 0"));
    assert_non_null(strstr(text, "whet_specializer_searching 0"));
    free(text);
    stop(s);
}

/* The object of a winner was lost, and what the compiler makes of it now has other bytes (another
 * linker, say): it is not the file that passed, so it is searched for again like any other. */
static void loop_proves_a_winner_anew_whose_object_is_built_with_other_bytes(void **unused)
{
    (void)unused;
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    stop(s);
    lose_objects();
    atomic_store(&fake.other_bytes, true);
    int builds = atomic_load(&fake.builds);
    s = start(NULL, NULL);
    WAIT_FOR(!specializer_restoring(s)); /* it was given up: not built for ever */
    assert_true(atomic_load(&fake.builds) >= builds + 2);
    assert_int_equal(atomic_load(&s->counts.restored), 0);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    stop(s);
}

static void count_row(void *ctx, const struct record *r)
{
    (void)r;
    ++*(int *)ctx;
}

/* That there was no room for it is said of this process and its options, not of the kernel. */
static void loop_refuses_no_kernel_for_which_there_was_no_room(void **unused)
{
    (void)unused;
    int probed = 0;
    atomic_store(&fake.no_room, true);
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(atomic_load(&s->counts.stage[STAGE_LOAD][STAGE_REFUSE]) >= 3);
    assert_false(specialized("mlp_out/m1"));
    stop(s);
    atomic_store(&fake.no_room, false);
    s = start("--specializer-paused", "true");
    struct record_filter f = {.env = s->keys.env, .states = 1u << LIFE_PROBED};
    assert_int_equal(store_each(s->store, &f, count_row, &probed, NULL), 0);
    assert_true(probed >= 3); /* as far as they came: there is nothing against them */
    stop(s);
    s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1"));
    stop(s);
}

/* Whoever can write to an object can make it another; one that is a link is somebody's, elsewhere.
 */
static void loop_loads_no_object_that_others_can_write_to(void **unused)
{
    (void)unused;
    static const char *const spoil[] = {
        "chmod 666 %s.objects/*", "chmod 660 %s.objects/*",
        "for f in %s.objects/*; do mv $f $f.was && ln -s $f.was $f; done"};
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    stop(s);
    for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
        char command[400];
        snprintf(command, sizeof command, spoil[i], store_file);
        assert_int_equal(system(command), 0);
        int builds = atomic_load(&fake.builds);
        s = start("--specializer-paused", "true");
        WAIT_FOR(!specializer_restoring(s));
        assert_true(atomic_load(&fake.builds) > builds);       /* as if they were not there */
        assert_int_equal(atomic_load(&s->counts.restored), 2); /* and nobody is to blame */
        stop(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(loop_restores_its_winners_after_a_restart_even_when_paused),
        TEST(loop_restores_what_is_faster_than_the_machine_seems_to_allow),
        TEST(loop_without_a_compiler_restores_and_searches_nothing),
        TEST(loop_proves_a_winner_anew_whose_object_is_built_with_other_bytes),
        TEST(loop_refuses_no_kernel_for_which_there_was_no_room),
        TEST(loop_loads_no_object_that_others_can_write_to),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
