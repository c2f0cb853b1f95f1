/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tune/order.c: every batch size has its largest regions looked at before any has its
 * smallest. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "tune/order.h"

enum { SIZES = 4, REGIONS = 6, SLOTS = SIZES * REGIONS };
static const int m[SIZES] = {1, 8, 32, 64};
static const enum region region[REGIONS] = {REGION_ATTN_IN, REGION_ATTN,    REGION_ATTN_OUT,
                                            REGION_MLP_IN,  REGION_MLP_OUT, REGION_HEAD};
/* Bytes decide on this machine: it computes without end. */
static const struct machine machine = {.read_bandwidth = 4e12, .peak_flops = 1e18};

struct world {
    struct model *model;
    struct dispatch *dispatch;
    struct kernel eager[REGION_COUNT];
    const struct slot *slot[SLOTS], *order[SLOTS];
};

/* All regions of 1, then of 8, ... as scripts/bench-h200 names them. */
static int open_world(void **state)
{
    static const struct model_shape shape = {.layers = 8,
                                             .hidden = 256,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 64,
                                             .ffn = 1024,
                                             .vocab = 512,
                                             .max_context = 1024,
                                             .eps = 1e-5f,
                                             .rope_base = 1e4f};
    struct world *w = calloc(1, sizeof *w);
    const struct kernel *table[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++)
        table[r] = &w->eager[r];
    w->model = model_random(&shape, DTYPE_F32, 1);
    w->dispatch = dispatch_open(table, NULL);
    for (int i = 0; i < SLOTS; i++) {
        w->slot[i] = w->order[i] =
            dispatch_slot(w->dispatch, region[i % REGIONS], 0, m[i / REGIONS], 512);
    }
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    dispatch_close(w->dispatch);
    model_close(w->model);
    free(w);
    return 0;
}

static int at(const struct world *w, enum region r, int tokens)
{
    for (int i = 0; i < SLOTS; i++)
        if (w->order[i]->region == r && w->order[i]->m == tokens)
            return i;
    fail();
    return -1;
}

static void the_largest_regions_of_all_sizes_come_first(void **state)
{
    struct world *w = *state;
    order_slots(w->model, &machine, w->order, SLOTS);
    for (int i = 0; i < SIZES; i++) {
        assert_true(at(w, REGION_MLP_IN, m[i]) < at(w, REGION_MLP_OUT, m[i]));
        assert_true(at(w, REGION_MLP_OUT, m[i]) < at(w, REGION_ATTN_OUT, m[i]));
        for (int k = 0; k < SIZES; k++) /* whatever is short of time has these of all sizes */
            assert_true(at(w, REGION_MLP_IN, m[i]) < at(w, REGION_ATTN_OUT, m[k]));
    }
    for (int i = 1; i < SLOTS; i++)
        assert_true(order_share(w->model, &machine, w->order[i - 1]) >=
                    order_share(w->model, &machine, w->order[i]));
}

static void shares_of_a_step_add_up_and_attention_grows_with_context(void **state)
{
    struct world *w = *state;
    double sum =
        order_share(w->model, &machine, dispatch_slot(w->dispatch, REGION_EMBED, 0, 8, 512));
    for (int i = REGIONS; i < 2 * REGIONS; i++)
        sum += order_share(w->model, &machine, w->slot[i]);
    assert_float_equal(sum, 1, 1e-9);
    assert_true(
        order_share(w->model, &machine, dispatch_slot(w->dispatch, REGION_ATTN, 0, 8, 256)) <
        order_share(w->model, &machine, dispatch_slot(w->dispatch, REGION_ATTN, 0, 8, 1024)));
}

/* Whole steps judge the others beside it. */
static void on_a_gpu_attention_comes_first(void **state)
{
    struct world *w = *state;
    struct machine gpu = machine;
    gpu.kind = MACHINE_CUDA;
    order_slots(w->model, &gpu, w->order, SLOTS);
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(w->order[i]->region == REGION_ATTN, i < SIZES);
    assert_int_equal(w->order[SIZES]->region, REGION_MLP_IN);
}

static void steps_are_replayed_beside_attention_that_is_searched(void **state)
{
    struct world *w = *state;
    const struct slot *longer = dispatch_slot(w->dispatch, REGION_ATTN, 0, 8, 2048);
    const struct slot *some[] = {w->slot[0], w->slot[REGIONS], w->slot[REGIONS + 1], longer};
    const struct slot *slot = w->slot[REGIONS]; /* attn_in/m8, which comes with attn/m8/c512 */
    assert_int_equal(order_context(some, 4, slot, 4096, 0), 512);
    assert_int_equal(order_context(some, 4, slot, 4096, 1), 2048);
    assert_int_equal(order_context(some, 4, slot, 4096, 2), 512);
    assert_int_equal(order_context(some, 4, slot, 1026, 1), 2048);
    assert_int_equal(order_context(some, 4, slot, 1025, 1), 512);       /* 2048 begins with 1025 */
    assert_int_equal(order_context(some, 4, w->slot[0], 4096, 1), 256); /* none of one token */
    assert_int_equal(order_context(some, 0, slot, 4096, 5), 256);
}

static void equals_stay_as_they_were_given(void **state)
{
    struct world *w = *state;
    const struct slot twin[3] = {*w->slot[0], *w->slot[0], *w->slot[0]};
    const struct slot *order[3] = {&twin[2], &twin[0], &twin[1]};
    order_slots(w->model, &machine, order, 3);
    assert_ptr_equal(order[0], &twin[2]);
    assert_ptr_equal(order[1], &twin[0]);
    assert_ptr_equal(order[2], &twin[1]);
}

/* Two classes of mlp_out share what the region is of a step, by their layers and bytes. */
static void classes_have_the_share_of_their_layers(void **state)
{
    const struct world *w = *state;
    const struct kernel *table[REGION_COUNT];
    struct model *mixed = model_random_mixed(&w->model->shape, DTYPE_BF16, DTYPE_F32, 1);
    for (int r = 0; r < REGION_COUNT; r++)
        table[r] = &w->eager[r];
    struct dispatch *d = dispatch_open(table, formats_open(mixed, MACHINE_CPU));
    double bf16 = order_share(mixed, &machine, dispatch_find(d, "mlp_out/m1/bf16")),
           f32 = order_share(mixed, &machine, dispatch_find(d, "mlp_out/m1/f32"));
    /* Of eight layers the first, the last and two between have more bits, twice as many. */
    assert_true(f32 / bf16 > 1.9 && f32 / bf16 < 2.1);
    double all = bf16 + f32, in = order_share(mixed, &machine, dispatch_find(d, "mlp_in/m1"));
    /* Gate and up in bf16 are 2 x 2 bytes a weight, down is 3 on average. */
    assert_true(in / all > 1.3 && in / all < 1.37);
    dispatch_close(d);
    model_close(mixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(classes_have_the_share_of_their_layers, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(the_largest_regions_of_all_sizes_come_first, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(shares_of_a_step_add_up_and_attention_grows_with_context,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(on_a_gpu_attention_comes_first, open_world, close_world),
        cmocka_unit_test_setup_teardown(steps_are_replayed_beside_attention_that_is_searched,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(equals_stay_as_they_were_given, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
