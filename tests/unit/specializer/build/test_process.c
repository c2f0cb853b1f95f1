/* SPDX-License-Identifier: Apache-2.0 */
/* test_process.c - children that behave badly, and what the server sees of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/process.h"

static struct process_result run(const char *script, struct process_spec spec)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct process_result r = {0};
    struct err err;
    spec.argv = argv;
    if (!spec.output_max)
        spec.output_max = 4096;
    assert_int_equal(process_run(&spec, &r, &err), 0);
    return r;
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void process_returns_both_streams_and_the_status(void **state)
{
    (void)state;
    struct process_result r = run("echo out; echo err >&2; exit 7", (struct process_spec){0});
    assert_string_equal(r.out, "out\n");
    assert_string_equal(r.err, "err\n");
    assert_int_equal(r.status, 7);
    assert_int_equal(r.signal, 0);
    assert_false(r.timed_out);
    process_result_free(&r);
}

static void process_names_the_signal_that_killed_the_child(void **state)
{
    (void)state;
    char text[80];
    struct process_result r = run("kill -SEGV $$", (struct process_spec){0});
    assert_int_equal(r.signal, SIGSEGV);
    assert_string_equal(process_describe(&r, text, sizeof text), "killed by SIGSEGV");
    process_result_free(&r);
}

static void process_kills_the_whole_group_when_time_is_up(void **state)
{
    (void)state;
    /* The grandchild ignores SIGTERM and would sleep on, longer than a test may take, if it were
     * waited for; its pid is printed first, unless the machine is so busy that time is up before.
     */
    struct process_result r = {0};
    for (double wall_s = 0.3; wall_s < 300 && r.out_n == 0; wall_s *= 4) {
        process_result_free(&r);
        r = run("trap '' TERM HUP; sleep 3600 & echo $!; sleep 3600",
                (struct process_spec){.wall_s = wall_s});
    }
    assert_true(r.timed_out);
    assert_int_equal(r.signal, SIGKILL);
    pid_t grandchild = (pid_t)atoi(r.out);
    assert_true(grandchild > 1);
    bool gone = false;
    for (int i = 0; i < 3000 && !gone; i++) {
        char path[64], stat[256] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", grandchild);
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(stat, 1, sizeof stat - 1, f) : 0;
        gone = n == 0 || strstr(stat, ") Z") != NULL; /* a zombie waits for init, not for us */
        if (f)
            fclose(f);
        usleep(10000);
    }
    assert_true(gone);
    process_result_free(&r);
}

static void process_does_not_wait_for_a_grandchild_that_holds_the_pipe(void **state)
{
    (void)state;
    struct process_result r = run("sleep 3600 & echo done", (struct process_spec){.wall_s = 300});
    assert_string_equal(r.out, "done\n");
    assert_false(r.timed_out);
    process_result_free(&r);
}

static void process_bounds_the_output_it_keeps(void **state)
{
    (void)state;
    struct process_result r = run("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2",
                                  (struct process_spec){.output_max = 1000});
    assert_int_equal(r.out_n, 1000);
    assert_int_equal(strlen(r.out), 1000);
    assert_true(r.truncated);
    assert_string_equal(r.err, "end\n");
    assert_int_equal(r.status, 0);
    process_result_free(&r);
}

static void process_stops_a_child_that_uses_up_its_cpu_time(void **state)
{
    (void)state;
    char text[80];
    struct process_result r =
        run("while :; do :; done", (struct process_spec){.cpu_s = 1, .wall_s = 300});
    assert_true(r.cpu_out);
    assert_false(r.timed_out);
    assert_non_null(strstr(process_describe(&r, text, sizeof text), "of CPU time"));
    process_result_free(&r);
}

static void process_limits_the_size_of_files_and_leaves_no_core(void **state)
{
    (void)state;
    char script[200], path[] = "/tmp/whet-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(script, sizeof script,
             "ulimit -c; ulimit -v; dd if=/dev/zero of=%s bs=1000 count=100 2>/dev/null", path);
    struct process_result r =
        run(script, (struct process_spec){.file_bytes = 8000, .address_bytes = 1 << 30});
    assert_string_equal(r.out, "0\n1048576\n");
    assert_int_equal(lseek(fd, 0, SEEK_END), 8000);
    close(fd);
    unlink(path);
    process_result_free(&r);
}

static void process_runs_children_at_the_priority_asked_for(void **state)
{
    (void)state;
    const struct {
        enum process_priority priority;
        const char *nice;
        int policy;
    } expect[] = {{PROCESS_LOW, "19", sched_getscheduler(0)},
                  {PROCESS_IDLE, "19", SCHED_IDLE},
                  {PROCESS_IDLE_ANYWHERE, "19", SCHED_IDLE}};
    for (int i = 0; i < 3; i++) {
        /* proc(5): field 19 of stat is nice, field 41 the scheduling policy */
        struct process_result r = run("read -r line </proc/$$/stat; set -- ${line##*) };"
                                      "shift 16; echo $1; shift 22; echo $1",
                                      (struct process_spec){.priority = expect[i].priority});
        char want[32];
        snprintf(want, sizeof want, "%s\n%d\n", expect[i].nice, expect[i].policy);
        assert_string_equal(r.out, want);
        process_result_free(&r);
    }
}

/* Of the cores this test may use; a shell counts them as nproc does. */
static void process_leaves_half_of_the_cores_to_the_server(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int all = CPU_COUNT(&set);
    const struct {
        enum process_priority priority;
        int cores;
    } expect[] = {{PROCESS_NORMAL, all},
                  {PROCESS_LOW, all},
                  {PROCESS_IDLE, all - all / 2},
                  {PROCESS_IDLE_ANYWHERE, all}};
    for (int i = 0; i < 4; i++) {
        struct process_result r =
            run("nproc", (struct process_spec){.priority = expect[i].priority, .wall_s = 300});
        assert_int_equal(atoi(r.out), expect[i].cores);
        process_result_free(&r);
    }
}

static void process_gives_children_no_secrets_and_no_files(void **state)
{
    (void)state;
    setenv("WHET_ADVISER_KEY_FILE", "/secret", 1);
    int fd[2];
    assert_int_equal(pipe(fd), 0); /* without close-on-exec */
    struct process_result r = run("env; for f in /proc/$$/fd/*; do echo ${f##*/}; done; "
                                  "cat; echo eof",
                                  (struct process_spec){.wall_s = 300});
    assert_null(strstr(r.out, "secret"));
    assert_non_null(strstr(r.out, "LC_ALL=C"));
    char name[16];
    snprintf(name, sizeof name, "\n%d\n", fd[1]);
    assert_null(strstr(r.out, name));
    assert_non_null(strstr(r.out, "eof\n")); /* stdin was empty */
    close(fd[0]);
    close(fd[1]);
    unsetenv("WHET_ADVISER_KEY_FILE");
    process_result_free(&r);
}

/* Whatever a secret is called, it is in no variable of the list. */
static void process_hands_down_the_variables_of_a_list_and_no_others(void **state)
{
    (void)state;
    static const char *const secret[] = {"WHET_SERVER_API_KEYS",
                                         "WHET_ADVISER_KEY",
                                         "OPENAI_API_KEY",
                                         "AWS_SECRET_ACCESS_KEY",
                                         "GCC_EXEC_PREFIX",
                                         "COMPILER_PATH",
                                         "CPATH",
                                         "C_INCLUDE_PATH",
                                         "LIBRARY_PATH",
                                         "BASH_ENV",
                                         "ENV",
                                         "LD_AUDIT",
                                         "CCC_OVERRIDE_OPTIONS",
                                         "XDG_CACHE_HOME",
                                         "http_proxy",
                                         "PYTHONPATH"};
    static const char *const list[] = {"PATH",
                                       "HOME",
                                       "TMPDIR",
                                       "LC_ALL",
                                       "LD_LIBRARY_PATH",
                                       "ASAN_OPTIONS",
                                       "UBSAN_OPTIONS",
                                       "TSAN_OPTIONS",
                                       "LSAN_OPTIONS",
                                       "OPENBLAS_CORETYPE",
                                       "CUDA_VISIBLE_DEVICES",
                                       "CUDA_DEVICE_ORDER",
                                       "CUDA_MPS_PIPE_DIRECTORY"};
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++)
        setenv(secret[i], "/dev/null/secret", 1);
    /* cat: a shell would add variables of its own */
    const char *argv[] = {"cat", "/proc/self/environ", NULL};
    struct process_result r;
    struct err err;
    assert_int_equal(
        process_run(&(struct process_spec){.argv = argv, .output_max = 65536}, &r, &err), 0);
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++)
        unsetenv(secret[i]);
    for (const char *v = r.out; v < r.out + r.out_n; v += strlen(v) + 1) {
        bool known = false;
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            known |= strncmp(v, list[i], strlen(list[i])) == 0 && v[strlen(list[i])] == '=';
        if (!known || strstr(v, "secret"))
            fail_msg("%s", v);
    }
    assert_true(r.out_n > 0);
    process_result_free(&r);
}

/* A compiler finds its assembler there. */
static void process_looks_for_programs_where_nobody_else_can_put_them(void **state)
{
    (void)state;
    char root[] = "/tmp/whet-test-XXXXXX", path[400], *before = strdup(getenv("PATH"));
    struct err err;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/whet-loose", root);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs("#!/bin/sh\necho exchanged\n", f) >= 0 && fclose(f) == 0);
    assert_int_equal(chmod(path, 0755), 0);
    const char *argv[] = {"whet-loose", NULL};
    snprintf(path, sizeof path, "%s::.:bin:/tmp:/usr/bin:/bin", root);
    setenv("PATH", path, 1);
    struct process *p = process_start(&(struct process_spec){.argv = argv}, &err);
    assert_non_null(p); /* ours alone */
    process_end(p);
    assert_int_equal(chmod(root, 0777), 0);
    assert_null(process_start(&(struct process_spec){.argv = argv}, &err));
    assert_non_null(strstr(err.msg, "whet-loose"));
    struct process_result r = run("echo $PATH", (struct process_spec){0});
    assert_string_equal(r.out, "/usr/bin:/bin\n");
    process_result_free(&r);
    snprintf(path, sizeof path, "/usr/bin:/bin:%s", root); /* the last one is named */
    setenv("PATH", path, 1);
    assert_null(process_start(&(struct process_spec){.argv = argv}, &err));
    assert_non_null(strstr(err.msg, root));
    setenv("LD_LIBRARY_PATH", root, 1);
    r = run("echo $LD_LIBRARY_PATH", (struct process_spec){0});
    assert_string_equal(r.out, "\n");
    unsetenv("LD_LIBRARY_PATH");
    process_result_free(&r);
    setenv("PATH", before, 1);
    free(before);
    snprintf(path, sizeof path, "rm -r %s", root);
    assert_int_equal(system(path), 0);
}

static void process_writes_files_for_us_alone_where_nobody_can_exchange_them(void **state)
{
    (void)state;
    char root[] = "/tmp/whet-test-XXXXXX", script[400];
    struct stat st;
    assert_non_null(mkdtemp(root));
    snprintf(script, sizeof script, "echo x > %s/file; echo $TMPDIR; ulimit -n", root);
    mode_t before = umask(0);
    struct process_result r = run(script, (struct process_spec){.temporary = root});
    umask(before);
    snprintf(script, sizeof script, "%s/file", root);
    assert_int_equal(stat(script, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_memory_equal(r.out, root, strlen(root));
    assert_true(atoi(strchr(r.out, '\n') + 1) <= 4096);
    process_result_free(&r);
    setenv("TMPDIR", root, 1);
    r = run("echo $TMPDIR", (struct process_spec){0});
    assert_memory_equal(r.out, root, strlen(root));
    process_result_free(&r);
    assert_int_equal(chmod(root, 0777), 0);
    r = run("echo $TMPDIR", (struct process_spec){0});
    assert_string_equal(r.out, "/tmp\n");
    process_result_free(&r);
    unsetenv("TMPDIR");
    unlink(script);
    rmdir(root);
}

/* Device 0 of a probe is the server's: with other variables it would be another GPU. */
static void process_sees_the_gpus_that_its_parent_sees(void **state)
{
    (void)state;
    setenv("CUDA_VISIBLE_DEVICES", "3", 1);
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    struct process_result r = run("env", (struct process_spec){.wall_s = 300});
    assert_non_null(strstr(r.out, "CUDA_VISIBLE_DEVICES=3\n"));
    assert_non_null(strstr(r.out, "CUDA_DEVICE_ORDER=PCI_BUS_ID\n"));
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
    process_result_free(&r);
}

static void process_says_which_program_cannot_be_started(void **state)
{
    (void)state;
    struct err err;
    const char *missing[] = {"whet-no-such-compiler", NULL};
    assert_null(process_start(&(struct process_spec){.argv = missing}, &err));
    assert_non_null(strstr(err.msg, "whet-no-such-compiler"));
    char path[] = "/tmp/whet-test-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "\177ELF", 4), 4);
    fchmod(fd, 0700);
    close(fd);
    const char *broken[] = {path, NULL};
    assert_null(process_start(&(struct process_spec){.argv = broken}, &err));
    assert_non_null(strstr(err.msg, path));
    unlink(path);
}

static void process_leaves_no_zombie_and_no_open_file(void **state)
{
    (void)state;
    int before = open_files();
    for (int i = 0; i < 20; i++) {
        const char *argv[] = {"sh", "-c", "echo x; sleep 3600", NULL};
        struct err err;
        struct process *p =
            process_start(&(struct process_spec){.argv = argv, .output_max = 10}, &err);
        assert_non_null(p);
        assert_false(process_poll(p));
        process_end(p); /* still running */
    }
    assert_int_equal(open_files(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void process_children_die_with_the_server(void **state)
{
    (void)state;
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    pid_t server = fork();
    if (server == 0) {
        const char *argv[] = {"sleep", "3600", NULL};
        struct err err;
        struct process *p = process_start(&(struct process_spec){.argv = argv}, &err);
        char c = p ? 'y' : 'n';
        /* The child's pid is the only one in our children list. */
        FILE *f = fopen("/proc/thread-self/children", "r");
        char pid[32] = "";
        if (f && fgets(pid, sizeof pid, f))
            c = 'y';
        if (write(fd[1], pid, sizeof pid) < 0 || c != 'y')
            _exit(1);
        pause();
        _exit(0);
    }
    char pid[32] = "";
    assert_int_equal(read(fd[0], pid, sizeof pid), sizeof pid);
    pid_t child = (pid_t)atoi(pid);
    if (child <= 1)
        skip(); /* a kernel without CONFIG_PROC_CHILDREN */
    assert_int_equal(kill(child, 0), 0);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    bool gone = false;
    for (int i = 0; i < 3000 && !gone; i++) {
        char path[64], stat[256] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", child);
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(stat, 1, sizeof stat - 1, f) : 0;
        gone = n == 0 || strstr(stat, ") Z") != NULL;
        if (f)
            fclose(f);
        usleep(10000);
    }
    assert_true(gone);
    close(fd[0]);
    close(fd[1]);
}

/* As the first process of a container does, this one inherits whose parents are gone. */
static void process_leaves_no_zombies_where_it_is_the_first_process(void **state)
{
    (void)state;
    siginfo_t one = {0};
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    struct process_result r = run("sleep 1000 & sh -c 'sleep 1000 & sleep 1000' & sleep 1000",
                                  (struct process_spec){.wall_s = 0.3});
    assert_true(r.timed_out);
    process_result_free(&r);
    /* They end when the system comes to it; who was left is reaped beside a later process. */
    for (int i = 0; i < 200 && waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) == 0; i++) {
        usleep(10000);
        r = run("exit 0", (struct process_spec){0});
        process_result_free(&r);
    }
    assert_int_equal(waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT), -1);
    assert_int_equal(errno, ECHILD);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(process_returns_both_streams_and_the_status),
        cmocka_unit_test(process_names_the_signal_that_killed_the_child),
        cmocka_unit_test(process_kills_the_whole_group_when_time_is_up),
        cmocka_unit_test(process_does_not_wait_for_a_grandchild_that_holds_the_pipe),
        cmocka_unit_test(process_bounds_the_output_it_keeps),
        cmocka_unit_test(process_stops_a_child_that_uses_up_its_cpu_time),
        cmocka_unit_test(process_limits_the_size_of_files_and_leaves_no_core),
        cmocka_unit_test(process_runs_children_at_the_priority_asked_for),
        cmocka_unit_test(process_leaves_half_of_the_cores_to_the_server),
        cmocka_unit_test(process_sees_the_gpus_that_its_parent_sees),
        cmocka_unit_test(process_gives_children_no_secrets_and_no_files),
        cmocka_unit_test(process_hands_down_the_variables_of_a_list_and_no_others),
        cmocka_unit_test(process_looks_for_programs_where_nobody_else_can_put_them),
        cmocka_unit_test(process_writes_files_for_us_alone_where_nobody_can_exchange_them),
        cmocka_unit_test(process_says_which_program_cannot_be_started),
        cmocka_unit_test(process_leaves_no_zombie_and_no_open_file),
        cmocka_unit_test(process_children_die_with_the_server),
        cmocka_unit_test(process_leaves_no_zombies_where_it_is_the_first_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
