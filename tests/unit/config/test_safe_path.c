/* SPDX-License-Identifier: Apache-2.0 */
/* test_safe_path.c - which files and folders are ours alone. The other user is played by a child
 * with another uid, or by files that are given to it; that takes root, as tests have in CI. What
 * needs no other user is tested without. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/safe_path.h"

enum { OTHER = 12345 };

static char root[] = "/tmp/whet-test-safe-XXXXXX";
static struct err err;

static const char *at(const char *name)
{
    static char path[4][200];
    static int next;
    snprintf(path[next = (next + 1) % 4], sizeof *path, "%s/%s", root, name);
    return path[next];
}

static void folder(const char *name, mode_t mode)
{
    assert_int_equal(mkdir(at(name), 0700), 0);
    assert_int_equal(chmod(at(name), mode), 0);
}

static void file(const char *name, mode_t mode)
{
    FILE *f = fopen(at(name), "w");
    assert_true(f && fputs("text", f) >= 0 && fclose(f) == 0);
    assert_int_equal(chmod(at(name), mode), 0);
}

static void give_away(const char *name)
{
    assert_int_equal(lchown(at(name), OTHER, OTHER), 0);
}

/* The sentence names the path and has this in it. */
static void expect(int got, const char *name, const char *text)
{
    assert_int_equal(got, -1);
    if (!strstr(err.msg, at(name)) || !strstr(err.msg, text))
        fail_msg("%s, %s: %s", name, text, err.msg);
}

static void folders_that_others_may_write_to_are_refused_by_name(void **state)
{
    (void)state;
    folder("private", 0700);
    folder("readable", 0755);
    folder("group", 0775);
    folder("world", 0777);
    folder("sticky", 01777);
    assert_int_equal(safe_folder(at("private"), &err), 0);
    assert_int_equal(safe_folder(at("readable"), &err), 0);
    expect(safe_folder(at("group"), &err), "group", "other users");
    expect(safe_folder(at("world"), &err), "world", "mode 0777");
    expect(safe_folder(at("sticky"), &err), "sticky", "shared by all users");
    expect(safe_folder(at("missing"), &err), "missing", "No such file");
    file("plain", 0600);
    expect(safe_folder(at("plain"), &err), "plain", "no folder");
}

/* Whoever may rename a folder on the way may put another in its place. */
static void every_folder_on_the_way_is_looked_at(void **state)
{
    (void)state;
    folder("open", 0700);
    folder("open/a", 0700);
    folder("open/a/b", 0700);
    assert_int_equal(safe_folder(at("open/a/b"), &err), 0);
    assert_int_equal(chmod(at("open"), 0777), 0);
    expect(safe_folder(at("open/a/b"), &err), "open", "other users");
    expect(safe_folder(at("open/a/../a/b"), &err), "open", "other users");
    assert_int_equal(chmod(at("open"), 0720), 0);
    expect(safe_folder_make(at("open/a/new"), &err), "open", "other users");
    assert_int_not_equal(access(at("open/a/new"), F_OK), 0);
    assert_int_equal(chmod(at("open"), 01777), 0); /* nobody may rename in it what is ours */
    assert_int_equal(safe_folder(at("open/a/b"), &err), 0);
}

static void missing_folders_are_made_for_us_alone(void **state)
{
    (void)state;
    struct stat st;
    mode_t before = umask(0);
    assert_int_equal(safe_folder_make(at("made/of/parts"), &err), 0);
    assert_int_equal(safe_folder_make(at("made/of/parts/"), &err), 0);
    umask(before);
    assert_int_equal(stat(at("made/of"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(at("made/of/parts"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(safe_folder_make("/proc/nothing/here", &err), -1);
    assert_non_null(strstr(err.msg, "/proc/nothing"));
}

static void links_are_followed_where_only_we_can_have_made_them(void **state)
{
    (void)state;
    folder("target", 0700);
    folder("target/inner", 0700);
    folder("all", 01777);
    assert_int_equal(symlink(at("target"), at("absolute")), 0);
    assert_int_equal(symlink("target/../target", at("relative")), 0);
    assert_int_equal(symlink("loop", at("loop")), 0);
    assert_int_equal(symlink(at("target"), at("all/link")), 0);
    assert_int_equal(safe_folder(at("absolute/inner"), &err), 0);
    assert_int_equal(safe_folder(at("relative/inner"), &err), 0);
    expect(safe_folder(at("all/link/inner"), &err), "all/link", "symbolic link");
    assert_int_equal(safe_folder(at("loop"), &err), -1);
    assert_non_null(strstr(err.msg, "too many links"));
    assert_int_equal(chmod(at("target"), 0777), 0); /* what it leads to counts as well */
    expect(safe_folder(at("absolute/inner"), &err), "target", "other users");
    assert_int_equal(chmod(at("target"), 0700), 0);
}

static void what_belongs_to_others_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    folder("theirs", 0755);
    folder("theirs/ours", 0700);
    folder("lent", 0755);
    file("lent/file", 0600);
    assert_int_equal(symlink(at("lent"), at("theirlink")), 0);
    give_away("theirs");
    give_away("lent/file");
    give_away("theirlink");
    expect(safe_folder(at("theirs"), &err), "theirs", "user 12345");
    expect(safe_folder(at("theirs/ours"), &err), "theirs", "user 12345");
    expect(safe_folder(at("theirlink"), &err), "theirlink", "user 12345");
    expect(safe_file(at("lent/file"), &err), "lent/file", "user 12345");
}

/* A child of another user: root's folders are trusted, root's private ones out of reach. */
static void an_ordinary_user_trusts_root_and_itself(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    folder("commons", 01777);
    folder("roots", 0755);
    chmod(root, 0755);
    pid_t child = fork();
    if (child == 0) {
        bool good = setresgid(OTHER, OTHER, OTHER) == 0 && setresuid(OTHER, OTHER, OTHER) == 0;
        good = good && safe_folder_make(at("commons/mine"), &err) == 0;
        good = good && safe_folder(at("roots"), &err) == 0;
        good = good && safe_folder_make(at("roots/mine"), &err) != 0;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    /* Now that user has prepared a folder where we, root, would look. */
    expect(safe_folder(at("commons/mine"), &err), "commons/mine", "user 12345");
    expect(safe_folder_make(at("commons/mine/more"), &err), "commons/mine", "user 12345");
    chmod(root, 0700);
}

static void files_are_ours_and_no_links(void **state)
{
    (void)state;
    folder("files", 0700);
    file("files/good", 0644);
    file("files/open", 0666);
    file("files/group", 0660);
    assert_int_equal(symlink("good", at("files/link")), 0);
    assert_int_equal(mkfifo(at("files/fifo"), 0600), 0);
    int fd = safe_open(at("files/good"), &err);
    char text[5] = "";
    assert_true(fd >= 0 && read(fd, text, 4) == 4);
    close(fd);
    assert_string_equal(text, "text");
    expect(safe_file(at("files/open"), &err), "files/open", "other users");
    expect(safe_file(at("files/group"), &err), "files/group", "other users");
    expect(safe_file(at("files/link"), &err), "files/link", "symbolic link");
    expect(safe_file(at("files/fifo"), &err), "files/fifo", "no regular file");
    expect(safe_file(at("files/none"), &err), "files/none", "No such file");
    expect(safe_file(at("files"), &err), "files", "no regular file");
    assert_int_equal(chmod(at("files"), 0777), 0);
    expect(safe_file(at("files/good"), &err), "files", "other users");
}

static void a_new_file_replaces_a_link_and_never_follows_it(void **state)
{
    (void)state;
    struct stat st;
    folder("new", 0700);
    file("new/precious", 0600);
    assert_int_equal(symlink("precious", at("new/file")), 0);
    FILE *f = safe_create(at("new/file"));
    assert_true(f && fputs("other words", f) >= 0 && fclose(f) == 0);
    assert_int_equal(lstat(at("new/file"), &st), 0);
    assert_true(S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600);
    assert_int_equal(stat(at("new/precious"), &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_null(safe_create(at("new/no/folder")));
    assert_int_equal(errno, ENOENT);
}

static void temporary_files_go_where_nobody_can_exchange_them(void **state)
{
    (void)state;
    folder("tmp", 01777);
    folder("loose", 0777);
    setenv("TMPDIR", at("tmp"), 1);
    assert_string_equal(safe_temporary(), at("tmp"));
    char *made = safe_folder_temporary("x-", &err);
    assert_non_null(made);
    assert_memory_equal(made, at("tmp/x-"), strlen(at("tmp/x-")));
    assert_int_equal(rmdir(made), 0);
    free(made);
    setenv("TMPDIR", at("loose"), 1);
    assert_string_equal(safe_temporary(), "/tmp");
    assert_null(safe_folder_temporary("x-", &err)); /* what was asked for is not ignored */
    assert_non_null(strstr(err.msg, at("loose")));
    setenv("TMPDIR", "relative", 1);
    assert_string_equal(safe_temporary(), "/tmp");
    unsetenv("TMPDIR");
}

static void programs_that_anybody_may_exchange_are_refused(void **state)
{
    (void)state;
    folder("bin", 0755);
    file("bin/cc", 0755);
    file("bin/loose", 0777);
    folder("loosebin", 0777);
    file("loosebin/cc", 0755);
    folder("teambin", 0775);
    file("teambin/cc", 0755);
    assert_int_equal(safe_program(at("bin/cc"), &err), 0);
    assert_int_equal(safe_program(at("teambin/cc"), &err), 0); /* the operator knows the team */
    assert_int_equal(symlink(at("bin/cc"), at("bin/link")), 0);
    assert_int_equal(safe_program(at("bin/link"), &err), 0);
    expect(safe_program(at("bin/loose"), &err), "bin/loose", "other users");
    expect(safe_program(at("loosebin/cc"), &err), "loosebin", "other users");
    expect(safe_program(at("bin"), &err), "bin", "no file");
    assert_int_equal(safe_programs(at("bin"), &err), 0);
    assert_int_equal(safe_programs(at("teambin"), &err), 0);
    expect(safe_programs(at("loosebin"), &err), "loosebin", "other users");
    expect(safe_programs(at("bin/cc"), &err), "bin/cc", "no folder");
    assert_int_equal(safe_programs("/tmp", &err), -1);
    assert_non_null(strstr(err.msg, "all users can put programs"));
    assert_int_equal(safe_programs("bin", &err), -1);
    assert_int_equal(safe_program("bin/cc", &err), -1);
    assert_non_null(strstr(err.msg, "relative"));
    if (geteuid() == 0) {
        folder("shared", 01777);
        file("shared/cc", 0755);
        give_away("bin/cc"); /* a service's user may own what it installs */
        assert_int_equal(safe_program(at("bin/cc"), &err), 0);
        assert_int_equal(safe_program(at("shared/cc"), &err), 0);
        give_away("shared/cc");
        expect(safe_program(at("shared/cc"), &err), "shared/cc", "user 12345");
    }
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[80];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_that_others_may_write_to_are_refused_by_name),
        cmocka_unit_test(every_folder_on_the_way_is_looked_at),
        cmocka_unit_test(missing_folders_are_made_for_us_alone),
        cmocka_unit_test(links_are_followed_where_only_we_can_have_made_them),
        cmocka_unit_test(what_belongs_to_others_is_refused),
        cmocka_unit_test(an_ordinary_user_trusts_root_and_itself),
        cmocka_unit_test(files_are_ours_and_no_links),
        cmocka_unit_test(a_new_file_replaces_a_link_and_never_follows_it),
        cmocka_unit_test(temporary_files_go_where_nobody_can_exchange_them),
        cmocka_unit_test(programs_that_anybody_may_exchange_are_refused),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
