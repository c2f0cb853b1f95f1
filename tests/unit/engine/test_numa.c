/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/numa: which nodes memory is spread over, on machines that are folders; and that
 * the kernel has been told so, on this one. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "engine/cpu/backend_private.h"
#include "engine/memory.h"
#include "engine/model.h"
#include "engine/numa.h"
#include "tests/unit/engine/golden.h"

static char root[] = "/tmp/whet-numa-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

struct topology {
    const char *what, *online, *memory, *mems; /* NULL: there is no such file, or no such line */
    const char *cpulist[9];                    /* of each node, in order */
    const char *cpus;                          /* the affinity mask */
    const char *nodes;                         /* what is expected */
    bool spread;
};

static const struct topology topology[] = {
    {"one node", "0", "0", "0", {"0-7"}, "0-7", "0", false},
    {"two sockets, siblings behind them",
     "0-1",
     "0-1",
     "0-1",
     {"0-31,64-95", "32-63,96-127"},
     "0-127",
     "0-1",
     true},
    {"one socket of two", "0-1", "0-1", "0-1", {"0-31,64-95", "32-63,96-127"}, "32-63", "1", false},
    {"four nodes a socket",
     "0-7",
     "0-7",
     "0-7",
     {"0-15", "16-31", "32-47", "48-63", "64-79", "80-95", "96-111", "112-127"},
     "0-127",
     "0-7",
     true},
    {"a half of a socket of four nodes",
     "0-7",
     "0-7",
     "0-7",
     {"0-15", "16-31", "32-47", "48-63", "64-79", "80-95", "96-111", "112-127"},
     "20-40",
     "1-2",
     true},
    {"memory without CPUs (CXL)", "0-2", "0-2", "0-2", {"0-15", "16-31", ""}, "0-31", "0-1", true},
    {"one socket and CXL", "0-1", "0-1", "0-1", {"0-15", ""}, "0-15", "0", false},
    {"CPUs without memory", "0-2", "0,2", "0-2", {"0-7", "8-15", "16-23"}, "0-23", "0,2", true},
    {"CPUs without memory, and a node", "0-1", "0", "0", {"0-7", "8-15"}, "0-15", "0", false},
    {"numbers with holes",
     "0,3-4,8",
     "0,3-4,8",
     "0-8",
     {"0,2,4", NULL, NULL, "6-9", "20", NULL, NULL, NULL, "1500-1501"},
     "2,20,1500",
     "0,4,8",
     true},
    {"a cpuset that has one node's memory", "0-1", "0-1", "1", {"0-7", "8-15"}, "0-15", "1", false},
    {"all CPUs of a node offline", "0-1", "0-1", "0-1", {"0-7", ""}, "0-15", "0", false},
    {"no word on memory", "0-1", NULL, NULL, {"0-7", "8-15"}, "0-15", "0-1", true},
    {"lists that are none", "0-1", "0-1", "0-1", {"0-7", "8;15"}, "0-15", "0", false},
    {"no folder of nodes", NULL, NULL, "0", {NULL}, "0-15", "", false},
};

static void lay(const struct topology *t)
{
    char name[96], text[256];
    if (t->online)
        put("sys/devices/system/node/online", t->online);
    if (t->memory)
        put("sys/devices/system/node/has_memory", t->memory);
    for (int n = 0; n < 9; n++) {
        snprintf(name, sizeof name, "sys/devices/system/node/node%d/cpulist", n);
        snprintf(text, sizeof text, "%s\n", t->cpulist[n] ? t->cpulist[n] : "");
        if (t->cpulist[n])
            put(name, text);
    }
    snprintf(text, sizeof text, "Name:\twhet\n%s%s\nvoluntary_ctxt_switches:\t1\n",
             t->mems ? "Mems_allowed_list:\t" : "", t->mems ? t->mems : "");
    put("proc/self/status", text);
}

static void memory_is_spread_over_nodes_of_threads_and_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof topology / sizeof *topology; i++) {
        const struct topology *t = &topology[i];
        struct cores_set cpus;
        struct numa_plan plan;
        char names[NUMA_TEXT];
        strcpy(root, "/tmp/whet-numa-XXXXXX");
        assert_non_null(mkdtemp(root));
        lay(t);
        assert_true(cores_parse(t->cpus, &cpus));
        numa_plan_in(root, &cpus, &plan);
        numa_names(&plan, names, sizeof names);
        if (strcmp(names, t->nodes) != 0 || plan.spread != t->spread)
            fail_msg("%s: nodes %s, %s", t->what, names, plan.spread ? "spread" : "not spread");
        safe_folder_remove(root);
    }
}

/* ---- this machine --------------------------------------------------------------------------- */

/* A plan of the first node alone: the kernel takes it for what it is. */
static const struct numa_plan first = {.spread = true, .nodes = 1, .all = 1, .node = {1}};
static const struct numa_plan nothing = {.spread = false};

static int policy_at(const void *at)
{
    int mode = -1;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0, at, MPOL_F_ADDR) != 0)
        return -1;
    return mode;
}

static int policy_of_thread(void)
{
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0 ? mode : -1;
}

static bool system_takes_policies(void)
{
    long page = sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    numa_use(&first);
    numa_spread(at, (size_t)page);
    int policy = policy_at(at);
    numa_use(&nothing);
    munmap(at, (size_t)page);
    return policy == MPOL_INTERLEAVE;
}

static void *mapped(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    return at;
}

static void whole_pages_are_spread_and_no_others(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mapped(4 * page);
    if (!system_takes_policies())
        skip();
    numa_spread(at, 4 * page); /* no plan */
    assert_int_equal(policy_at(at), MPOL_DEFAULT);
    numa_use(&first);
    assert_true(numa_spreads());
    numa_spread(at + 1, 3 * page);
    numa_spread(at + 1, page / 2); /* no whole page */
    for (int i = 0; i < 4; i++)
        assert_int_equal(policy_at(at + (size_t)i * page),
                         i == 1 || i == 2 ? MPOL_INTERLEAVE : MPOL_DEFAULT);
    numa_use(&nothing);
    munmap(at, 4 * page);
}

static void memory_of_weights_is_spread(void **state)
{
    (void)state;
    if (!system_takes_policies())
        skip();
    for (int spread = 0; spread < 2; spread++) {
        numa_use(spread ? &first : &nothing);
        char *huge = memory_huge(40 << 20), *shared = memory_shared(40 << 20);
        char *fine = memory_fine(40 << 20);
        int wanted = spread ? MPOL_INTERLEAVE : MPOL_DEFAULT;
        assert_int_equal(policy_at(huge + (39 << 20)), wanted);
        assert_int_equal(policy_at(shared), wanted);
        assert_int_equal(policy_at(fine + (20 << 20)), wanted);
        free(huge);
        free(shared);
        free(fine);
    }
    char *small = memory_shared(100);
    memset(small, 1, 100);
    free(small);
    numa_use(&nothing);
}

static void keys_and_values_and_copied_weights_are_spread(void **state)
{
    (void)state;
    char *path = golden_path("tiny-llama.gguf");
    struct err e = {""};
    if (!system_takes_policies())
        skip();
    numa_use(&first);
    struct model *m = model_open(path, false, NULL, NULL, &e);
    assert_non_null(m);
    for (int texts = 0; texts < 2; texts++) {
        struct backend_options o = {.threads = 1,
                                    .kv_pages = 64,
                                    .max_tokens = 16,
                                    .max_rows = 1,
                                    .huge_pages = true,
                                    .texts = texts};
        struct backend *b = backend_cpu.open(m, &o, &e);
        assert_non_null(b);
        assert_int_equal(policy_at(backend_pages(b, 0, 0)), MPOL_INTERLEAVE);
        assert_int_equal(policy_at(m->layer[0].wq.data), MPOL_INTERLEAVE);
        backend_cpu.close(b);
    }
    model_close(m);
    free(path);
    numa_use(&nothing);
}

static void note_policy(void *ctx, double fraction)
{
    (void)fraction;
    int *seen = ctx;
    *seen = policy_of_thread() == MPOL_INTERLEAVE ? 1 : *seen;
}

static void files_are_read_into_all_nodes_and_then_no_more(void **state)
{
    (void)state;
    char *path = golden_path("tiny-llama.gguf");
    struct err e = {""};
    if (!system_takes_policies())
        skip();
    for (int spread = 0; spread < 2; spread++) {
        int seen = 0;
        numa_use(spread ? &first : &nothing);
        struct model *m = model_open(path, false, note_policy, &seen, &e);
        assert_non_null(m);
        assert_int_equal(seen, spread);
        assert_int_equal(policy_of_thread(), MPOL_DEFAULT);
        model_close(m);
    }
    free(path);
    numa_use(&nothing);
}

/* A machine of two nodes that have this one's CPUs: its kernel, which knows no node 1, takes a mask
 * with it for one of node 0. */
static void lay_two_nodes(void)
{
    strcpy(root, "/tmp/whet-numa-XXXXXX");
    assert_non_null(mkdtemp(root));
    lay(&(struct topology){
        .online = "0-1", .memory = "0-1", .mems = "0-1", .cpulist = {"0-8191", "0-8191"}});
}

static bool says(const char *part)
{
    char words[NUMA_TEXT];
    numa_words(words);
    return strstr(words, part) != NULL;
}

static void the_log_says_what_was_decided(void **state)
{
    (void)state;
    if (!system_takes_policies())
        skip();
    lay_two_nodes();
    numa_open_in(root, true);
    assert_true(numa_spreads() && says("on nodes 0-1 of 2: weights, keys and values are spread"));
    numa_open_in(root, false);
    assert_true(!numa_spreads() && says("touches it first (engine.numa)"));
    put("sys/devices/system/node/node1/cpulist", "\n");
    numa_open_in(root, true);
    assert_true(!numa_spreads() && says("on node 0 of 2, and so is memory"));
    put("sys/devices/system/node/online", "0\n");
    numa_open_in(root, true);
    assert_false(numa_spreads());
    char words[NUMA_TEXT];
    numa_words(words);
    assert_string_equal(words, "");
    safe_folder_remove(root);
    numa_use(&nothing);
}

/* A policy from outside is somebody's decision. */
static void a_policy_of_the_process_is_kept(void **state)
{
    (void)state;
    unsigned long one = 1;
    if (!system_takes_policies())
        skip();
    lay_two_nodes();
    assert_int_equal(syscall(SYS_set_mempolicy, MPOL_BIND, &one, 64), 0);
    numa_open_in(root, true);
    bool kept = !numa_spreads() && says("is kept") && policy_of_thread() == MPOL_BIND;
    assert_int_equal(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0), 0);
    assert_true(kept);
    safe_folder_remove(root);
    numa_use(&nothing);
}

/* From here on mbind() fails as in a container of Docker. */
static bool forbid_mbind(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void a_system_that_forbids_it_costs_a_line(void **state)
{
    (void)state;
    if (!system_takes_policies())
        skip();
    lay_two_nodes();
    pid_t child = fork();
    if (child == 0) {
        if (!forbid_mbind())
            _exit(77);
        numa_open_in(root, true);
        char *still = memory_huge(4 << 20);
        _exit(!numa_spreads() && says("mbind: Operation not permitted") && still[1] == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    safe_folder_remove(root);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_spread_over_nodes_of_threads_and_memory),
        cmocka_unit_test(whole_pages_are_spread_and_no_others),
        cmocka_unit_test(memory_of_weights_is_spread),
        cmocka_unit_test(keys_and_values_and_copied_weights_are_spread),
        cmocka_unit_test(files_are_read_into_all_nodes_and_then_no_more),
        cmocka_unit_test(the_log_says_what_was_decided),
        cmocka_unit_test(a_policy_of_the_process_is_kept),
        cmocka_unit_test(a_system_that_forbids_it_costs_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
