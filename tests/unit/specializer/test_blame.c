/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/blame.c: what becomes of kernels that the process before this one died with.
 * How that process noted them is in tests/unit/engine/test_crash.c. */
#include "tests/unit/specializer/store_world.h"

#include "specializer/blame.c"

static struct specializer s;
static char *note;

/* A store whose winners of so many slots serve, as an earlier process left it. */
static void open_world(int winners)
{
    struct err err;
    s = (struct specializer){.store = store_open(fresh_path(), &err)};
    assert_non_null(s.store);
    note = path_of(&s);
    for (int i = 1; i <= winners; i++) {
        char slot[40];
        snprintf(slot, sizeof slot, "mlp_out/m%d", i);
        struct record r = row_of(i, slot);
        assert_int_equal(store_move(s.store, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
    }
}

static void close_world(void)
{
    blame_end(&s);
    store_close(s.store);
    free(note);
}

/* The process dies with these kernels in the step, or (inside) in the code of the first; the next
 * one does not look yet. */
static void only_die_with(int kernels, bool inside)
{
    struct kernel k[3] = {0};
    struct crash_kernels step = {.n = kernels, .of = {&k[0], &k[1], &k[2]}};
    struct err err;
    for (int i = 0; i < kernels; i++)
        snprintf(k[i].id, sizeof k[i].id, "%016x", i + 1);
    blame_end(&s);
    assert_int_equal(crash_open(note, &err), 0);
    crash_device(&step, "SIGBUS");
    crash_close();
    if (inside) { /* as a handler would have said */
        FILE *f = fopen(note, "r+");
        const bool yes = true;
        assert_int_equal(fseek(f, offsetof(struct crash_record, inside), SEEK_SET), 0);
        assert_int_equal(fwrite(&yes, sizeof yes, 1, f), 1);
        fclose(f);
    }
    s.trials_blamed = s.crash_told = false; /* another process */
    s.blamed = 0;
}

static void look(void)
{
    struct err err = {""};
    assert_int_equal(blame_deaths(&s, &err), 0);
}

static void die_with(int kernels, bool inside)
{
    only_die_with(kernels, inside);
    look();
}

static struct record row(int key)
{
    struct record r;
    char name[17];
    snprintf(name, sizeof name, "%016x", key);
    assert_int_equal(store_get(s.store, name, &r, NULL), 1);
    free(r.log);
    return r;
}

static void count_winner(void *ctx, const struct winner *w)
{
    (void)w;
    ++*(int *)ctx;
}

static int winners(void)
{
    int n = 0;
    assert_int_equal(store_winners(s.store, "env", count_winner, &n, NULL), 0);
    return n;
}

static void a_kernel_that_crashed_is_refused_at_once(void **state)
{
    (void)state;
    open_world(2);
    die_with(1, true);
    assert_int_equal(row(1).state, LIFE_REFUSED);
    assert_string_equal(row(1).reason, "the server died of SIGBUS in it");
    assert_int_equal(row(1).served_deaths, 1);
    assert_int_equal(row(1).deaths, 0); /* it was on no trial */
    assert_int_equal(row(2).state, LIFE_ACTIVE);
    assert_int_equal(row(2).served_deaths, 0);
    assert_int_equal(winners(), 1);
    assert_int_equal(atomic_load(&s.counts.rolled_back[ROLLBACK_CRASH]), 1);
    char events[400] = "";
    FILE *out = fmemopen(events, sizeof events, "w");
    store_traces(s.store, "mlp_out/m1", 0, 2, print_row, out, NULL);
    fclose(out);
    assert_string_equal(events, "refused kernel 1 the server died of SIGBUS in it|"
                                "rolled_back kernel 1 the server died of SIGBUS in it|");
    close_world();
}

static void so_is_one_that_no_other_was_beside(void **state)
{
    (void)state;
    open_world(2);
    die_with(1, false);
    assert_int_equal(row(1).state, LIFE_REFUSED);
    assert_string_equal(row(1).reason, "the server died of SIGBUS with it alone in the step");
    close_world();
}

static void several_serve_until_they_are_suspected_three_times(void **state)
{
    (void)state;
    open_world(3);
    for (int death = 1; death < DEATHS_MOST; death++) {
        die_with(2, false);
        assert_int_equal(row(1).state, LIFE_ACTIVE);
        assert_int_equal(row(2).served_deaths, death);
    }
    blame_end(&s);
    look(); /* a process that ended otherwise says nothing of them */
    assert_int_equal(row(2).served_deaths, DEATHS_MOST - 1);
    die_with(3, false);
    assert_int_equal(row(1).state, LIFE_REFUSED);
    assert_int_equal(row(2).state, LIFE_REFUSED);
    assert_non_null(strstr(row(1).reason, "with it in the step, 3 times"));
    assert_int_equal(row(3).state, LIFE_ACTIVE);
    assert_int_equal(row(3).served_deaths, 1);
    close_world();
}

/* On trial when it happened, unknown to the store, out already: no more than the law allows. */
static void others_are_judged_as_far_as_their_state_allows(void **state)
{
    (void)state;
    struct err err;
    open_world(0);
    struct record r = row_of(1, "mlp_out/m1");
    assert_int_equal(store_move(s.store, &r, LIFE_SHADOWED, NULL, NULL, &err), 0);
    assert_int_equal(store_trial(s.store, r.key, true, &err), 0);
    die_with(1, true);
    assert_int_equal(row(1).state, LIFE_REFUSED);
    assert_int_equal(row(1).deaths, 1);
    die_with(1, true);
    assert_int_equal(row(1).state, LIFE_REFUSED);
    die_with(2, false); /* the second is not known */
    assert_int_equal(row(1).served_deaths, 3);
    struct record now = row(1);
    assert_true(record_deadly(&now));
    close_world();
}

/* Behind the store's back. */
static void sql(const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(store_path(s.store), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 30000);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* A kernel that ends the process would serve again in the next one, and the next. */
static void a_death_waits_until_it_can_be_noted(void **state)
{
    (void)state;
    struct err err = {""};
    struct crash_record c;
    open_world(2);
    only_die_with(2, true);
    sql("CREATE TRIGGER full BEFORE UPDATE OF served_deaths ON candidate WHEN"
        " NEW.key='0000000000000002' BEGIN SELECT RAISE(ABORT, 'disk is full'); END");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(blame_deaths(&s, &err), -1);
        assert_non_null(strstr(err.msg, "disk is full"));
        assert_int_equal(crash_read(note, &c), 1); /* nothing of it is lost */
        assert_false(s.notes_crashes);
        assert_int_equal(row(1).served_deaths, 1); /* and none counts twice */
    }
    sql("DROP TRIGGER full");
    look();
    assert_true(s.notes_crashes);
    assert_int_equal(row(1).served_deaths, 1);
    assert_int_equal(row(2).served_deaths, 1);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_crashed_is_refused_at_once),
        cmocka_unit_test(so_is_one_that_no_other_was_beside),
        cmocka_unit_test(several_serve_until_they_are_suspected_three_times),
        cmocka_unit_test(a_death_waits_until_it_can_be_noted),
        cmocka_unit_test(others_are_judged_as_far_as_their_state_allows),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
