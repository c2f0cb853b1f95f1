/* SPDX-License-Identifier: Apache-2.0 */
/* test_fleet_view.c - how many servers there are, by what a database answers: pauses are reckoned
 * with it, so that it is no number below none and none that has no end. */
#include "tests/unit/unit.h"

#include "specializer/fleet/fleet_private.h"

/* What it counts, and how many rows it shows of that. */
static const char *counts;
static int shown;

static int answer(struct fleet_db *db, double seconds, const char *sql, const char *const *value,
                  int n, struct fleet_rows *rows, struct err *err)
{
    (void)db, (void)seconds, (void)sql, (void)value, (void)n, (void)err;
    *rows = (struct fleet_rows){.n = shown};
    return 0;
}

static const char *cell(const struct fleet_rows *rows, int row, int column)
{
    return row >= rows->n ? "" : column == 0 ? counts : "0";
}

static void release(struct fleet_rows *rows)
{
    rows->n = 0;
}

#define fleet_db_run answer
#define fleet_value cell
#define fleet_rows_free release
#include "specializer/fleet/fleet_lists.c"
#include "specializer/fleet/fleet_view.c"

static int servers(const char *count, int rows)
{
    struct fleet f = {.servers = -1};
    struct err err = {""};
    counts = count;
    shown = rows;
    pthread_mutex_init(&f.lock, NULL);
    assert_int_equal(fleet_look(&f, &err), 0);
    assert_in_range(f.view_due_ns, f.view_ns - INT64_C(1000000000), INT64_MAX);
    cJSON_Delete(f.view);
    pthread_mutex_destroy(&f.lock);
    return f.servers;
}

static void servers_are_what_is_counted_or_seen(void **state)
{
    (void)state;
    assert_int_equal(servers("2", 2), 2);
    assert_int_equal(servers("700", 200), 700);
    assert_int_equal(servers("", 0), 0);
}

static void a_count_that_is_none_is_not_taken(void **state)
{
    (void)state;
    static const char *const all[] = {"-1e300", "-5", "nan", "inf", "-inf", "1e300", "1", "many"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(servers(all[i], 3), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_what_is_counted_or_seen),
        cmocka_unit_test(a_count_that_is_none_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
