/* SPDX-License-Identifier: Apache-2.0 */
/* test_no_memory.c - the store while allocations fail: see no_memory.h. What it calls written is
 * written as it was given, not with what there was no room for left out.
 */
#include "tests/unit/no_memory.h"

#include "config/json_strict.h"
#include "specializer/store/store_json.h"
#include "tests/unit/specializer/store_world.h"

static const char *path;

/* All in the process that may die: a connection of SQLite's is not for two. */
static void write_and_read(void)
{
    struct err err;
    struct store *store = store_open(path, &err);
    if (!store)
        return;
    struct record r = row_of(7, "mlp_out/m1"), back;
    snprintf(r.reason, sizeof r.reason, "a reason");
    r.evidence.speed = 1.5;
    if (store_move(store, &r, LIFE_ACTIVE, "because", "who", &err) != 0)
        return;
    if (store_get(store, r.key, &back, &err) <= 0)
        return;
    if (strcmp(back.knobs, r.knobs) != 0 || strcmp(back.reason, r.reason) != 0 ||
        back.evidence.speed < 1.4)
        _exit(9);
    cJSON *o = record_json(&back);
    char *text = cJSON_PrintUnformatted(o);
    if (!strstr(text, r.knobs))
        _exit(9);
    free(text);
    cJSON_Delete(o);
    free(back.log);
    store_close(store);
}

static void rows_are_written_and_read(void **unused)
{
    (void)unused;
    struct err err;
    json_memory();
    path = fresh_path();
    struct store *store = store_open(path, &err);
    assert_non_null(store);
    store_close(store);
    survives_without_memory(write_and_read, 3);
}

static void open_one(void)
{
    struct err err;
    struct store *s = store_open(path, &err);
    if (s)
        store_close(s);
}

static void a_store_is_opened(void **unused)
{
    (void)unused;
    path = fresh_path();
    survives_without_memory(open_one, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_written_and_read),
        cmocka_unit_test(a_store_is_opened),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
