/* SPDX-License-Identifier: Apache-2.0 */
/* test_tampered.c - the loop that pretends (loop_world.h) on a store whose rows a disk or a hand
 * has changed: SQLite calls the file whole, and anything may stand anywhere. It starts, serves and
 * stops, and a kernel that comes back is one that was admitted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/specializer/loop_world.h"

/* What stands where something else belongs. */
static const char *const value[] = {
    "NULL", "-9223372036854775807-1", "9e999", "zeroblob(70000)", "x'ff00fe'", "'%s%n/../\"'"};
/* A column is tried with every third of them: a start takes a while, and all read alike. */
enum { VALUES = sizeof value / sizeof *value, STRIDE = 3 };

static char good_file[160];

/* A store with winners of two slots, and beside it what it was. */
static void make_good_store(void)
{
    char command[500];
    struct specializer *s = start(NULL, NULL);
    WAIT_FOR(specialized("mlp_out/m1") && specialized("head/m1") && asleep(s));
    stop(s);
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    snprintf(good_file, sizeof good_file, "%s.good", store_file);
    snprintf(command, sizeof command, "cp %s %s", store_file, good_file);
    assert_int_equal(system(command), 0);
}

static void put_back(void)
{
    char command[500];
    snprintf(command, sizeof command, "rm -f %s-* && cp %s %s", store_file, good_file, store_file);
    assert_int_equal(system(command), 0);
}

static void change_all(const char *table, const char *column, const char *to)
{
    char text[300];
    snprintf(text, sizeof text, "UPDATE OR IGNORE %s SET %s=%s", table, column, to);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(store_file, &db), SQLITE_OK);
    sqlite3_exec(db, text, NULL, NULL, NULL); /* what may not be NULL stays as it is */
    sqlite3_close(db);
}

/* It comes up, and is asked what operators ask. */
static void comes_up(const char *what)
{
    char *text = NULL;
    struct specializer *s = start("--specializer-paused", "true");
    WAIT_FOR(!specializer_restoring(s));
    if (atomic_load(&s->counts.restored) > 2)
        fail_msg("%s: more came back than there was", what);
    expect(ANSWER_DONE, specializer_slots(s, NULL, &text), &text);
    expect(ANSWER_DONE, specializer_trace(s, NULL, 0, false, &text), &text);
    expect(ANSWER_DONE, specializer_export(s, &text), &text);
    stop(s);
}

static void whatever_a_column_holds_the_loop_comes_up(void **unused)
{
    (void)unused;
    static const struct {
        const char *table, *column;
    } place[] = {
        {"candidate", "object_key"}, {"candidate", "object_sum"}, {"candidate", "env"},
        {"candidate", "source"},     {"candidate", "template"},   {"candidate", "slot"},
        {"candidate", "knobs"},      {"candidate", "name"},       {"candidate", "origin"},
        {"candidate", "state"},      {"candidate", "bit_equal"},  {"candidate", "predicted_s"},
        {"candidate", "evidence"},   {"candidate", "reason"},     {"candidate", "rollbacks"},
        {"candidate", "deaths"},     {"candidate", "trial"},      {"candidate", "changed"},
        {"candidate", "log"},        {"candidate", "key"},        {"winner", "slot"},
        {"winner", "key"},           {"winner", "previous"},      {"winner", "share"},
        {"winner", "gain_eager"},    {"trace", "slot"},           {"trace", "at"},
        {"trace", "event"},          {"trace", "text"},           {"setting", "value"},
        {"setting", "name"}};
    make_good_store();
    for (size_t i = 0; i < sizeof place / sizeof *place; i++)
        for (int v = (int)i % STRIDE; v < VALUES; v += STRIDE) {
            char what[200];
            snprintf(what, sizeof what, "%s.%s=%s", place[i].table, place[i].column, value[v]);
            put_back();
            change_all(place[i].table, place[i].column, value[v]);
            comes_up(what);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(whatever_a_column_holds_the_loop_comes_up),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
