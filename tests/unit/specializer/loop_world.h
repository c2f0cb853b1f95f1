/* SPDX-License-Identifier: Apache-2.0 */
/* loop_world.h - the loop on an engine and stages that pretend (fake_engine.h), for tests that
 * watch it or steer it: a world that opens once, a fresh store for every test, and what they look
 * at.
 */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_LOOP_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_LOOP_WORLD_H

#include <cjson/cJSON.h>
#include <sqlite3.h>

#include "tests/unit/specializer/fake_stages.h"

static char folder[] = "/tmp/whet-test-loop-XXXXXX";
static int stores;
static struct config config;
enum { PATIENCE_MS = 300000 }; /* a limit, never reached by a loop that works */
static char store_file[120];
static double began_s; /* when the loop that runs now was started */
static struct specializer *running;

/* ---- the world ------------------------------------------------------------------------------- */

static int open_world(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? fake_open() : -1;
}

static int close_world(void **unused)
{
    (void)unused;
    char command[80];
    fake_end_traffic();
    dispatch_close(fake.dispatch);
    model_close(fake.model);
    for (int i = 0; i < fake.graves && i < 4096; i++)
        free(fake.grave[i]);
    config_free(&config);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* A store of its own for every test. */
static int fresh_store(void **unused)
{
    (void)unused;
    snprintf(store_file, sizeof store_file, "%s/%d/store.db", folder, stores++);
    fake_mend();
    return 0;
}

/* The loop may not be ready. */
static inline struct specializer *start_only(const char *option, const char *value)
{
    char *argv[] = {(char *)"whet", (char *)"--store", store_file,
                    (char *)option, (char *)value,     NULL};
    struct err err = {{0}};
    config_free(&config);
    if (config_parse(&config, option ? 5 : 3, argv, &err) != 0)
        print_error("%s\n", err.msg);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    began_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    struct specializer *s = specializer_start(&config, NULL, &err);
    assert_non_null(s);
    running = s;
    return s;
}

static inline void await_ready(struct specializer *s)
{
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&s->ready); i++)
        usleep(1000);
    assert_true(atomic_load(&s->ready));
}

static inline struct specializer *start(const char *option, const char *value)
{
    struct specializer *s = start_only(option, value);
    await_ready(s);
    return s;
}

static inline void stop(struct specializer *s)
{
    running = NULL;
    specializer_stop(s);
    assert_int_equal(atomic_load(&fake.loaded), 0); /* everything was unloaded */
}

/* Done to the store behind the loop's back. */
static inline void sql(const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(store_file, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 30000);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* `what` ("INSERT ON candidate") finds no room. */
static inline void fill_disk(const char *what)
{
    char text[200];
    snprintf(text, sizeof text,
             "CREATE TRIGGER full BEFORE %s BEGIN SELECT RAISE(ABORT, 'disk is full'); END", what);
    sql(text);
}

static inline void empty_disk(void)
{
    sql("DROP TRIGGER full");
}

/* Asked once more after it was true, it might not be any longer. */
#define WAIT_FOR(what)                                              \
    do {                                                            \
        bool so_ = false;                                           \
        for (int i_ = 0; !(so_ = (what)) && i_ < PATIENCE_MS; i_++) \
            usleep(1000);                                           \
        if (!so_)                                                   \
            fail_msg("in vain: %s", #what);                         \
    } while (0)

/* An object where it was done, else a sentence. */
static cJSON *json_of(enum specializer_answer want, enum specializer_answer got, char **text)
{
    if (got != want)
        print_error("%d: %s\n", (int)got, *text);
    assert_int_equal(got, want);
    assert_non_null(*text);
    cJSON *o = cJSON_Parse(*text);
    assert_true(**text && (cJSON_IsObject(o) == (got == ANSWER_DONE)));
    free(*text);
    *text = NULL;
    return o;
}

static inline void expect(enum specializer_answer want, enum specializer_answer got, char **text)
{
    cJSON_Delete(json_of(want, got, text));
}

static void take_id(void *ctx, const struct trace_row *row)
{
    *(int64_t *)ctx = row->at >= began_s ? row->id : 0;
}

/* The newest row of an event since the loop was started; 0: none. */
static int64_t last_of(struct specializer *s, const char *event)
{
    int64_t id = 0;
    store_events(s->store, event, 0, 1, take_id, &id, NULL);
    return id;
}

/* It said that nothing is worth looking at, and has begun no batch since. A nap alone is no proof:
 * it also naps before it has seen any step. */
static inline bool asleep(struct specializer *s)
{
    return atomic_load(&s->doing) == DOING_SLEEP && last_of(s, "asleep") > last_of(s, "batch");
}

/* A test that failed left its loop running, and the next ones look at the same engine. */
static inline int stop_what_runs(void **unused)
{
    (void)unused;
    atomic_store(&fake.hold_bench, false);
    atomic_store(&fake.hold_canary, false);
    atomic_store(&fake.hold_probes, false);
    if (running)
        specializer_stop(running);
    running = NULL;
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh_store, stop_what_runs)

#endif
