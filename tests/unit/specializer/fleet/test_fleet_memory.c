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

static struct fleet *open_memory(void)
{
    struct fleet *f = xcalloc(1, sizeof *f);
    f->slots = dispatch_open_names();
    f->rows = xcalloc((size_t)dispatch_slots(f->slots), sizeof *f->rows);
    f->wake_fd = -1;
    atomic_store(&f->stop, true); /* the store is not looked at */
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->in_use, NULL);
    return f;
}

static void close_memory(struct fleet *f)
{
    for (int i = 0; i < dispatch_slots(f->slots); i++)
        free(f->rows[i].row);
    free(f->rows);
    free(f->suspect);
    dispatch_close(f->slots);
    free(f);
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
    assert_false(distrusted(f, "fedcba9876543210"));
    for (int key = 2; key < MISSES_ENOUGH; key++) {
        tell_speed(f, key, "3");
        compare(f, key, 1);
    }
    assert_true(distrusted(f, "fedcba9876543210"));
    close_memory(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_speed_that_is_not_seen_here_counts_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
