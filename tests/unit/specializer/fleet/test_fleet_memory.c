/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/fleet/fleet_memory.c: what is kept of others, and for how long. The answers
 * of a database are tables here.
 */
#include "tests/unit/unit.h"

#include <stdio.h>

#include "specializer/fleet/fleet_db.h"
#include "specializer/fleet/fleet_row.h"

enum { ROWS_MOST = 1100 };
static char cell[ROWS_MOST][FLEET_COLUMNS][400];

static const char *table_value(const struct fleet_rows *rows, int row, int column)
{
    return row < rows->n ? cell[row][column] : "";
}

#define fleet_value table_value
#include "specializer/fleet/fleet_memory.c"
#include "tests/unit/specializer/fleet/memory_world.h"

static struct fleet *open_memory(void)
{
    return memory_open(dispatch_open_names());
}

static void close_memory(struct fleet *f)
{
    struct dispatch *slots = f->slots;
    memory_close(f);
    dispatch_close(slots);
}

/* ---- speeds ---------------------------------------------------------------------------------- */

/* A server says that kernel `key` has this speed. */
static void tell_speed(struct fleet *f, int key, const char *speed)
{
    static const char *const fixed[FLEET_COLUMNS] = {[FLEET_SEQ] = "17",
                                                     [FLEET_SERVER] = "fedcba9876543210",
                                                     [FLEET_SLOT] = "mlp_out/m1",
                                                     [FLEET_TEMPLATE] = "mlp_out",
                                                     [FLEET_SOURCE] = "00000000000000aa",
                                                     [FLEET_STATE] = "active",
                                                     [FLEET_OWN_S] = "1.5e-05"};
    struct fleet_rows rows = {.n = 1, .columns = FLEET_COLUMNS};
    struct point p = template_defaults(template_find("mlp_out"));
    for (int c = 0; c < FLEET_COLUMNS; c++)
        snprintf(cell[0][c], sizeof cell[0][c], "%s", fixed[c] ? fixed[c] : "");
    point_text(template_find("mlp_out"), &p, cell[0][FLEET_KNOBS], sizeof cell[0][FLEET_KNOBS]);
    snprintf(cell[0][FLEET_KEY], sizeof cell[0][FLEET_KEY], "%016x", key);
    snprintf(cell[0][FLEET_SPEED], sizeof cell[0][FLEET_SPEED], "%s", speed);
    fleet_take_rows(f, &rows);
    assert_int_equal(atomic_load(&f->refused), 0);
}

/* This server has it at eager's speed, and says so with every move of the candidate. */
static void compare(struct fleet *f, int key, int times)
{
    struct record own = {.slot = "mlp_out/m1", .evidence.speed = 1};
    snprintf(own.key, sizeof own.key, "%016x", key);
    for (int i = 0; i < times; i++)
        fleet_compare(f, &own);
}

static void one_speed_that_is_not_seen_here_counts_once(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    tell_speed(f, 1, "3");
    compare(f, 1, 10);
    assert_int_equal(f->peer[0].misses, 1);
    tell_speed(f, 1, "3"); /* told again after a reconnect */
    compare(f, 1, 10);
    assert_int_equal(f->peer[0].misses, 1);
    tell_speed(f, 1, "2"); /* measured again there */
    compare(f, 1, 10);
    assert_int_equal(f->peer[0].misses, 2);
    assert_false(fleet_distrusted(f, "fedcba9876543210"));
    for (int key = 2; key < MISSES_ENOUGH; key++) {
        tell_speed(f, key, "3");
        compare(f, key, 1);
    }
    assert_true(fleet_distrusted(f, "fedcba9876543210"));
    close_memory(f);
}

/* ---- a full slot ----------------------------------------------------------------------------- */

/* Server `server` says in the row of this number that kernel `key` is in `state`, with `speed`. */
static struct fleet_row said(int64_t seq, int server, int key, enum life state, double speed)
{
    struct fleet_row r = {.state = state, .speed = speed, .own_s = 1e-5, .seq = seq};
    snprintf(r.key, sizeof r.key, "%016x", key);
    snprintf(r.server, sizeof r.server, "%016x", server);
    return r;
}

static void take(struct fleet *f, struct fleet_row r, const struct serving *serving)
{
    take_row(f, 0, &r, serving);
}

static const struct fleet_row *of_key(struct fleet *f, int key)
{
    char text[KEY_HEX + 1];
    snprintf(text, sizeof text, "%016x", key);
    for (int i = 0; i < f->rows[0].n; i++)
        if (strcmp(f->rows[0].row[i].key, text) == 0)
            return &f->rows[0].row[i];
    return NULL;
}

static int words_about(struct fleet *f, int key)
{
    char text[KEY_HEX + 1];
    int n = 0;
    snprintf(text, sizeof text, "%016x", key);
    for (int i = 0; i < f->rows[0].n; i++)
        n += strcmp(f->rows[0].row[i].key, text) == 0;
    return n;
}

static const struct serving nothing = {NULL, 0};

/* 64 servers, of which each has one kernel that serves and seven that did. */
static void a_new_winner_comes_into_a_slot_full_of_winners(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    for (int i = 0; i < ROWS_OF_SLOT; i++)
        take(f, said(1 + i, 1 + i / 8, 1 + i, i % 8 ? LIFE_RETIRED : LIFE_ACTIVE, i == 100 ? 1 : 2),
             &nothing);
    assert_int_equal(atomic_load(&f->dropped), 0);
    take(f, said(1000, 777, 5000, LIFE_ACTIVE, 3), &nothing);
    assert_int_equal(f->rows[0].n, ROWS_OF_SLOT);
    assert_non_null(of_key(f, 5000));
    assert_null(of_key(f, 101)); /* retired, and the slowest */
    assert_int_equal(atomic_load(&f->dropped), 1);
    assert_int_equal(atomic_load(&f->taken), ROWS_OF_SLOT + 1);
    take(f, said(1001, 778, 5001, LIFE_PROPOSED, 0), &nothing); /* no reason to forget a winner */
    assert_null(of_key(f, 5001));
    assert_int_equal(atomic_load(&f->dropped), 2);
    close_memory(f);
}

static void where_all_serve_the_slowest_goes_but_never_the_newest(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    for (int i = 0; i < ROWS_OF_SLOT; i++)
        take(f, said(1 + i, 1 + i, 1 + i, LIFE_ACTIVE, 1 + 0.01 * (ROWS_OF_SLOT - i)), &nothing);
    take(f, said(1000, 777, 5000, LIFE_ACTIVE, 1.5), &nothing);
    assert_non_null(of_key(f, 5000));
    assert_non_null(of_key(f, ROWS_OF_SLOT)); /* the slowest, but the newest then */
    assert_null(of_key(f, ROWS_OF_SLOT - 1));
    take(f, said(1001, 778, 5001, LIFE_RETIRED, 9), &nothing); /* serves nowhere */
    assert_null(of_key(f, 5001));
    close_memory(f);
}

static void of_many_words_about_one_kernel_one_goes_first(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    for (int i = 0; i < ROWS_OF_SLOT; i++) /* the first kernel is the fastest, and everybody's */
        take(f, said(1 + i, 1 + i, i % 2 ? 1 : 2 + i, LIFE_ACTIVE, i % 2 ? 5 : 1.1), &nothing);
    take(f, said(1000, 777, 5000, LIFE_ACTIVE, 2), &nothing);
    assert_non_null(of_key(f, 5000));
    assert_int_equal(words_about(f, 1), ROWS_OF_SLOT / 2 - 1);
    close_memory(f);
}

static void what_is_said_of_a_kernel_that_serves_here_stays(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    char key[1][KEY_HEX + 1] = {"0000000000000001"};
    struct serving serving = {key, 1};
    for (int i = 0; i < ROWS_OF_SLOT; i++)
        take(f, said(1 + i, 1 + i, 1 + i, LIFE_RETIRED, i == 0 ? 1.1 : 2), &serving);
    for (int i = 0; i < 2 * ROWS_OF_SLOT; i++)
        take(f, said(1000 + i, 2000 + i, 2000 + i, LIFE_ACTIVE, 3), &serving);
    assert_non_null(of_key(f, 1));
    assert_int_equal(f->rows[0].n, ROWS_OF_SLOT);
    close_memory(f);
}

/* From the newest on, as they are read when a connection begins. */
static void the_newest_stay_in_whatever_order_they_come(void **state)
{
    (void)state;
    static const enum life states[] = {LIFE_REFUSED, LIFE_RETIRED, LIFE_ACTIVE};
    for (int k = 0; k < 3; k++)
        for (int up = 0; up < 2; up++) {
            struct fleet *f = open_memory();
            for (int i = 1; i <= 3 * ROWS_OF_SLOT; i++) {
                int n = up ? i : 3 * ROWS_OF_SLOT + 1 - i;
                take(f, said(n, n, n, states[k], 2), &nothing);
            }
            for (int n = 1; n <= 3 * ROWS_OF_SLOT; n++)
                assert_int_equal(of_key(f, n) != NULL, n > 2 * ROWS_OF_SLOT);
            assert_int_equal(atomic_load(&f->dropped), 2 * ROWS_OF_SLOT);
            close_memory(f);
        }
}

/* What nobody listens to is forgotten before anything else. */
static void words_of_a_distrusted_server_go_first(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    f->peers = 1;
    f->peer[0].misses = MISSES_ENOUGH;
    snprintf(f->peer[0].server, sizeof f->peer[0].server, "%016x", 300);
    for (int i = 0; i < ROWS_OF_SLOT; i++)
        take(f, said(1 + i, 1 + i, 1 + i, i % 2 ? LIFE_RETIRED : LIFE_REFUSED, i == 299 ? 9 : 2),
             &nothing);
    take(f, said(1000, 777, 5000, LIFE_PROPOSED, 0), &nothing);
    assert_non_null(of_key(f, 5000));
    assert_null(of_key(f, 300));
    take(f, said(1001, 300, 300, LIFE_ACTIVE, 9), &nothing);
    assert_null(of_key(f, 300));
    close_memory(f);
}

/* ---- retractions ----------------------------------------------------------------------------- */

static const char *retracted_at = "";

/* Kernels key ... key + n - 1 are found wrong, as rows seq ... of the database. */
static void retract(struct fleet *f, int seq, int key, int n, const char *why)
{
    struct fleet_rows rows = {.n = n, .columns = 6};
    for (int i = 0; i < n; i++) {
        snprintf(cell[i][0], sizeof cell[i][0], "%d", seq + i);
        snprintf(cell[i][1], sizeof cell[i][1], "%016x", key + i);
        snprintf(cell[i][2], sizeof cell[i][2], "mlp_out/m1");
        snprintf(cell[i][4], sizeof cell[i][4], "somebody");
        snprintf(cell[i][5], sizeof cell[i][5], "%s", why);
        snprintf(cell[i][6], sizeof cell[i][6], "%s", retracted_at);
    }
    fleet_take_retractions(f, &rows);
}

static int ask_for_all(struct fleet *f, struct fleet_suspect *last)
{
    int n = 0;
    while (fleet_suspect_next(f, last))
        n++;
    return n;
}

static void a_kernel_that_is_found_wrong_again_is_looked_at_again(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    struct fleet_suspect x;
    int64_t before = clock_ns();
    retract(f, 5, 1, 1, "first");
    retract(f, 6, 2, 1, "another");
    assert_int_equal(ask_for_all(f, &x), 2);
    retract(f, 5, 1, 1, "first"); /* read again after a reconnect */
    assert_int_equal(ask_for_all(f, &x), 0);
    assert_true(fleet_retracted(f, "0000000000000001", before));
    int64_t between = clock_ns();
    assert_false(fleet_retracted(f, "0000000000000001", between));
    retract(f, 7, 1, 1, "second");
    assert_int_equal(ask_for_all(f, &x), 1);
    assert_string_equal(x.reason, "second");
    assert_int_equal(f->suspects, 2);
    assert_true(fleet_retracted(f, "0000000000000001", between));
    assert_false(fleet_retracted(f, "0000000000000002", between));
    close_memory(f);
}

/* Its numbers begin again where they were when it was saved. */
static void a_retraction_after_the_database_was_restored_is_news(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    struct fleet_suspect x;
    retract(f, 9000, 1, 1, "first");
    assert_int_equal(ask_for_all(f, &x), 1);
    int64_t between = clock_ns();
    retract(f, 50, 1, 1, "wrong again");
    assert_int_equal(ask_for_all(f, &x), 1);
    assert_string_equal(x.reason, "wrong again");
    assert_true(fleet_retracted(f, "0000000000000001", between));
    retract(f, 50, 1, 1, "wrong again"); /* read again */
    assert_int_equal(ask_for_all(f, &x), 0);
    retracted_at = "1764460800.5"; /* the same number, at another time */
    retract(f, 50, 1, 1, "and again");
    retracted_at = "";
    assert_int_equal(ask_for_all(f, &x), 1);
    close_memory(f);
}

static void made_up_retractions_do_not_silence_later_ones(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    struct fleet_suspect x = {{0}};
    retract(f, 1, 1, 400, "made up");
    assert_int_equal(ask_for_all(f, &x), 400);
    retract(f, 401, 401, 1000, "made up");
    retract(f, 1401, 5000, 1, "really wrong");
    assert_int_equal(f->suspects, SUSPECTS_MOST);
    assert_int_equal(ask_for_all(f, &x), 1001);
    assert_string_equal(x.reason, "really wrong");
    assert_false(fleet_retracted(f, "0000000000000001", 0)); /* the oldest went */
    assert_true(atomic_load(&f->forgotten) > 0);
    close_memory(f);
}

/* One of a kernel that serves here stays, however many come after it. */
static void what_is_said_of_a_serving_kernel_is_not_forgotten(void **state)
{
    (void)state;
    struct fleet *f = open_memory();
    char key[1][KEY_HEX + 1] = {"0000000000000001"};
    struct serving serving = {key, 1};
    struct fleet_suspect x = {.key = "00000000ffffffff", .seq = 5000, .came_ns = 1};
    retract(f, 1, 1, SUSPECTS_MOST, "made up");
    assert_true(take_retraction(f, &x, &serving));
    assert_int_equal(f->suspects, SUSPECTS_MOST);
    assert_non_null(suspect_of(f, key[0]));
    assert_null(suspect_of(f, "0000000000000002"));
    close_memory(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_speed_that_is_not_seen_here_counts_once),
        cmocka_unit_test(a_kernel_that_is_found_wrong_again_is_looked_at_again),
        cmocka_unit_test(a_new_winner_comes_into_a_slot_full_of_winners),
        cmocka_unit_test(where_all_serve_the_slowest_goes_but_never_the_newest),
        cmocka_unit_test(of_many_words_about_one_kernel_one_goes_first),
        cmocka_unit_test(what_is_said_of_a_kernel_that_serves_here_stays),
        cmocka_unit_test(the_newest_stay_in_whatever_order_they_come),
        cmocka_unit_test(words_of_a_distrusted_server_go_first),
        cmocka_unit_test(a_retraction_after_the_database_was_restored_is_news),
        cmocka_unit_test(made_up_retractions_do_not_silence_later_ones),
        cmocka_unit_test(what_is_said_of_a_serving_kernel_is_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
