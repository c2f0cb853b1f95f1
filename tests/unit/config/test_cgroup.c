/* SPDX-License-Identifier: Apache-2.0 */
/* test_cgroup.c - limits of cgroups of both versions, mounted as systems and containers mount them:
 * from files in a folder, and from a real group where this process may make one.
 */
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/cgroup.h"
#include "config/cores.h"
#include "config/safe_path.h"

static char root[] = "/tmp/whet-cgroup-XXXXXX";

/* Writes a file below root, with the folders on the way. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = strchr(path + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/whet-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    safe_folder_remove(root);
    return 0;
}

static void expect(const struct cgroup_limit *l, int64_t limit, int64_t room, const char *file)
{
    assert_string_equal(l->file, file);
    assert_int_equal(l->limit, limit);
    assert_int_equal(l->room, room);
}

/* ---- version 2 ------------------------------------------------------------------------------ */

#define V2_MOUNT "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void version_2_has_the_groups_above_too(void **state)
{
    (void)state;
    struct cgroup_limit l;
    put("/proc/self/cgroup", "0::/a.slice/b.service\n");
    put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
    assert_false(cgroup_memory(root, &l));
    assert_false(cgroup_cpu(root, &l));
    assert_false(cgroup_tasks(root, &l));
    put("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a.slice/b.service/pids.max", "max\n");
    assert_false(cgroup_memory(root, &l));
    assert_false(cgroup_cpu(root, &l));
    assert_false(cgroup_tasks(root, &l));
    put("/sys/fs/cgroup/a.slice/memory.max", "1000000\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "700000\n");
    put("/sys/fs/cgroup/a.slice/memory.stat", "anon 5\nfile 400000\ninactive_file 300000\n");
    put("/sys/fs/cgroup/a.slice/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/a.slice/pids.max", "100\n");
    put("/sys/fs/cgroup/a.slice/pids.current", "30\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 1000000, 600000, "/sys/fs/cgroup/a.slice/memory.max");
    assert_true(cgroup_cpu(root, &l));
    expect(&l, 2500, 2500, "/sys/fs/cgroup/a.slice/cpu.max");
    assert_true(cgroup_tasks(root, &l));
    expect(&l, 100, 70, "/sys/fs/cgroup/a.slice/pids.max");
    /* what leaves less decides, whatever its limit: the group's own, which is nearly used up */
    put("/sys/fs/cgroup/a.slice/b.service/memory.max", "900000\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.current", "800000\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 900000, 100000, "/sys/fs/cgroup/a.slice/b.service/memory.max");
    put("/sys/fs/cgroup/a.slice/b.service/memory.high", "850000\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 850000, 50000, "/sys/fs/cgroup/a.slice/b.service/memory.high");
    put("/sys/fs/cgroup/a.slice/b.service/memory.current", "860000\n"); /* over it already */
    assert_true(cgroup_memory(root, &l));
    expect(&l, 850000, 0, "/sys/fs/cgroup/a.slice/b.service/memory.high");
}

/* In a cgroup namespace the container's group is "/", and its folder the mount. */
static void namespaces_begin_at_the_mount(void **state)
{
    (void)state;
    static const char *const paths[] = {"0::/\n", "0::/../..\n", "0::/../other\n"};
    struct cgroup_limit l;
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/memory.max", "5000\n");
    put("/sys/fs/cgroup/memory.current", "1000\n");
    for (int i = 0; i < 3; i++) {
        put("/proc/self/cgroup", paths[i]);
        assert_true(cgroup_memory(root, &l));
        expect(&l, 5000, 4000, "/sys/fs/cgroup/memory.max");
    }
    /* the host's mount, seen from within: it begins above the namespace */
    put("/proc/self/mountinfo", "29 23 0:26 /../.. /host/cg rw - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/../../pod/x\n");
    put("/host/cg/pod/x/memory.max", "3000\n");
    put("/host/cg/pod/memory.max", "2000\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 2000, 2000, "/host/cg/pod/memory.max");
}

/* ---- version 1 ------------------------------------------------------------------------------ */

#define V1_MOUNTS                                                                          \
    "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"                        \
    "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n" \
    "35 25 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                    \
    "36 25 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"                    \
    "37 25 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"

static void version_1_has_a_mount_for_each_controller(void **state)
{
    (void)state;
    struct cgroup_limit l;
    put("/proc/self/cgroup", "12:cpuset:/x\n9:memory:/a/b\n5:cpuacct,cpu:/a\n4:pids:/p\n"
                             "1:name=systemd:/a/b\n0::/a/b\n");
    put("/proc/self/mountinfo", V1_MOUNTS);
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n");
    put("/sys/fs/cgroup/pids/p/pids.max", "max\n");
    assert_false(cgroup_memory(root, &l));
    assert_false(cgroup_cpu(root, &l));
    assert_false(cgroup_tasks(root, &l));
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "400000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "300000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.stat",
        "cache 9\ninactive_file 1\ntotal_cache 9\ntotal_inactive_file 200000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "75000\n");
    put("/sys/fs/cgroup/pids/p/pids.max", "7\n");
    put("/sys/fs/cgroup/pids/p/pids.current", "9\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 400000, 300000, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
    assert_true(cgroup_cpu(root, &l));
    expect(&l, 1500, 1500, "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us");
    assert_true(cgroup_tasks(root, &l));
    expect(&l, 7, 0, "/sys/fs/cgroup/pids/p/pids.max");
    /* a group above: only if those below are charged to it */
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    assert_true(cgroup_memory(root, &l));
    assert_int_equal(l.limit, 400000);
    put("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 1000, 1000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
    /* the limit may be the other version's */
    put("/sys/fs/cgroup/unified/a/memory.max", "500\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 500, 500, "/sys/fs/cgroup/unified/a/memory.max");
}

/* Without a namespace the mount of a container begins with the container's group. */
static void a_mount_of_a_group_stands_for_it(void **state)
{
    (void)state;
    struct cgroup_limit l;
    put("/proc/self/cgroup", "9:memory:/docker/ab/inner\n");
    put("/proc/self/mountinfo",
        "40 25 0:31 /docker/abc /other ro - cgroup cgroup rw,memory\n"
        "36 25 0:31 /docker/ab /sys/fs/my\\040cgroup ro master:7 - cgroup cgroup rw,memory\n");
    put("/other/memory.limit_in_bytes", "5\n");
    put("/sys/fs/my cgroup/memory.limit_in_bytes", "8000\n");
    put("/sys/fs/my cgroup/inner/memory.limit_in_bytes", "9000\n");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 8000, 8000, "/sys/fs/my cgroup/memory.limit_in_bytes");
}

/* Whatever stands there, no more is left than the limit, and a path is read to its end alone. */
static void odd_numbers_and_paths_are_taken_as_far_as_they_go(void **state)
{
    (void)state;
    struct cgroup_limit l;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "29 23 0:26 / /c\\1 rw - cgroup2 cgroup2 rw\n");
    put("/c\\1/pids.max", "100\n");
    put("/c\\1/pids.current", "-5\n");
    put("/c\\1/memory.max", "1000\n");
    put("/c\\1/memory.current", "-9223372036854775807\n");
    put("/c\\1/memory.stat", "inactive_file 9223372036854775807\n");
    put("/c\\1/cpu.max", "100000 9223372036854775807\n");
    assert_true(cgroup_tasks(root, &l));
    expect(&l, 100, 100, "/c\\1/pids.max");
    assert_true(cgroup_memory(root, &l));
    expect(&l, 1000, 1000, "/c\\1/memory.max");
    assert_false(cgroup_cpu(root, &l));
}

static void what_cannot_be_read_is_no_limit(void **state)
{
    (void)state;
    struct cgroup_limit l;
    assert_false(cgroup_memory(root, &l));
    put("/proc/self/cgroup", "\n::\nnonsense\n0:\n0::\n9:memory\n");
    put("/proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n1 2 3:4 / /m rw - cgroup\n" V2_MOUNT);
    assert_false(cgroup_memory(root, &l));
    put("/proc/self/cgroup", "0::/g\n");
    static const char *const nonsense[] = {"",      "\n",   "x\n",
                                           "12x\n", "-5\n", "99999999999999999999\n"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        put("/sys/fs/cgroup/g/memory.max", nonsense[i]);
        put("/sys/fs/cgroup/g/cpu.max", nonsense[i]);
        assert_false(cgroup_memory(root, &l));
        assert_false(cgroup_cpu(root, &l));
    }
    put("/sys/fs/cgroup/g/cpu.max", "5 0\n");
    assert_false(cgroup_cpu(root, &l));
}

/* ---- real groups ---------------------------------------------------------------------------- */

static bool write_to(const char *folder, const char *file, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Runs look() in a child that has joined a new group with `limit` in `file`; what it returns, or -1
 * if there can be no such group here. */
static int in_group(const char *parent, const char *file, const char *limit, int (*look)(void))
{
    char group[200];
    int status = 0;
    snprintf(group, sizeof group, "%s/whet-test-%d", parent, (int)getpid());
    if (mkdir(group, 0755) != 0)
        return -1;
    pid_t child = write_to(group, file, limit) ? fork() : -1;
    if (child == 0)
        _exit(write_to(group, "cgroup.procs", "0") ? look() : 99);
    if (child > 0)
        waitpid(child, &status, 0);
    rmdir(group);
    return child > 0 && WEXITSTATUS(status) != 99 ? WEXITSTATUS(status) : -1;
}

static int real_memory(void)
{
    struct cgroup_limit l;
    return cgroup_memory("", &l) && l.limit == 300 << 20 && l.room > 0 && l.room <= l.limit;
}

static void a_real_limit_of_memory_is_seen(void **state)
{
    (void)state;
    int seen = in_group("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "314572800", real_memory);
    if (seen < 0)
        seen = in_group("/sys/fs/cgroup", "memory.max", "314572800", real_memory);
    if (seen < 0)
        skip();
    assert_int_equal(seen, 1);
}

static int real_cores(void)
{
    return cores_usable() == 1 && cores_or(0) == 1 && cores_or(3) == 3;
}

static void a_real_quota_bounds_the_cores(void **state)
{
    (void)state;
    int seen = in_group("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "60000", real_cores);
    if (seen < 0)
        seen = in_group("/sys/fs/cgroup", "cpu.max", "60000 100000", real_cores);
    if (seen < 0)
        skip();
    assert_int_equal(seen, 1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(version_2_has_the_groups_above_too),
        TEST(namespaces_begin_at_the_mount),
        TEST(version_1_has_a_mount_for_each_controller),
        TEST(a_mount_of_a_group_stands_for_it),
        TEST(odd_numbers_and_paths_are_taken_as_far_as_they_go),
        TEST(what_cannot_be_read_is_no_limit),
        TEST(a_real_limit_of_memory_is_seen),
        TEST(a_real_quota_bounds_the_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
