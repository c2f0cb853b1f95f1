/* SPDX-License-Identifier: Apache-2.0 */
/* The store's file: what a crash may do to it, and what happens to one that is damaged, foreign,
 * too new or too old. */
#include "tests/unit/specializer/store_world.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/agent/agent_tree.h"
#include "specializer/candidate/hash.h"
#include "specializer/store/store_file.h"

/* ---- crashes ------------------------------------------------------------------------------- */

static int active_rows, winner_rows;

static void count_active(void *ctx, const struct record *r)
{
    (void)ctx;
    active_rows += r->state == LIFE_ACTIVE;
}

static struct winner winner[8];

static void keep_winner(void *ctx, const struct winner *w)
{
    (void)ctx;
    assert_true(winner_rows < (int)(sizeof winner / sizeof *winner));
    winner[winner_rows++] = *w;
}

static void check_winner(struct store *s, const struct winner *w)
{
    struct record r;
    struct err err;
    assert_int_equal(store_get(s, w->key, &r, &err), 1);
    free(r.log);
    assert_int_equal(r.state, LIFE_ACTIVE);
    assert_string_equal(r.slot, w->slot);
}

/* Walks candidates through their lives as fast as it can, until it is killed. Writes the number of
 * finished lives to the pipe after each. */
static void live_until_killed(const char *path, int out, int start)
{
    struct err err;
    struct store *s = store_open(path, &err);
    if (!s)
        _exit(9);
    for (int i = start;; i++) {
        struct record r = row_of(i, i % 3 ? "head/m1" : "mlp_out/m1");
        for (int to = LIFE_PROPOSED; to <= LIFE_ACTIVE; to++)
            if (store_move(s, &r, (enum life)to, "stage", NULL, &err) != 0)
                _exit(8);
        if (i % 5 == 0 && store_move(s, &r, LIFE_ROLLED_BACK, "audit", NULL, &err) != 0)
            _exit(7);
        if (write(out, &i, sizeof i) != sizeof i)
            _exit(6);
    }
}

static void store_is_consistent_after_kill_9_at_any_point(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    uint64_t seed = 11;
    int start = 1, lived = 0;
    for (int round = 0; round < 25; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0)
            live_until_killed(path, pipes[1], start);
        close(pipes[1]);
        int status, last = start - 1, got;
        if (round % 5 == 0) /* not while it still opens the store: one life at least */
            assert_int_equal(read(pipes[0], &last, sizeof last), sizeof last);
        usleep((useconds_t)(5000 + random_below(&seed, 25000)));
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        while (read(pipes[0], &got, sizeof got) == sizeof got)
            last = got;
        close(pipes[0]);

        struct err err;
        struct store *s = store_open(path, &err);
        assert_non_null(s);
        assert_true(access(path, R_OK) == 0);
        /* Whatever was reported as done is there, and what was half done is not half there. */
        for (int i = start; i <= last; i++) {
            enum life want = i % 5 == 0 ? LIFE_ROLLED_BACK : LIFE_ACTIVE, have = state_of(s, i);
            assert_true(have == want || (want == LIFE_ACTIVE && have == LIFE_RETIRED));
        }
        struct record_filter all = {0};
        active_rows = winner_rows = 0;
        assert_int_equal(store_each(s, &all, count_active, NULL, &err), 0);
        assert_int_equal(store_winners(s, "env", keep_winner, NULL, &err), 0);
        for (int i = 0; i < winner_rows; i++)
            check_winner(s, &winner[i]);
        assert_int_equal(active_rows, winner_rows);
        store_close(s);
        lived += last + 1 - start;
        start = last + 10;
    }
    assert_true(lived >= 5);
}

/* ---- files that are not a good store ------------------------------------------------------- */

static int damaged_copies(const char *path)
{
    char command[200];
    snprintf(command, sizeof command, "ls %s.damaged-* 2>/dev/null | grep -c 'damaged-[0-9]*$'",
             path);
    FILE *p = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void fill(const char *path)
{
    struct err err;
    struct store *s = store_open(path, &err);
    for (int i = 1; i < 400; i++) {
        struct record r = row_of(i, "head/m1");
        assert_int_equal(store_move(s, &r, LIFE_REFUSED, "slow", NULL, &err), 0);
    }
    store_close(s);
}

static void store_moves_a_damaged_file_aside_and_starts_anew(void **unused)
{
    (void)unused;
    struct err err;
    for (int kind = 0; kind < 3; kind++) {
        const char *path = fresh_path();
        fill(path);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        if (kind == 0) { /* header */
            fwrite("garbage garbage garbage", 1, 23, f);
        } else if (kind == 1) { /* pages in the middle */
            fseek(f, 8192, SEEK_SET);
            for (int i = 0; i < 40000; i++)
                fputc(0x5a, f);
        } else { /* cut off */
            assert_int_equal(ftruncate(fileno(f), 5000), 0);
        }
        fclose(f);
        struct store *s = store_open(path, &err);
        assert_non_null(s);
        assert_int_equal(damaged_copies(path), 1);
        struct record r = row_of(1, "head/m1");
        assert_int_equal(store_get(s, r.key, &r, &err), 0);
        assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
        store_close(s);
    }
}

/* A path in a folder that is there, of a file that is not. */
static const char *path_in_a_folder(void)
{
    const char *path = fresh_path();
    char dir[120];
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    assert_int_equal(mkdir(dir, 0700), 0);
    return path;
}

static void write_file(const char *path, const char *suffix, const void *bytes, size_t n)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bool holds(const char *path, const char *suffix, const void *bytes, size_t n)
{
    static char have[65536];
    char name[160];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *f = fopen(name, "rb");
    size_t got = f ? fread(have, 1, sizeof have, f) : 0;
    if (f)
        fclose(f);
    return f && got == n && memcmp(have, bytes, n) == 0;
}

/* Byte for byte: the mode of its journal is in the file, too. */
static void store_leaves_other_programs_databases_alone(void **unused)
{
    (void)unused;
    const char *path = path_in_a_folder();
    struct err err;
    sqlite3 *db;
    char before[65536];
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t(x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(before, 1, sizeof before, f);
    fclose(f);
    assert_in_range(n, 100, sizeof before - 1);
    assert_null(store_open(path, &err));
    assert_non_null(strstr(err.msg, "another program"));
    assert_null(store_open_read(path, &err));
    assert_non_null(strstr(err.msg, "another program"));
    assert_int_equal(damaged_copies(path), 0);
    assert_true(holds(path, "", before, n));
}

/* Somebody mistyped a path: the file is refused by name, and so are a database of which nothing
 * tells that it was ours, and one that was cut off before that place. */
static void store_refuses_what_never_was_a_store(void **unused)
{
    (void)unused;
    static unsigned char kind[5][4096];
    size_t size[5] = {4096, 300, 60, 4096, 1};
    struct err err;
    memset(kind[0], 'x', 4096);
    memset(kind[1], 'w', 300);
    memcpy(kind[1] + 68, "whet", 4); /* a text with our mark where SQLite has it */
    memcpy(kind[2], "SQLite format 3", 16);
    memcpy(kind[3], "SQLite format 3", 16);
    memcpy(kind[3] + 68, "Othr", 4);
    for (int i = 0; i < 5; i++) {
        const char *path = path_in_a_folder();
        write_file(path, "", kind[i], size[i]);
        write_file(path, "-wal", "log", 3);
        write_file(path, "-shm", "memory", 6);
        struct store *(*const open[])(const char *, struct err *) = {store_open, store_open_read};
        for (int k = 0; k < 2; k++) {
            assert_null(open[k](path, &err));
            assert_non_null(strstr(err.msg, path));
            assert_int_equal(damaged_copies(path), 0);
            assert_true(holds(path, "", kind[i], size[i]));
            assert_true(holds(path, "-wal", "log", 3));
            assert_true(holds(path, "-shm", "memory", 6));
        }
    }
}

/* What SQLite kept beside a damaged store may hold what the store lacks. */
static void store_moves_a_damaged_files_neighbours_with_it(void **unused)
{
    (void)unused;
    struct err err;
    const char *path = fresh_path();
    fill(path);
    FILE *f = fopen(path, "r+b");
    assert_true(f && fwrite("garbage garbage garbage", 1, 23, f) == 23 && fclose(f) == 0);
    write_file(path, "-wal", "log", 3);
    struct store *s = store_open(path, &err);
    assert_non_null(s);
    store_close(s);
    char command[300];
    snprintf(command, sizeof command, "grep -q log %s.damaged-*-wal", path);
    assert_int_equal(system(command), 0);
}

/* Whoever only looks makes nothing, mends nothing and moves nothing. */
static void store_that_is_read_is_there_and_stays_as_it_is(void **unused)
{
    (void)unused;
    struct err err;
    const char *path = fresh_path();
    assert_null(store_open_read(path, &err));
    assert_non_null(strstr(err.msg, "there is no store"));
    path = path_in_a_folder();
    assert_null(store_open_read(path, &err));
    assert_non_null(strstr(err.msg, "there is no store"));
    assert_non_null(strstr(err.msg, path));
    assert_int_not_equal(access(path, F_OK), 0);
    write_file(path, "", "", 0);
    assert_null(store_open_read(path, &err));
    assert_non_null(strstr(err.msg, "is empty"));
    assert_true(holds(path, "", "", 0));

    fill(path);
    struct store *s = store_open_read(path, &err);
    assert_non_null(s);
    assert_int_equal(state_of(s, 1), LIFE_REFUSED);
    struct record r = row_of(1, "head/m1");
    assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), -1);
    store_close(s);

    FILE *f = fopen(path, "r+b");
    assert_true(f && fwrite("garbage garbage garbage", 1, 23, f) == 23 && fclose(f) == 0);
    assert_null(store_open_read(path, &err));
    assert_non_null(strstr(err.msg, "damaged"));
    assert_int_equal(damaged_copies(path), 0);
}

/* Killed before it ever wrote its log back, then damaged: known as ours all the same. */
static void store_is_known_as_ours_from_its_beginning(void **unused)
{
    (void)unused;
    struct err err;
    const char *path = fresh_path();
    pid_t child = fork();
    if (child == 0)
        _exit(store_open(path, &err) ? 0 : 1); /* not closed */
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(store_file_kind(path), STORE_FILE_OURS);
}

static void keep_row(void *ctx, const struct record *r)
{
    *(struct record *)ctx = *r;
}

static void store_refuses_a_newer_schema_by_name(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err;
    fill(path);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_null(store_open(path, &err));
    assert_non_null(strstr(err.msg, "99"));
    assert_int_equal(damaged_copies(path), 0);
}

/* What version 1 did not have is added; what it had stays. */
static void store_brings_an_older_schema_up(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err;
    struct record r;
    fill(path);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "DROP TABLE agent_node; PRAGMA user_version=1", NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    struct store *s = store_open(path, &err);
    assert_non_null(s);
    struct agent_node n = {.text = "text\n"}, found;
    agent_body_hash(n.text, n.source);
    assert_int_equal(agent_store_put(s, "env", "slot", &n, &err), 0);
    assert_int_equal(agent_store_find(s, n.source, &found, &err), 1);
    assert_string_equal(found.text, n.text);
    tree_node_free(&found);
    assert_int_equal(agent_store_find(s, "fedcba9876543210", &found, &err), 0);
    struct record_filter all = {.limit = 1};
    r.key[0] = 0;
    assert_int_equal(store_each(s, &all, keep_row, &r, &err), 0);
    assert_true(r.key[0] != 0);
    store_close(s);
    assert_int_equal(damaged_copies(path), 0);
}

static void store_says_which_folder_it_cannot_make(void **unused)
{
    (void)unused;
    struct err err;
    assert_null(store_open("/proc/nothing/here/store.db", &err));
    assert_non_null(strstr(err.msg, "/proc/nothing"));
}

/* Kernels lie beside the store and are run: a folder that somebody else may have prepared, or may
 * still write to, is none to take them from. */
static void store_takes_no_folder_of_others_in_one_that_all_share(void **unused)
{
    (void)unused;
    struct err err;
    char shared[120], mine[140], path[160], link[140], through[160];
    snprintf(shared, sizeof shared, "%s", fresh_path());
    *strrchr(shared, '/') = 0;
    snprintf(mine, sizeof mine, "%s/mine", shared);
    snprintf(path, sizeof path, "%s/store.db", mine);
    assert_int_equal(mkdir(shared, 0700), 0);
    assert_int_equal(chmod(shared, 01777), 0); /* as /tmp is */
    struct store *s = store_open(path, &err);  /* made here and now */
    assert_non_null(s);
    store_close(s);
    s = store_open(path, &err); /* found as it was left */
    assert_non_null(s);
    store_close(s);

    assert_int_equal(chmod(mine, 0777), 0);
    assert_null(store_open(path, &err));
    assert_non_null(strstr(err.msg, mine));
    assert_int_equal(chmod(mine, 0700), 0);
    snprintf(link, sizeof link, "%s/link", shared);
    snprintf(through, sizeof through, "%s/store.db", link);
    assert_int_equal(symlink(mine, link), 0);
    assert_null(store_open(through, &err));
    if (geteuid() == 0) { /* else nobody's files can be given away */
        assert_int_equal(chown(mine, 12345, 12345), 0);
        assert_null(store_open(path, &err));
        assert_non_null(strstr(err.msg, mine));
    }
    assert_int_equal(chmod(shared, 0755), 0); /* we made it, but that user may fill it */
    s = store_open(path, &err);
    assert_true(s || geteuid() == 0);
    store_close(s);
}

/* Begun by a program that had no such index: it is made, and everything is kept. */
static void store_of_an_earlier_program_is_asked_by_event_too(void **unused)
{
    (void)unused;
    char value[8] = "", got[100] = "";
    struct err err;
    const char *path = fresh_path();
    struct store *s = store_open(path, &err);
    assert_int_equal(store_set(s, "mode", "pause", &err), 0);
    store_trace(s, NULL, NULL, "pause", "r1", "x");
    assert_int_equal(store_run(s, &err, "DROP INDEX trace_event", ""), 0);
    assert_int_equal(store_run(s, &err, "DROP TABLE agent_node", ""), 0);
    assert_int_equal(store_run(s, &err, "PRAGMA user_version=1", ""), 0);
    store_close(s);
    s = store_open(path, &err);
    assert_true(store_value(s, "mode", value, sizeof value));
    FILE *out = fmemopen(got, sizeof got, "w");
    assert_int_equal(store_events(s, "pause", 0, 3, print_row, out, &err), 0);
    fclose(out);
    assert_string_equal(got, "pause - x|");
    assert_int_equal(store_run(s, &err, "DROP INDEX trace_event", ""), 0); /* it was there */
    assert_int_equal(store_errors(s), 0);
    store_close(s);
}

/* A backup tool's, of which the store knows nothing; one of its own that is gone is damage. */
static void store_lets_tables_of_others_be(void **unused)
{
    (void)unused;
    struct err err;
    const char *path = fresh_path();
    fill(path);
    struct store *s = store_open(path, &err);
    assert_int_equal(store_run(s, &err, "CREATE TABLE _replica_seq(id INTEGER)", ""), 0);
    store_close(s);
    s = store_open(path, &err);
    assert_non_null(s);
    assert_int_equal(damaged_copies(path), 0);
    struct record r = row_of(1, "head/m1");
    assert_int_equal(store_get(s, r.key, &r, &err), 1);
    assert_int_equal(store_run(s, &err, "DROP TABLE pin", ""), 0); /* as many as there were */
    store_close(s);
    s = store_open(path, &err);
    assert_non_null(s);
    assert_int_equal(damaged_copies(path), 1);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_is_consistent_after_kill_9_at_any_point),
        cmocka_unit_test(store_moves_a_damaged_file_aside_and_starts_anew),
        cmocka_unit_test(store_moves_a_damaged_files_neighbours_with_it),
        cmocka_unit_test(store_refuses_what_never_was_a_store),
        cmocka_unit_test(store_that_is_read_is_there_and_stays_as_it_is),
        cmocka_unit_test(store_is_known_as_ours_from_its_beginning),
        cmocka_unit_test(store_lets_tables_of_others_be),
        cmocka_unit_test(store_leaves_other_programs_databases_alone),
        cmocka_unit_test(store_refuses_a_newer_schema_by_name),
        cmocka_unit_test(store_brings_an_older_schema_up),
        cmocka_unit_test(store_says_which_folder_it_cannot_make),
        cmocka_unit_test(store_takes_no_folder_of_others_in_one_that_all_share),
        cmocka_unit_test(store_of_an_earlier_program_is_asked_by_event_too),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
