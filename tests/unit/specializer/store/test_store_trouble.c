/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_trouble.c - a disk that is full, a file that others hold or damage, a clock that is
 * set back: calls fail and say so, nothing is believed that is not so, nobody is blamed, and when
 * the trouble is over it is over. */
#include "tests/unit/specializer/store_world.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "config/log.h"
#include "specializer/candidate/hash.h"
#include "specializer/store/life_move.h"
#include "tests/unit/specializer/failing_vfs.h"

static struct err err;

static struct store *open_alone(const char *path)
{
    bool taken;
    struct store *s = store_open_alone(path, &taken, &err);
    if (!s)
        fail_msg("%s", err.msg);
    return s;
}

static int32_t deaths_of(struct store *s, const char *key)
{
    struct record r;
    assert_int_equal(store_get(s, key, &r, &err), 1);
    free(r.log);
    return r.deaths;
}

/* ---- marks ---------------------------------------------------------------------------------- */

/* A kernel left this process while nothing could be written, and later the process died of
 * something else, or was stopped. */
static void mark_that_could_not_be_taken_off_is_taken_off_later(void **unused)
{
    (void)unused;
    for (int how = 0; how < 3; how++) {
        char path[120];
        struct record r = row_of(1, "head/m1"), other = row_of(2, "head/m1");
        snprintf(path, sizeof path, "%s", fresh_path());
        struct store *s = open_alone(path);
        assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
        assert_int_equal(store_move(s, &other, LIFE_BUILT, NULL, NULL, &err), 0);
        assert_int_equal(store_trial(s, r.key, true, &err), 0);
        atomic_store(&disk_full, 1 << 30);
        assert_int_equal(store_trial(s, r.key, false, &err), -1);
        assert_non_null(strstr(err.msg, "full"));
        atomic_store(&disk_full, 0);
        if (how == 0) /* the next kernel that comes or goes */
            assert_int_equal(store_trial(s, other.key, false, &err), 0);
        else if (how == 1) /* what is written every few seconds */
            assert_int_equal(store_share(s, "env", "head/m1", 0.5, 0.1, &err), 0);
        if (how == 2) /* the end */
            store_close(s);
        struct store *next = store_open(path, &err);
        assert_int_equal(store_deaths(next, &err), 0);
        assert_int_equal(deaths_of(next, r.key), 0);
        store_close(next);
        if (how < 2)
            store_close(s);
    }
}

/* On trial again, it is a suspect again. */
static void mark_that_is_due_off_does_not_take_off_a_new_one(void **unused)
{
    (void)unused;
    char path[120];
    struct record r = row_of(1, "head/m1");
    snprintf(path, sizeof path, "%s", fresh_path());
    struct store *s = open_alone(path);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
    assert_int_equal(store_trial(s, r.key, true, &err), 0);
    atomic_store(&disk_full, 1 << 30);
    assert_int_equal(store_trial(s, r.key, false, &err), -1);
    atomic_store(&disk_full, 0);
    assert_int_equal(store_trial(s, r.key, true, &err), 0);
    store_close(s);
    s = open_alone(path);
    assert_int_equal(store_deaths(s, &err), 1);
    store_close(s);
}

/* ---- moves ---------------------------------------------------------------------------------- */

static void count_winner(void *ctx, const struct winner *w)
{
    (void)w;
    ++*(int *)ctx;
}

static int winners_of(struct store *s, const char *env)
{
    int n = 0;
    assert_int_equal(store_winners(s, env, count_winner, &n, &err), 0);
    return n;
}

/* A kernel that serves its slot. */
static struct candidate serving(struct store *s, struct slot *slot)
{
    struct candidate c = {
        .key = "0123456789abcdef", .env = "env", .template = template_at(0), .slot = slot};
    for (int to = LIFE_BUILT; to <= LIFE_ACTIVE; to++)
        assert_int_equal(life_move(s, &c, (enum life)to, NULL, NULL, &err), 0);
    return c;
}

/* A kernel was found wrong while nothing could be written: no restart may bring it back. */
static void a_rollback_that_found_no_room_is_written_later(void **unused)
{
    (void)unused;
    for (int how = 0; how < 3; how++) {
        char path[120];
        struct slot slot = {.name = "head/m1"};
        struct record other = row_of(2, "mlp_in/m1"), row;
        snprintf(path, sizeof path, "%s", fresh_path());
        struct store *s = open_alone(path);
        struct candidate c = serving(s, &slot);
        atomic_store(&disk_full, 1 << 30);
        assert_int_equal(life_move(s, &c, LIFE_ROLLED_BACK, "wrong", "r1", &err), 0);
        assert_true(store_owes(s, c.key, &err));
        assert_non_null(strstr(err.msg, "full"));
        assert_int_equal(store_get(s, c.key, &row, &err), 1);
        assert_int_equal(row.state, LIFE_ROLLED_BACK);
        assert_int_equal(row.rollbacks, 1);
        free(row.log);
        atomic_store(&disk_full, 0);
        if (how == 0) /* another kernel's move */
            assert_int_equal(store_move(s, &other, LIFE_PROPOSED, NULL, NULL, &err), 0);
        else if (how == 1) /* what is done every few seconds */
            store_settle(s);
        assert_true(store_owes(s, c.key, NULL) == (how == 2));
        if (how == 2) /* the end */
            store_close(s);
        struct store *next = store_open(path, &err);
        assert_int_equal(store_get(next, c.key, &row, &err), 1);
        assert_int_equal(row.state, LIFE_ROLLED_BACK);
        assert_int_equal(row.rollbacks, 1);
        assert_int_equal(winners_of(next, "env"), 0);
        free(row.log);
        store_close(next);
        if (how < 2)
            store_close(s);
    }
}

/* "Twice is refused" counts those that found no room, and no move overtakes them. */
static void moves_that_are_owed_keep_their_order_and_their_count(void **unused)
{
    (void)unused;
    struct slot slot = {.name = "head/m1"};
    struct store *s = open_alone(fresh_path());
    struct candidate c = serving(s, &slot);
    atomic_store(&disk_full, 1 << 30);
    assert_int_equal(life_move(s, &c, LIFE_ROLLED_BACK, "wrong", NULL, &err), 0);
    assert_int_equal(life_move(s, &c, LIFE_PROPOSED, "looked at again", NULL, &err), -1);
    assert_int_equal(c.state, LIFE_ROLLED_BACK);
    atomic_store(&disk_full, 0);
    assert_int_equal(life_move(s, &c, LIFE_PROPOSED, "looked at again", NULL, &err), 0);
    for (int to = LIFE_BUILT; to <= LIFE_ACTIVE; to++)
        assert_int_equal(life_move(s, &c, (enum life)to, NULL, NULL, &err), 0);
    atomic_store(&disk_full, 1 << 30);
    assert_int_equal(life_move(s, &c, LIFE_ROLLED_BACK, "wrong", NULL, &err), 0);
    assert_int_equal(c.rollbacks, 2);
    assert_int_equal(life_move(s, &c, LIFE_REFUSED, "rolled back twice", NULL, &err), 0);
    atomic_store(&disk_full, 0);
    store_settle(s);
    struct record row;
    assert_int_equal(store_get(s, c.key, &row, &err), 1);
    assert_int_equal(row.state, LIFE_REFUSED);
    assert_int_equal(row.rollbacks, 2);
    assert_int_equal(winners_of(s, "env"), 0);
    free(row.log);
    store_close(s);
}

/* ---- a full disk, a held file ---------------------------------------------------------------- */

/* How many lines the log gets while `times` trace lines are lost. */
static int lines_of_lost_traces(struct store *s, int times)
{
    int old = dup(STDERR_FILENO), n = 0;
    FILE *log = tmpfile();
    assert_non_null(log);
    dup2(fileno(log), STDERR_FILENO);
    for (int i = 0; i < times; i++)
        store_trace(s, "head/m1", NULL, "batch", NULL, "%d candidates", i);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(log);
    for (int c; (c = fgetc(log)) != EOF;)
        n += c == '\n';
    fclose(log);
    return n;
}

static void full_disk_loses_what_is_new_and_says_so_now_and_then(void **unused)
{
    (void)unused;
    struct record r = row_of(1, "head/m1");
    struct store *s = open_alone(fresh_path());
    assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
    atomic_store(&disk_full, 1 << 30);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "full"));
    assert_int_equal(state_of(s, 1), LIFE_BUILT);          /* it can still be read */
    assert_int_equal(lines_of_lost_traces(s, 500), 4 + 6); /* 8, 16, ... 256 */
    assert_true(store_errors(s) >= 501);
    atomic_store(&disk_full, 0);
    assert_int_equal(lines_of_lost_traces(s, 1), 0);
    atomic_store(&disk_full, 1 << 30); /* a new trouble is told anew */
    assert_int_equal(lines_of_lost_traces(s, 3), 3);
    atomic_store(&disk_full, 0);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
    store_close(s);
}

static void file_that_another_holds_fails_calls_and_blames_nobody(void **unused)
{
    (void)unused;
    char path[120];
    struct record r = row_of(1, "head/m1");
    sqlite3 *other;
    snprintf(path, sizeof path, "%s", fresh_path());
    struct store *s = open_alone(path);
    assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
    assert_int_equal(store_trial(s, r.key, true, &err), 0);
    sqlite3_busy_timeout(s->db, 1);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "locked"));
    assert_int_equal(store_trial(s, r.key, false, &err), -1);
    assert_int_equal(state_of(s, 1), LIFE_BUILT);
    sqlite3_exec(other, "COMMIT", NULL, NULL, NULL);
    sqlite3_close(other);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
    store_close(s);
    s = open_alone(path);
    assert_int_equal(store_deaths(s, &err), 0);
    store_close(s);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void use(struct store *s)
{
    struct record r = row_of(3, "head/m1");
    char sum[17];
    store_move(s, &r, LIFE_ACTIVE, "why", NULL, &err);
    if (store_get(s, r.key, &r, &err) > 0)
        free(r.log);
    store_trial(s, r.key, true, &err);
    store_deaths(s, &err);
    store_object_sum(s, r.object_key, sum);
    store_object_used(s, r.object_key);
    store_trace(s, "head/m1", r.key, "batch", NULL, "x");
}

static void scribble(const char *path, const char *suffix, uint64_t *seed)
{
    char name[140], bytes[64];
    struct stat st;
    snprintf(name, sizeof name, "%s%s", path, suffix);
    int fd = open(name, O_RDWR);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (int i = random_below(seed, 6); i >= 0; i--) {
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (char)random_next(seed);
        if (pwrite(fd, bytes, (size_t)random_below(seed, sizeof bytes) + 1,
                   random_below(seed, (int)st.st_size)) < 0)
            fail();
    }
    if (random_below(seed, 4) == 0)
        assert_int_equal(ftruncate(fd, random_below(seed, (int)st.st_size)), 0);
    close(fd);
}

/* Whatever is wrong with the file, before it is opened or while it is: calls return. */
static void file_that_is_scribbled_over_is_no_end_of_anything(void **unused)
{
    (void)unused;
    static const char *const suffix[] = {"", "-wal"};
    uint64_t seed = 7;
    int opened = 0, rounds = SANITIZED ? 40 : 120;
    log_set_level(LOG_ERROR); /* files moved aside, lines lost */
    for (int round = 0; round < rounds; round++) {
        char path[120];
        snprintf(path, sizeof path, "%s", fresh_path());
        struct store *s = open_alone(path);
        for (int i = 0; i < 60; i++) {
            struct record r = row_of(i, "head/m1");
            assert_int_equal(store_move(s, &r, i % 7 ? LIFE_REFUSED : LIFE_ACTIVE, "x", NULL, &err),
                             0);
        }
        if (round % 2) { /* under an open store */
            scribble(path, suffix[round / 2 % 2], &seed);
            use(s);
        }
        store_close(s);
        scribble(path, "", &seed);
        bool taken;
        s = store_open_alone(path, &taken, &err);
        if (s)
            use(s);
        opened += s != NULL;
        store_close(s);
    }
    log_set_level(LOG_INFO);
    assert_true(opened > rounds * 9 / 10); /* moved aside and begun anew */
}

/* ---- the clock ------------------------------------------------------------------------------- */

static void build(struct store *s, int key, const char *sum)
{
    struct record r = row_of(key, "head/m1");
    snprintf(r.object_key, sizeof r.object_key, "0123456789abcdef");
    snprintf(r.object_sum, sizeof r.object_sum, "%s", sum);
    assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
}

/* The object that lies there is the one that was built last, whatever the clock said then. */
static void rows_of_a_time_to_come_are_not_the_newest_for_ever(void **unused)
{
    (void)unused;
    char path[120], sum[17];
    snprintf(path, sizeof path, "%s", fresh_path());
    struct store *s = open_alone(path);
    build(s, 1, "an older build");
    assert_int_equal(store_run(s, &err, "UPDATE candidate SET changed=changed+100000000", ""), 0);
    store_close(s);
    s = open_alone(path);
    struct record r;
    assert_int_equal(store_get(s, "0000000000000001", &r, &err), 1);
    free(r.log);
    assert_true(r.changed_s <= time(NULL));
    s->stamp_s++; /* a second later */
    build(s, 2, "the last build");
    assert_true(store_object_sum(s, "0123456789abcdef", sum));
    assert_string_equal(sum, "the last build");
    s->stamp_s += 1000000; /* and if the clock is set back now, while it runs */
    build(s, 1, "the very last");
    s->stamp_s++;
    build(s, 2, "after that");
    assert_true(store_object_sum(s, "0123456789abcdef", sum));
    assert_string_equal(sum, "after that");
    store_close(s);
}

static int install(void **unused)
{
    failing_vfs_install(9);
    return make_folder(unused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mark_that_could_not_be_taken_off_is_taken_off_later),
        cmocka_unit_test(mark_that_is_due_off_does_not_take_off_a_new_one),
        cmocka_unit_test(a_rollback_that_found_no_room_is_written_later),
        cmocka_unit_test(moves_that_are_owed_keep_their_order_and_their_count),
        cmocka_unit_test(full_disk_loses_what_is_new_and_says_so_now_and_then),
        cmocka_unit_test(file_that_another_holds_fails_calls_and_blames_nobody),
        cmocka_unit_test(file_that_is_scribbled_over_is_no_end_of_anything),
        cmocka_unit_test(rows_of_a_time_to_come_are_not_the_newest_for_ever),
    };
    return cmocka_run_group_tests(tests, install, remove_folder);
}
