/* SPDX-License-Identifier: Apache-2.0 */
/* test_launcher.c - which rank a process is, from the variables that launchers set. */
#include "tests/unit/unit.h"

#include <string.h>

#include "engine/launcher.h"

#define environment environment_of_launch
#include "engine/launch.c"
#undef environment

/* The environment of a test: "NAME=value" strings. */
static const char *const *environment;

static const char *get(const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; environment[i]; i++)
        if (!strncmp(environment[i], name, n) && environment[i][n] == '=')
            return environment[i] + n + 1;
    return NULL;
}

#define IN(...) (environment = (const char *const[]){__VA_ARGS__, NULL})

static struct rank_place place(void)
{
    struct rank_place p;
    struct err err = {""};
    if (rank_place_read(&p, get, &err))
        fail_msg("%s", err.msg);
    return p;
}

static void assert_wrong(const char *words)
{
    struct rank_place p;
    struct err err = {""};
    assert_int_equal(rank_place_read(&p, get, &err), -1);
    if (!strstr(err.msg, words))
        fail_msg("'%s' is not in: %s", words, err.msg);
}

static void assert_place(int32_t rank, int32_t world, int32_t local, const char *host, int port)
{
    struct rank_place p = place();
    assert_int_equal(p.rank, rank);
    assert_int_equal(p.world, world);
    assert_int_equal(p.local_rank, local);
    assert_string_equal(p.host, host);
    assert_int_equal(p.port, port);
    assert_int_equal(p.listener, -1);
}

static void every_launcher_is_understood(void **state)
{
    (void)state;
    IN("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "MASTER_ADDR=n0", "MASTER_PORT=1234");
    assert_place(3, 4, 1, "n0", 1234);
    IN("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
       "OMPI_COMM_WORLD_LOCAL_SIZE=2");
    assert_place(1, 2, 1, "127.0.0.1", RANK_PORT_USUAL);
    IN("PMI_RANK=0", "PMI_SIZE=2", "MASTER_ADDR=::1");
    assert_place(0, 2, -1, "::1", RANK_PORT_USUAL);
    IN("LWS_WORKER_INDEX=5", "LWS_GROUP_SIZE=8", "LWS_LEADER_ADDRESS=whet-0.whet.default");
    assert_place(5, 8, -1, "whet-0.whet.default", RANK_PORT_USUAL);
    IN("SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_STEP_NODELIST=gpu[007-009]");
    assert_place(2, 4, 0, "gpu007", RANK_PORT_USUAL);
}

static void the_first_node_of_slurms_list_is_rank_0s(void **state)
{
    (void)state;
    static const struct {
        const char *list, *host;
    } row[] = {{"SLURM_STEP_NODELIST=a1", "a1"},
               {"SLURM_STEP_NODELIST=a1,b2", "a1"},
               {"SLURM_STEP_NODELIST=a[1,3]", "a1"},
               {"SLURM_STEP_NODELIST=rack-a[07,09-11],b", "rack-a07"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        IN("SLURM_PROCID=0", "SLURM_NTASKS=2", row[i].list);
        assert_string_equal(place().host, row[i].host);
    }
    IN("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_NODELIST=a[x]");
    assert_wrong("MASTER_ADDR");
}

static void master_addr_counts_for_every_launcher(void **state)
{
    (void)state;
    IN("SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_NODELIST=a", "MASTER_ADDR=b");
    assert_string_equal(place().host, "b");
    IN("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=b", "OMPI_COMM_WORLD_RANK=1");
    assert_string_equal(place().launcher, "RANK");
}

/* A machine's own name may be one that others reach, or nobody. */
static void ranks_of_one_machine_meet_at_its_loopback(void **state)
{
    (void)state;
    IN("RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node7");
    assert_string_equal(place().host, "127.0.0.1");
    IN("RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=node7");
    assert_string_equal(place().host, "node7");
    IN("RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.7");
    assert_string_equal(place().host, "10.0.0.7");
    IN("RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=fd00::7");
    assert_string_equal(place().host, "fd00::7");
}

static void torchruns_store_keeps_its_port(void **state)
{
    (void)state;
    IN("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=b", "MASTER_PORT=29500",
       "TORCHELASTIC_USE_AGENT_STORE=True");
    assert_int_equal(place().port, 29501);
}

static void what_is_missing_or_wrong_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *rank, *world, *port, *words;
    } row[] = {
        {"RANK=0", "X=", "X=", "WORLD_SIZE is not set"},
        {"RANK=2", "WORLD_SIZE=2", "X=", "RANK = '2': expected a number from 0 to 1"},
        {"RANK=-1", "WORLD_SIZE=2", "X=", "RANK = '-1'"},
        {"RANK=0x1", "WORLD_SIZE=2", "X=", "RANK = '0x1'"},
        {"RANK=0", "WORLD_SIZE=0", "X=", "WORLD_SIZE = '0': expected a number from 1 to 64"},
        {"RANK=0", "WORLD_SIZE=99999999999999999999", "X=", "WORLD_SIZE = '9999"},
        {"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=70000", "MASTER_PORT = '70000'"},
        {"RANK=0", "WORLD_SIZE=2", "X=", "MASTER_ADDR, the host of rank 0, is not set"},
        {"RANK=", "WORLD_SIZE=2", "X=", "no launcher says which rank this is"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        IN(row[i].rank, row[i].world, row[i].port);
        assert_wrong(row[i].words);
    }
}

/* Each rank sees its own GPU alone; a probe will want them all, the rank's own first. */
static void a_rank_sees_its_own_gpu_and_knows_those_of_all(void **state)
{
    static const struct {
        const char *visible;
        int32_t rank, world;
        const char *own, *all;
    } row[] = {
        {NULL, 0, 2, "0", "0,1"},
        {NULL, 2, 3, "2", "2,0,1"},
        {"4,7", 1, 2, "7", "7,4"},
        {"4,7,9", 0, 2, "4", "4,7"},
        {"GPU-a,GPU-b", 1, 2, "GPU-b", "GPU-b,GPU-a"},
        {"3", 0, 2, "3", NULL}, /* whoever started it has shown it one */
        {"3", 1, 2, "3", NULL},
        {"1,2", -1, 2, "1,2", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct rank_place here = {.world = row[i].world, .local_rank = row[i].rank};
        unsetenv("WHET_RANK_GPUS");
        if (row[i].visible)
            setenv("CUDA_VISIBLE_DEVICES", row[i].visible, 1);
        else
            unsetenv("CUDA_VISIBLE_DEVICES");
        pick_device(&here);
        assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), row[i].own);
        const char *all = getenv("WHET_RANK_GPUS");
        assert_int_equal(!all, !row[i].all);
        if (all)
            assert_string_equal(all, row[i].all);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("WHET_RANK_GPUS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_launcher_is_understood),
        cmocka_unit_test(the_first_node_of_slurms_list_is_rank_0s),
        cmocka_unit_test(master_addr_counts_for_every_launcher),
        cmocka_unit_test(ranks_of_one_machine_meet_at_its_loopback),
        cmocka_unit_test(torchruns_store_keeps_its_port),
        cmocka_unit_test(what_is_missing_or_wrong_is_named),
        cmocka_unit_test(a_rank_sees_its_own_gpu_and_knows_those_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
