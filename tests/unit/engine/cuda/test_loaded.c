/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/loaded.c: what a cubin may say of itself. */
#include "tests/unit/unit.h"

#include "engine/cuda/loaded.c"

static struct cuda_kernel_info fair(void)
{
    return (struct cuda_kernel_info){.abi = WHET_CUDA_ABI,
                                     .region = REGION_MLP_IN,
                                     .m_max = 4,
                                     .launches = 1,
                                     .launch = {{.grid = {132, 1, 1}, .threads = 256}}};
}

static struct backend rig(void)
{
    static const struct model model = {
        .shape = {
            .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 128, .vocab = 100}};
    struct backend b = {.work_bytes = 1 << 20, .model = &model};
    b.device.sharedMemPerBlockOptin = 232448;
    return b;
}

static void absurd_claims_are_refused(void **state)
{
    (void)state;
    struct backend b = rig();
    struct err e;
    struct cuda_kernel_info i = fair();
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), 0);
    assert_int_equal(check_info(&b, &i, REGION_MLP_OUT, &e), -1);
    assert_non_null(strstr(e.msg, "expected mlp_out"));
    i.abi = 7;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    assert_non_null(strstr(e.msg, "interface 7"));
    for (int bad = 0; bad < 9; bad++) {
        i = fair();
        struct cuda_launch *l = &i.launch[0];
        *(bad == 0   ? &i.m_max
          : bad == 1 ? &i.launches
          : bad == 2 ? &i.counters
          : bad == 3 ? &l->grid[0]
          : bad == 4 ? &l->threads
          : bad == 5 ? &l->smem
                     : &l->grid[1]) = bad == 2   ? CUDA_COUNTERS + 1
                                      : bad == 5 ? 1 << 20
                                                 : -1;
        if (bad == 7)
            i.work_bytes = 2 << 20, l->grid[1] = 1;
        if (bad == 8) {
            l->grid[1] = 1;
            i.packed_bytes = 16;
            memset(i.layout, 'x', sizeof i.layout);
        }
        assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    }
}

/* No more than the largest matrix has in bf16, here gate and up of mlp_in: a probe has room for
 * that, and sums of layers stay numbers. */
static void repacked_weights_have_a_bound(void **state)
{
    (void)state;
    struct backend b = rig();
    struct err e;
    struct cuda_kernel_info i = fair();
    const int64_t most = 2LL * 256 * 64,
                  absurd[] = {most + 1, 16LL << 30, INT64_MAX - 254, INT64_MAX};
    snprintf(i.layout, sizeof i.layout, "columns");
    i.packed_bytes = most;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), 0);
    for (size_t k = 0; k < sizeof absurd / sizeof *absurd; k++) {
        i.packed_bytes = absurd[k];
        assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
        assert_non_null(strstr(e.msg, "MiB of repacked weights a layer"));
    }
    i.packed_bytes = -1;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    b.model = NULL; /* as where ranks are probed, whose sums have no weights */
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    i.packed_bytes = 1;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
    i.packed_bytes = 0;
    assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), 0);
}

/* Where there are no clusters, that is said before anything is launched. */
static void clusters_are_refused_where_the_device_has_none(void **state)
{
    (void)state;
    struct backend b = rig();
    struct err e;
    struct cuda_kernel_info i = fair();
    const int32_t fits[] = {0, 1, 2, 4}, odd[] = {-1, 8, 32};
    for (int major = 8; major <= 10; major += 2) {
        b.device.major = major;
        for (int k = 0; k < 4; k++) {
            i.launch[0].cluster = fits[k];
            assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e),
                             fits[k] > 1 && major < 9 ? -1 : 0);
        }
        for (int k = 0; k < 3; k++) { /* 132 blocks are no whole number of clusters of 8 */
            i.launch[0].cluster = odd[k];
            assert_int_equal(check_info(&b, &i, REGION_MLP_IN, &e), -1);
        }
    }
}

/* What a kernel for wide steps says is held against the region and the device, and such a kernel
 * runs in no other steps. */
static void kernels_for_wide_steps_are_taken_where_they_can_run(void **state)
{
    (void)state;
    const struct model model = {.shape = {.hidden = 64}};
    struct backend b = rig();
    struct err e;
    struct loaded l = {.info = fair()}, narrow = {.info = fair()}, lt = {.lt = (struct lt *)&l};
    struct kernel eager = {.m_max = 4096}, wide = {.backend = &l}, other = {.backend = &narrow},
                  library = {.backend = &lt};
    b.model = &model;
    b.device.major = 9;
    b.tensor_map = &b;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), 0);
    l.info.box_rows = 128;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), -1); /* of 4 tokens: x is float there */
    assert_int_equal(wide_check(&b, &l, REGION_MLP_OUT, &e), 0); /* what it reads may be bf16 */
    assert_true(loaded_takes(&wide, false) && !loaded_takes(&wide, true));
    l.info.m_max = 256;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), -1);
    assert_non_null(strstr(e.msg, "too few"));
    assert_int_equal(wide_check(&b, &l, REGION_MLP_OUT, &e), 0);
    l.info.work_bytes = 256 * 64 * 2;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), 0);
    assert_int_equal(wide_check(&b, &l, REGION_HEAD, &e), -1);
    l.info.work_cols = 64; /* an input of its own making: any region's must have room */
    assert_int_equal(wide_check(&b, &l, REGION_MLP_OUT, &e), 0);
    l.info.work_cols = 128;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_OUT, &e), -1);
    assert_non_null(strstr(e.msg, "too few"));
    l.info.work_cols = 0;
    const int32_t odd[] = {-8, 4, 100, 264};
    for (int k = 0; k < 4; k++) {
        l.info.box_rows = odd[k];
        assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), -1);
    }
    l.info.box_rows = 128;
    b.tensor_map = NULL;
    assert_int_equal(wide_check(&b, &l, REGION_MLP_IN, &e), -1);
    for (int step = 0; step < 2; step++) {
        assert_true(loaded_takes(&eager, step) && loaded_takes(&library, step));
        assert_int_equal(loaded_takes(&wide, step), step);
        assert_int_equal(loaded_takes(&other, step), !step);
    }
}

/* A bench runs a region on one layer after the other; the head has one. */
static void a_layer_has_its_own_repacked_weights_and_the_head_one(void **state)
{
    (void)state;
    static char arena[4096];
    struct backend b = {.packs = {.base = arena, .bytes = sizeof arena}};
    struct pack pack = {.at = 1024, .each = 256};
    struct loaded l = {.pack = &pack};
    assert_ptr_equal(packed_of(&b, &l, REGION_MLP_IN, 0), arena + 1024);
    assert_ptr_equal(packed_of(&b, &l, REGION_MLP_IN, 3), arena + 1024 + 3 * 256);
    assert_ptr_equal(packed_of(&b, &l, REGION_HEAD, 0), arena + 1024);
    assert_ptr_equal(packed_of(&b, &l, REGION_HEAD, 3), arena + 1024);
    l.pack = NULL;
    assert_null(packed_of(&b, &l, REGION_MLP_IN, 1));
}

static struct plan_node *planned(struct plan *p, enum region r, int32_t layer)
{
    return &p->node[plan_at(p, r, layer)];
}

/* Bricks with bf16 beside them: a kernel gets what steps as wide as its own read, and brings into
 * L2 what the next one of that step does. The head goes by rows, not by tokens. */
static void a_kernel_reads_the_form_that_its_steps_read(void **state)
{
    (void)state;
    static char own[4], copy[4];
    const struct model model = {.shape = {.layers = 1,
                                          .hidden = 256,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 64,
                                          .ffn = 512,
                                          .vocab = 512},
                                .head = {.rows = 512}};
    struct device_weight w[4];
    for (int i = 0; i < 4; i++)
        w[i] = (struct device_weight){&own[i], DTYPE_Q8_0, &copy[i]};
    struct device_layer layer = {.wqkv = w[0], .wo = w[1], .wgu = w[2], .wdown = w[3]};
    struct backend b = {.model = &model, .plan = plan_build(&model.shape)};
    struct kernel plain = {.region = REGION_ATTN};
    struct kernel_choice c = {.m = 1};
    struct step_block block = {0};
    struct walk k = {.b = &b, .choice = &c, .block = &block, .k_pages = own, .v_pages = own};
    const struct loaded plain_l = {0};
    union any_args a;
    for (int r = 0; r < REGION_COUNT; r++)
        c.kernel[r] = &plain;
    b.on.layer = &layer;
    b.on.head = (struct device_weight){own, DTYPE_Q8_0, copy};
    for (k.m = OWN_MOST; k.m <= 2 * OWN_MOST; k.m += OWN_MOST) {
        char *read = k.m > OWN_MOST ? copy : own;
        k.rows = k.m;
        fill_args(&k, &plain_l, REGION_ATTN_IN, 0, &a);
        assert_ptr_equal(a.attn_in.w, &read[0]);
        assert_ptr_equal(a.attn_in.next, &read[1]);
        fill_args(&k, &plain_l, REGION_MLP_IN, 0, &a);
        assert_ptr_equal(a.mlp_in.w, &read[2]);
        fill_args(&k, &plain_l, REGION_MLP_OUT, 0, &a);
        assert_ptr_equal(a.out.w, &read[3]);
        fill_args(&k, &plain_l, REGION_HEAD, 0, &a);
        assert_ptr_equal(a.head.w, read);
    }
    k.rows = 1;
    fill_args(&k, &plain_l, REGION_HEAD, 0, &a);
    assert_ptr_equal(a.head.w, own);
    assert_int_equal(matrix_of(&b, REGION_MLP_IN, 0, 1).bytes, 1024 * 256 / 32 * 34);
    assert_int_equal(matrix_of(&b, REGION_MLP_IN, 0, 17).bytes, 1024 * 256 * 2);
    assert_ptr_equal(matrix_of(&b, REGION_MLP_IN, 0, 1).copy, &copy[2]); /* for eager */
    assert_null(matrix_of(&b, REGION_MLP_IN, 0, 17).copy);
    plan_free(b.plan);
}

/* bf16 beside floats where the region after reads that, bf16 alone where nobody looks at floats;
 * and neither from a kernel that does not know of it. */
static void a_kernel_leaves_what_the_next_one_reads(void **state)
{
    (void)state;
    static float q[1], at[1], h[1], other[1];
    static char a16[1], h16[1];
    const struct model model = {.shape = {.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 64}};
    struct device_layer layer = {0};
    struct backend b = {.model = &model, .plan = plan_build(&model.shape), .a16 = a16, .h16 = h16};
    struct kernel plain = {.region = REGION_ATTN};
    struct kernel_choice c = {.m = 1};
    struct step_block block = {0};
    struct walk w = {.b = &b, .choice = &c, .block = &block, .m = 1, .q = q, .a = at, .h = h};
    struct loaded knows = {.info = {.leaves16 = 1}}, not = {.info = {.leaves16 = 0}};
    w.k_pages = w.v_pages = other;
    b.on.layer = &layer;
    for (int r = 0; r < REGION_COUNT; r++)
        c.kernel[r] = &plain;
    for (int i = 0; i < 8; i++) {
        union any_args a, m;
        const struct loaded *l = i & 4 ? &knows : &not ;
        bool asked = i == 5 || i == 7, floats = i != 7;
        w.wants16 = i & 1;
        w.only16 = i & 2;
        fill_args(&w, l, REGION_ATTN, 0, &a);
        fill_args(&w, l, REGION_MLP_IN, 0, &m);
        assert_ptr_equal(a.attn.a16, asked ? a16 : NULL);
        assert_ptr_equal(a.attn.a, floats ? at : NULL);
        assert_ptr_equal(m.mlp_in.wide.out16, asked ? h16 : NULL);
        assert_ptr_equal(m.mlp_in.h, floats ? h : NULL);
    }
    w.out16 = other; /* a probe's */
    w.only16 = false;
    union any_args a;
    fill_args(&w, &knows, REGION_ATTN, 0, &a);
    assert_ptr_equal(a.attn.a16, other);
    assert_ptr_equal(a.attn.a, at);
    plan_free(b.plan);
}

/* What a kernel brings into L2 is what the plan lets follow it, in its reader's own order. */
static void what_is_fetched_ahead_is_what_the_plan_reads_next(void **state)
{
    (void)state;
    static char arena[4096], matrix[4][2], head[2];
    const struct model model = {.shape = {.layers = 2, .hidden = 64, .ffn = 128, .vocab = 100}};
    struct device_layer layer[2] = {
        {.wqkv = {(void *)matrix[0], DTYPE_BF16}, .wo = {(void *)matrix[1], DTYPE_BF16}},
        {.wqkv = {(void *)matrix[2], DTYPE_BF16}, .wo = {(void *)matrix[3], DTYPE_BF16}}};
    struct backend b = {.model = &model, .plan = plan_build(&model.shape)};
    struct pack pack = {.at = 1024, .each = 256};
    struct loaded packs = {.pack = &pack};
    struct kernel plain = {.region = REGION_MLP_IN}, packed = {.backend = &packs};
    struct kernel_choice c = {.m = 1};
    struct walk w = {.b = &b, .choice = &c};
    b.on.layer = layer;
    b.on.head = (struct device_weight){(void *)head, DTYPE_BF16};
    b.packs.base = arena;
    for (int r = 0; r < REGION_COUNT; r++)
        c.kernel[r] = &plain;
    c.kernel[REGION_MLP_IN] = &packed;
    assert_ptr_equal(ahead_of(&w, REGION_ATTN_IN, 1).data, matrix[3]);
    assert_ptr_equal(ahead_of(&w, REGION_ATTN, 1).data, arena + 1024 + 256);
    assert_int_equal(ahead_of(&w, REGION_ATTN, 1).bytes, 256);
    assert_ptr_equal(ahead_of(&w, REGION_MLP_OUT, 0).data, matrix[2]);
    assert_ptr_equal(ahead_of(&w, REGION_MLP_OUT, 1).data, head);
    assert_null(ahead_of(&w, REGION_HEAD, 0).data);
    assert_null(ahead_of(&w, REGION_MLP_IN, 2).data); /* a layer of drawn weights */
    struct plan_node *last = planned(b.plan, REGION_MLP_OUT, 1);
    struct plan_node *first = planned(b.plan, REGION_ATTN_IN, 0);
    *last = (struct plan_node){REGION_ATTN_IN, 0};
    *first = (struct plan_node){REGION_MLP_OUT, 1};
    assert_ptr_equal(ahead_of(&w, REGION_MLP_OUT, 1).data, matrix[1]);
    assert_ptr_equal(ahead_of(&w, REGION_ATTN_IN, 0).data, head);
    plan_free(b.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absurd_claims_are_refused),
        cmocka_unit_test(repacked_weights_have_a_bound),
        cmocka_unit_test(clusters_are_refused_where_the_device_has_none),
        cmocka_unit_test(what_is_fetched_ahead_is_what_the_plan_reads_next),
        cmocka_unit_test(a_kernel_reads_the_form_that_its_steps_read),
        cmocka_unit_test(a_kernel_leaves_what_the_next_one_reads),
        cmocka_unit_test(kernels_for_wide_steps_are_taken_where_they_can_run),
        cmocka_unit_test(a_layer_has_its_own_repacked_weights_and_the_head_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
