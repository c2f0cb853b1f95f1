/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/transfer.c: which block a graph reads, and what is sent besides it. */
#include "tests/unit/unit.h"

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

static cudaError_t graph_says;
static int graphs;
#define cudaGraphLaunch(exec, stream) ((void)(exec), (void)(stream), graphs++, graph_says)
#include "engine/cuda/transfer.c"
#undef cudaGraphLaunch

static struct {
    enum primitive primitive;
    struct eager_copy_args copy;
    struct eager_open_args open;
} sent[8];
static int sends;

/* Instead of walk.c's. */
int launch(struct walk *w, enum primitive p, dim3 grid, int threads, int smem, const void *args,
           struct err *e)
{
    (void)w, (void)grid, (void)threads, (void)smem, (void)e;
    sent[sends].primitive = p;
    if (p == PRIM_COPY)
        sent[sends].copy = *(const struct eager_copy_args *)args;
    if (p == PRIM_OPEN)
        sent[sends].open = *(const struct eager_open_args *)args;
    sends++;
    return 0;
}

int cuda_failed(struct err *e, cudaError_t code, const char *what, const char *file, int line)
{
    (void)what, (void)file, (void)line;
    return err_set(e, "code %d", (int)code);
}

static char device[1 << 20], host[1 << 20];
static int32_t parities[2][4] = {{0}, {1}};

static struct backend opened(void)
{
    struct backend b = {.told = -1, .parity_host = parities};
    b.narrow.device = device;
    b.narrow.host = host;
    b.narrow.bytes = sizeof device;
    b.narrow.page_table = (int32_t *)(void *)(device + 4096);
    sends = graphs = 0;
    graph_says = cudaSuccess;
    return b;
}

static void a_graph_is_told_its_turn_only_when_it_would_find_another(void **state)
{
    (void)state;
    struct backend b = opened();
    struct kernel_choice c = {.m = 1, .context = 512};
    struct err e;
    assert_int_equal(transfer_launch(&b, &c, NULL, 4096, &e), 0);
    assert_int_equal(sends, 1); /* nobody knew the parity on the device */
    assert_ptr_equal(sent[0].copy.from, parities[0]);
    b.parity = 1; /* as after every step */
    assert_int_equal(transfer_launch(&b, &c, NULL, 4096, &e), 0);
    assert_int_equal(sends, 1);
    /* an uncaptured step: the parity of the host changed, that of the device did not */
    assert_int_equal(transfer_launch(&b, &c, NULL, 4096, &e), 0);
    assert_int_equal(sends, 2);
    assert_ptr_equal(sent[1].copy.from, parities[1]);
    assert_int_equal(graphs, 3);
}

static void after_a_failed_launch_nobody_knows_whose_turn_it_is(void **state)
{
    (void)state;
    struct backend b = opened();
    struct kernel_choice c = {.m = 1, .context = 512};
    struct err e;
    assert_int_equal(transfer_launch(&b, &c, NULL, 4096, &e), 0);
    b.parity = 1;
    graph_says = cudaErrorUnknown;
    assert_int_equal(transfer_launch(&b, &c, NULL, 4096, &e), -1);
    assert_int_equal(b.told, -1);
}

static void what_a_graph_does_not_bring_is_sent_before_it(void **state)
{
    (void)state;
    struct backend b = opened();
    struct kernel_choice c = {.m = 64, .context = 131072};
    struct walk w = {.b = &b, .choice = &c};
    struct err e;
    assert_int_equal(transfer_open(&w, &e), 0);
    size_t brought = (size_t)sent[0].open.n16 * 16;
    assert_true(brought >= 4096 && brought < 200000);
    b.told = b.parity;
    assert_int_equal(transfer_launch(&b, &c, NULL, 200000, &e), 0);
    assert_int_equal(sends, 2);
    assert_ptr_equal(sent[1].copy.from, host + brought);
    assert_ptr_equal(sent[1].copy.to, device + brought);
    assert_int_equal(sent[1].copy.n16, (200000 - (int)brought) / 16);
}

static void a_graph_brings_all_that_its_cell_can_need_when_that_is_little(void **state)
{
    (void)state;
    struct backend b = opened();
    struct kernel_choice c = {.m = 2, .context = 512};
    struct walk w = {.b = &b, .choice = &c};
    struct err e;
    assert_int_equal(transfer_open(&w, &e), 0);
    assert_int_equal(sent[0].open.n16 * 16, 4096 + 2 * 32 * 4);
    assert_true(sent[0].open.both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_is_told_its_turn_only_when_it_would_find_another),
        cmocka_unit_test(after_a_failed_launch_nobody_knows_whose_turn_it_is),
        cmocka_unit_test(what_a_graph_does_not_bring_is_sent_before_it),
        cmocka_unit_test(a_graph_brings_all_that_its_cell_can_need_when_that_is_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
