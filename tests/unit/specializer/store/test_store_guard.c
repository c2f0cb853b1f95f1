/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_guard.c - a store that somebody else could have prepared, and one that somebody else
 * has: what lies beside a store is run, and what is marked in it is blamed. */
#include "tests/unit/specializer/store_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "specializer/store/store_file.h"

enum { OTHER = 12345 };

static struct err err;

/* A fresh folder of this mode; a path in it. */
static const char *in_folder(mode_t mode, char out[160])
{
    snprintf(out, 160, "%s", fresh_path());
    *strrchr(out, '/') = 0;
    assert_int_equal(mkdir(out, 0700), 0);
    assert_int_equal(chmod(out, mode), 0);
    strcat(out, "/x.db");
    return out;
}

static bool there(const char *path, const char *suffix)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    return access(name, F_OK) == 0;
}

static void plant(const char *path, const char *suffix, const char *text, mode_t mode)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *f = fopen(name, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
    assert_int_equal(chmod(name, mode), 0);
}

/* ---- somebody else could have prepared it -------------------------------------------------- */

/* Anybody could lay x.db.objects there, or x.db-journal, which SQLite would play back. */
static void store_directly_in_a_shared_folder_is_refused(void **unused)
{
    (void)unused;
    static const mode_t modes[] = {01777, 0777, 0775, 01770};
    char path[160];
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_null(store_open(in_folder(modes[i], path), &err));
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, modes[i] & S_ISVTX ? "shared by all" : "other users"));
        assert_false(there(path, ""));
    }
    assert_null(store_open("/tmp/whet-test-never-made.db", &err));
    assert_non_null(strstr(err.msg, "/tmp is shared by all users"));
}

static void store_in_a_folder_of_its_own_there_is_ours_alone(void **unused)
{
    (void)unused;
    struct stat st;
    char path[160];
    in_folder(01777, path);
    strcpy(strrchr(path, '/'), "/own/x.db");
    struct store *s = store_open(path, &err);
    assert_non_null(s);
    static const char *const suffix[] = {"", "-wal", "-shm"};
    struct record r = row_of(1, "head/m1");
    assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
    for (int i = 0; i < 3; i++) { /* what is asked of an adviser is nobody else's business */
        char name[200];
        snprintf(name, sizeof name, "%s%s", path, suffix[i]);
        assert_int_equal(stat(name, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
    }
    store_close(s);
}

static void store_that_is_a_link_or_lies_beside_one_is_refused(void **unused)
{
    (void)unused;
    static const char *const suffix[] = {"", "-wal", "-shm", "-journal", ".lock"};
    char path[160], name[200], target[160];
    struct stat st;
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++) {
        in_folder(0700, path);
        snprintf(target, sizeof target, "%s/target%zu", folder, i);
        snprintf(name, sizeof name, "%s%s", path, suffix[i]);
        assert_int_equal(symlink(target, name), 0);
        assert_null(store_open(path, &err));
        assert_non_null(strstr(err.msg, name));
        assert_non_null(strstr(err.msg, "symbolic link"));
        assert_int_equal(lstat(target, &st), -1);
        assert_int_equal(errno, ENOENT);
        assert_int_equal(lstat(name, &st), 0); /* it was not ours to remove */
    }
}

static void files_of_others_and_open_ones_are_refused(void **unused)
{
    (void)unused;
    static const char *const suffix[] = {"", "-wal", "-journal"};
    char path[160], name[200];
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++) {
        plant(in_folder(0700, path), suffix[i], "", 0666);
        assert_null(store_open(path, &err));
        assert_non_null(strstr(err.msg, "other users"));
        snprintf(name, sizeof name, "%s%s", path, suffix[i]);
        assert_int_equal(chmod(name, 0600), 0);
        if (geteuid() != 0)
            continue;
        assert_int_equal(chown(name, OTHER, OTHER), 0);
        assert_null(store_open(path, &err));
        assert_non_null(strstr(err.msg, "user 12345"));
    }
}

/* The other way about: an ordinary user's server, and what another such user laid in its way. */
static void user_trusts_no_other_user(void **unused)
{
    (void)unused;
    char path[160];
    if (geteuid() != 0)
        skip();
    in_folder(01777, path);
    assert_int_equal(chmod(folder, 0755), 0);
    for (int victim = 0; victim < 2; victim++) {
        pid_t child = fork();
        if (child == 0) {
            uid_t uid = victim ? OTHER + 1 : OTHER;
            char theirs[200], ours[200];
            snprintf(theirs, sizeof theirs, "%.*s/cache/store.db", (int)(strrchr(path, '/') - path),
                     path);
            snprintf(ours, sizeof ours, "%.*s/mine/store.db", (int)(strrchr(path, '/') - path),
                     path);
            if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)
                _exit(9);
            struct store *s = store_open(theirs, &err);
            if (!victim) /* who comes first makes it, and leaves it open to see what happens */
                _exit(s && chmod(theirs, 0666) == 0 ? 0 : 1);
            if (s || !strstr(err.msg, "user 12345"))
                _exit(2);
            s = store_open(ours, &err);
            _exit(s ? 0 : 3);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_int_equal(chmod(folder, 0700), 0);
}

/* ---- somebody else has it ------------------------------------------------------------------ */

/* Another process that has the store until it is told to end; its number. */
static pid_t holder(const char *path, int tell[2])
{
    int ready[2];
    char c = 0;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(tell), 0);
    pid_t child = fork();
    if (child == 0) {
        bool taken;
        struct store *s = store_open_alone(path, &taken, &err);
        struct record r = row_of(7, "head/m1");
        c = s && store_move(s, &r, LIFE_CANARY, NULL, NULL, &err) == 0 &&
            store_trial(s, r.key, true, &err) == 0;
        close(tell[1]);
        if (write(ready[1], &c, 1) != 1 || read(tell[0], &c, 1) < 0)
            _exit(1);
        store_close(s);
        _exit(0);
    }
    close(tell[0]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end(pid_t child, int tell, bool kill9)
{
    if (kill9)
        kill(child, SIGKILL);
    close(tell);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static int32_t deaths_of(struct store *s, int key)
{
    char text[17];
    struct record r;
    snprintf(text, sizeof text, "%016x", key);
    assert_int_equal(store_get(s, text, &r, &err), 1);
    free(r.log);
    return r.deaths;
}

static void store_is_one_processs_until_that_is_gone(void **unused)
{
    (void)unused;
    char path[160], who[40];
    for (int kill9 = 0; kill9 < 2; kill9++) {
        int tell[2];
        bool taken = false;
        pid_t child = holder(in_folder(0700, path), tell);
        assert_null(store_open_alone(path, &taken, &err));
        assert_true(taken);
        snprintf(who, sizeof who, "in use by process %d since 20", (int)child);
        if (!strstr(err.msg, who))
            fail_msg("%s", err.msg);
        struct store *s = store_open(path, &err); /* to read, or for a single change */
        assert_non_null(s);
        assert_int_equal(state_of(s, 7), LIFE_CANARY);
        store_close(s);
        end(child, tell[1], kill9);
        s = store_open_alone(path, &taken, &err);
        assert_non_null(s);
        assert_false(taken);
        assert_int_equal(store_deaths(s, &err), 1); /* only now it is a suspect */
        assert_int_equal(deaths_of(s, 7), 1);
        store_close(s);
    }
}

static void copy_knows_what_was_known_and_blames_nobody(void **unused)
{
    (void)unused;
    int tell[2];
    char path[160], objects[200], own[200];
    pid_t child = holder(in_folder(0700, path), tell);
    struct store *s = store_open(path, &err);
    struct record r = row_of(2, "mlp_in/m1");
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
    store_close(s);
    snprintf(objects, sizeof objects, "%s.objects", path);
    assert_int_equal(mkdir(objects, 0700), 0);
    plant(path, ".objects/0000000000000001.so", "of the winner", 0600);
    plant(path, ".objects/00000000000000ff.so", "of nobody", 0600);
    plant(path, ".objects/0000000000000001.tmp.d", "a leftover", 0600);

    s = store_open_copy(path, &err);
    assert_non_null(s);
    assert_string_not_equal(store_path(s), path);
    assert_int_equal(store_deaths(s, &err), 0);
    assert_int_equal(deaths_of(s, 7), 0);
    assert_int_equal(state_of(s, 2), LIFE_ACTIVE);
    assert_true(there(store_path(s), ".objects/0000000000000001.so"));
    assert_false(there(store_path(s), ".objects/00000000000000ff.so"));
    assert_false(there(store_path(s), ".objects/0000000000000001.tmp.d"));
    struct record mine = row_of(9, "head/m1");
    assert_int_equal(store_move(s, &mine, LIFE_BUILT, NULL, NULL, &err), 0);
    snprintf(own, sizeof own, "%s", store_path(s));
    store_close(s);
    assert_false(there(own, "")); /* and its folder with it */
    *strrchr(own, '/') = 0;
    assert_false(there(own, ""));

    s = store_open(path, &err); /* the other's is as it was */
    assert_int_equal(store_get(s, mine.key, &mine, &err), 0);
    assert_int_equal(deaths_of(s, 7), 0);
    store_close(s);
    end(child, tell[1], false);
}

/* A copy of a process that was killed is cleared away by the next; one that is in use is not. */
static void copies_of_killed_processes_are_cleared_away(void **unused)
{
    (void)unused;
    char path[160], tmp[160], left[200] = "";
    int out[2];
    in_folder(0700, path);
    snprintf(tmp, sizeof tmp, "%.*s/tmp", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(mkdir(tmp, 0700), 0);
    setenv("TMPDIR", tmp, 1);
    store_close(store_open(path, &err));
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store *s = store_open_copy(path, &err);
        if (s && write(out[1], store_path(s), strlen(store_path(s))) > 0)
            pause();
        _exit(1);
    }
    assert_true(read(out[0], left, sizeof left - 1) > 0);
    struct store *s = store_open_copy(path, &err);
    assert_non_null(s);
    assert_true(there(left, ""));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    struct store *next = store_open_copy(path, &err);
    assert_non_null(next);
    assert_false(there(left, ""));
    assert_true(there(store_path(s), ""));
    store_close(next);
    store_close(s);
    assert_int_equal(rmdir(tmp), 0);
    unsetenv("TMPDIR");
    close(out[0]);
    close(out[1]);
}

/* Moving the file away under a server would leave it writing into what was moved. */
static void damaged_store_is_not_moved_away_under_its_owner(void **unused)
{
    (void)unused;
    bool taken;
    char path[160];
    store_close(store_open(in_folder(0700, path), &err));
    int lock = store_file_lock(path, &taken, &err);
    assert_true(lock >= 0);
    FILE *f = fopen(path, "r+b");
    assert_true(f && fwrite("garbage garbage garbage", 1, 23, f) == 23 && fclose(f) == 0);
    assert_null(store_open(path, &err));
    assert_non_null(strstr(err.msg, "in use by process"));
    assert_non_null(strstr(err.msg, "not a database"));
    char first[8] = "";
    f = fopen(path, "rb");
    assert_true(f && fread(first, 1, 7, f) == 7 && fclose(f) == 0);
    assert_string_equal(first, "garbage"); /* still there */
    close(lock);
    struct store *s = store_open(path, &err);
    assert_non_null(s);
    store_close(s);
}

/* ---- columns that came later ------------------------------------------------------------------
 */

/* As a program made it that did not know them. */
static void forget_columns(const char *path)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "ALTER TABLE candidate DROP COLUMN served_deaths;"
                                  "ALTER TABLE candidate DROP COLUMN probe_deaths;",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
}

/* By whoever opens it first, and the program that made it goes on with it meanwhile. */
static void a_file_without_later_columns_gets_them_beside_its_program(void **unused)
{
    (void)unused;
    struct record r = row_of(1, "head/m1"), back;
    for (int reads = 0; reads < 2; reads++) {
        const char *path = fresh_path();
        struct store *s = store_open(path, &err);
        assert_int_equal(store_move(s, &r, LIFE_ACTIVE, NULL, NULL, &err), 0);
        store_close(s);
        forget_columns(path);
        sqlite3 *old;
        sqlite3_stmt *insert;
        assert_int_equal(sqlite3_open(path, &old), SQLITE_OK);
        assert_int_equal(sqlite3_prepare_v2(old,
                                            "INSERT INTO candidate(key, state, evidence) VALUES"
                                            " ('00000000000000aa', 'refused', '{}')",
                                            -1, &insert, NULL),
                         SQLITE_OK);
        s = reads ? store_open_read(path, &err) : store_open(path, &err);
        assert_non_null(s);
        assert_int_equal(store_get(s, r.key, &back, &err), 1);
        free(back.log);
        assert_int_equal(back.state, LIFE_ACTIVE);
        assert_int_equal(back.served_deaths + back.probe_deaths, 0);
        assert_int_equal(store_served_death(s, r.key, &err), reads ? -1 : 1);
        assert_int_equal(sqlite3_step(insert), SQLITE_DONE);
        assert_int_equal(store_get(s, "00000000000000aa", &back, &err), 1);
        free(back.log);
        assert_int_equal(back.served_deaths, 0);
        sqlite3_finalize(insert);
        sqlite3_close(old);
        store_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_later_columns_gets_them_beside_its_program),
        cmocka_unit_test(store_directly_in_a_shared_folder_is_refused),
        cmocka_unit_test(store_in_a_folder_of_its_own_there_is_ours_alone),
        cmocka_unit_test(store_that_is_a_link_or_lies_beside_one_is_refused),
        cmocka_unit_test(files_of_others_and_open_ones_are_refused),
        cmocka_unit_test(user_trusts_no_other_user),
        cmocka_unit_test(store_is_one_processs_until_that_is_gone),
        cmocka_unit_test(copy_knows_what_was_known_and_blames_nobody),
        cmocka_unit_test(copies_of_killed_processes_are_cleared_away),
        cmocka_unit_test(damaged_store_is_not_moved_away_under_its_owner),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
