/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan.c - the cost table against counts done by hand for Qwen3-1.7B (DESIGN: published
 * shape 28 layers, hidden 2048, 16/8 heads of 128, ffn 6144, vocabulary 151936). */
#include "tests/unit/unit.h"

#include "engine/plan.h"
#include "kernels/bricks.h"

static struct weight bf16(int rows, int cols)
{
    return (struct weight){.rows = rows, .cols = cols, .type = DTYPE_BF16};
}

static struct layer layer0;
static struct model qwen(void)
{
    layer0 = (struct layer){.wq = bf16(2048, 2048),
                            .wk = bf16(1024, 2048),
                            .wv = bf16(1024, 2048),
                            .wo = bf16(2048, 2048),
                            .gate = bf16(6144, 2048),
                            .up = bf16(6144, 2048),
                            .down = bf16(2048, 6144)};
    return (struct model){.shape = {.layers = 28,
                                    .hidden = 2048,
                                    .heads = 16,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .ffn = 6144,
                                    .vocab = 151936},
                          .embed = bf16(151936, 2048),
                          .head = bf16(151936, 2048),
                          .layer = &layer0};
}

static void a_step_is_five_regions_a_layer_between_embed_and_head(void **state)
{
    (void)state;
    struct model m = qwen();
    struct plan *p = plan_build(&m.shape);
    assert_int_equal(p->nodes, 28 * 5 + 2);
    assert_int_equal(p->node[0].region, REGION_EMBED);
    assert_int_equal(p->node[1].region, REGION_ATTN_IN);
    assert_int_equal(p->node[5].region, REGION_MLP_OUT);
    assert_int_equal(p->node[6].layer, 1);
    assert_int_equal(p->node[141].region, REGION_HEAD);
    plan_free(p);
}

static void several_ranks_put_together_what_out_regions_and_the_head_left(void **state)
{
    (void)state;
    struct model m = qwen();
    struct plan *p = plan_build_ranks(&m.shape, 2);
    assert_int_equal(p->nodes, 28 * 7 + 3);
    for (int l = 0; l < 28; l++) {
        const struct plan_node *n = &p->node[1 + 7 * l];
        assert_int_equal(n[2].region, REGION_ATTN_OUT);
        assert_int_equal(n[3].region, REGION_REDUCE);
        assert_int_equal(n[3].of, REGION_ATTN_OUT);
        assert_int_equal(n[4].region, REGION_MLP_IN);
        assert_int_equal(n[5].region, REGION_MLP_OUT);
        assert_int_equal(n[6].region, REGION_REDUCE);
        assert_int_equal(n[6].of, REGION_MLP_OUT);
        assert_int_equal(n[6].layer, l);
        assert_int_equal(plan_node_turn(&n[3]), 0);
        assert_int_equal(plan_node_turn(&n[6]), 1);
        assert_int_equal(plan_node_turn(&n[5]), 0);
        assert_ptr_equal(&p->node[plan_at(p, REGION_MLP_OUT, l)], &n[5]);
        assert_ptr_equal(plan_ahead(p, REGION_ATTN_OUT, l), &n[4]); /* the next with a matrix */
    }
    assert_int_equal(p->node[28 * 7 + 2].region, REGION_GATHER);
    assert_int_equal(p->node[28 * 7 + 2].of, REGION_HEAD);
    assert_int_equal(region_runs(REGION_REDUCE, 28), 56);
    plan_free(p);
    p = plan_build_ranks(&m.shape, 1);
    assert_int_equal(p->nodes, 28 * 5 + 2); /* one rank has nothing to put together */
    plan_free(p);
}

static void every_region_has_a_row_and_its_own_name(void **state)
{
    (void)state;
    for (int r = 0; r < REGION_COUNT; r++) {
        assert_non_null(region_name((enum region)r));
        assert_int_equal(region_parse(region_name((enum region)r)), r);
        assert_int_equal(region_runs((enum region)r, 28),
                         r == REGION_EMBED || r == REGION_HEAD ? 1 : 28);
        assert_int_equal(region_m((enum region)r, 7, 3), r == REGION_HEAD ? 3 : 7);
    }
}

static void nodes_are_found_and_what_they_may_fetch_ahead(void **state)
{
    (void)state;
    struct model m = qwen();
    struct plan *p = plan_build(&m.shape);
    for (int32_t i = 0; i < p->nodes; i++)
        assert_int_equal(plan_at(p, p->node[i].region, p->node[i].layer), i);
    assert_int_equal(plan_at(p, REGION_HEAD, 13), p->nodes - 1);
    assert_int_equal(plan_at(p, REGION_ATTN, 28), -1);
    assert_int_equal(plan_ahead(p, REGION_EMBED, 0)->region, REGION_ATTN_IN);
    assert_int_equal(plan_ahead(p, REGION_ATTN_IN, 3)->region, REGION_ATTN_OUT);
    assert_int_equal(plan_ahead(p, REGION_ATTN, 3)->region, REGION_MLP_IN);
    assert_int_equal(plan_ahead(p, REGION_ATTN_OUT, 3)->region, REGION_MLP_IN);
    assert_int_equal(plan_ahead(p, REGION_MLP_IN, 3)->region, REGION_MLP_OUT);
    assert_int_equal(plan_ahead(p, REGION_MLP_OUT, 3)->region, REGION_ATTN_IN);
    assert_int_equal(plan_ahead(p, REGION_MLP_OUT, 3)->layer, 4);
    assert_int_equal(plan_ahead(p, REGION_MLP_OUT, 27)->region, REGION_HEAD);
    assert_null(plan_ahead(p, REGION_HEAD, 0));
    assert_null(plan_ahead(p, REGION_MLP_IN, 28));
    plan_free(p);
}

static int third_fails(void *ctx, const struct plan_node *n, struct err *e)
{
    int *visits = ctx;
    (void)n;
    (void)e;
    return ++*visits == 3 ? 7 : 0;
}

static void a_walk_ends_at_the_first_that_fails(void **state)
{
    (void)state;
    struct model m = qwen();
    struct plan *p = plan_build(&m.shape);
    int visits = 0;
    assert_int_equal(plan_walk(p, 1, 0, third_fails, &visits, NULL), 7);
    assert_int_equal(visits, 3);
    assert_int_equal(plan_walk(p, 0, 0, third_fails, &visits, NULL), 0);
    assert_int_equal(visits, 3 + p->nodes - 1); /* all but the head */
    plan_free(p);
}

static int note_node(void *ctx, const struct plan_node *n, struct err *e)
{
    struct plan *p = ctx;
    (void)e;
    p->node[p->nodes++] = *n;
    return 0;
}

static void a_fused_region_is_visited_in_place_of_its_parts(void **state)
{
    (void)state;
    struct plan_node node[150];
    struct plan seen = {.node = node};
    struct model m = qwen();
    struct plan *p = plan_build(&m.shape);
    assert_int_equal(plan_walk(p, 1, 1u << REGION_MLP, note_node, &seen, NULL), 0);
    assert_int_equal(seen.nodes, 28 * 4 + 2);
    assert_int_equal(node[3].region, REGION_ATTN_OUT);
    assert_int_equal(node[4].region, REGION_MLP);
    assert_int_equal(node[4].layer, 0);
    assert_int_equal(node[8].layer, 1);
    assert_int_equal(node[113].region, REGION_HEAD);
    seen.nodes = 0;
    assert_int_equal(plan_walk(p, 1, 0, note_node, &seen, NULL), 0);
    assert_int_equal(seen.nodes, p->nodes);
    assert_true(region_fused(REGION_MLP, 1) && !region_fused(REGION_MLP, 17));
    assert_false(region_fused(REGION_MLP_IN, 1));
    plan_free(p);
}

static void a_fused_region_moves_what_its_parts_do_but_for_what_lies_between(void **state)
{
    (void)state;
    struct model m = qwen();
    struct region_cost in = plan_cost(&m, REGION_MLP_IN, 0, 3, 3, 512, 3);
    struct region_cost out = plan_cost(&m, REGION_MLP_OUT, 0, 3, 3, 512, 3);
    struct region_cost both = plan_cost(&m, REGION_MLP, 0, 3, 3, 512, 3);
    assert_int_equal(both.weight_bytes, in.weight_bytes + out.weight_bytes);
    assert_int_equal(both.flops, in.flops + out.flops);
    assert_int_equal(both.activation_bytes, 3 * 2 * 2048 * 4);
}

static void weight_bytes_match_the_published_table(void **state)
{
    (void)state;
    struct model m = qwen();
    /* one layer: 16.8 / 8.4 / 50.3 / 25.2 MB; head 622.3 MB */
    assert_int_equal(plan_cost(&m, REGION_ATTN_IN, 0, 1, 1, 512, 1).weight_bytes, 16777216);
    assert_int_equal(plan_cost(&m, REGION_ATTN_OUT, 0, 1, 1, 512, 1).weight_bytes, 8388608);
    assert_int_equal(plan_cost(&m, REGION_MLP_IN, 0, 1, 1, 512, 1).weight_bytes, 50331648);
    assert_int_equal(plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1).weight_bytes, 25165824);
    assert_int_equal(plan_cost(&m, REGION_HEAD, 0, 1, 1, 512, 1).weight_bytes, 622329856);
}

static void weights_are_read_once_whatever_the_batch(void **state)
{
    (void)state;
    struct model m = qwen();
    struct region_cost one = plan_cost(&m, REGION_MLP_IN, 0, 1, 1, 512, 1);
    struct region_cost many = plan_cost(&m, REGION_MLP_IN, 0, 64, 64, 512, 64);
    assert_int_equal(one.weight_bytes, many.weight_bytes);
    assert_int_equal(one.flops * 64, many.flops);
    assert_int_equal(one.flops, 2 * 2 * 6144 * 2048);
}

static void causal_attention_counts_what_each_token_sees(void **state)
{
    (void)state;
    struct model m = qwen();
    /* tokens 1..5 of an empty cache see 1+2+3+4+5 = 15 positions: 4 FLOPs, 16 heads, 128 wide */
    struct region_cost c = plan_cost(&m, REGION_ATTN, 0, 5, 1, 5, 0);
    assert_int_equal(c.flops, 4 * 15 * 16 * 128);
    assert_int_equal(c.kv_bytes, 5 * 2 * 8 * 128 * 4);
    struct region_cost decode = plan_cost(&m, REGION_ATTN, 0, 8, 8, 512, 0);
    assert_int_equal(decode.flops, 4LL * 8 * 512 * 16 * 128);
}

static void the_roofline_is_the_slower_of_bytes_and_flops(void **state)
{
    (void)state;
    struct machine machine = {.read_bandwidth = 1e9, .peak_flops = 1e10};
    struct region_cost bytes = {.weight_bytes = 2000000000, .flops = 10};
    struct region_cost flops = {.weight_bytes = 8, .flops = 30000000000};
    assert_true(roofline_s(&machine, &bytes) == 2.0);
    assert_true(roofline_s(&machine, &flops) == 3.0);
}

/* A device that keeps weights and pages in bf16 moves as much for an F32 model as for a bf16 one,
 * and what the file has for a format that it keeps. */
static void bytes_are_those_of_the_machines_own_formats(void **state)
{
    (void)state;
    struct model m = qwen();
    const struct machine cpu = {.read_bandwidth = 1e9, .peak_flops = 1e15};
    const struct machine gpu = {
        .read_bandwidth = 1e9, .peak_flops = 1e15, .kv_element = 2, .weight_element = 2};
    struct region_cost bf16 = plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1);
    assert_int_equal(bf16.weights, 2048 * 6144);
    assert_true(machine_bytes(&gpu, &bf16) == machine_bytes(&cpu, &bf16));
    m.layer[0].down.type = DTYPE_F32;
    struct region_cost f32 = plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1);
    m.layer[0].down.type = DTYPE_BF16;
    assert_true(machine_weight_bytes(&cpu, &f32) == 2 * machine_weight_bytes(&cpu, &bf16));
    assert_true(machine_bytes(&gpu, &f32) == machine_bytes(&gpu, &bf16));
    assert_true(roofline_s(&gpu, &f32) == roofline_s(&gpu, &bf16));
    m.layer[0].down.type = DTYPE_Q4_K;
    assert_false(plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1).kept_element > 0);
    m.own_formats = true;
    struct region_cost q4 = plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1);
    assert_true(q4.kept_element > 0 && !(bf16.kept_element > 0) && !(f32.kept_element > 0));
    assert_true(machine_weight_bytes(&gpu, &q4) == 2048.0 * 6144 * 144 / 256);
    m.layer[0].down.type = DTYPE_F8; /* a scale for 32 columns in memory, for 128 on the device */
    struct region_cost f8 = plan_cost(&m, REGION_MLP_OUT, 0, 1, 1, 512, 1);
    assert_true(machine_weight_bytes(&cpu, &f8) == 2048.0 * 6144 * 36 / 32);
    assert_true(machine_weight_bytes(&gpu, &f8) == 2048.0 * 6144 * 132 / 128);
    struct region_cost attn = plan_cost(&m, REGION_ATTN, 0, 1, 1, 512, 1);
    assert_true(machine_bytes(&cpu, &attn) - machine_bytes(&gpu, &attn) ==
                (double)attn.kv_bytes / 2);
}

/* What shares a matrix on the device must be in one format. */
static void a_format_is_kept_where_the_whole_matrix_has_it(void **state)
{
    (void)state;
    struct model m = qwen();
    struct layer *l = &m.layer[0];
    m.head.type = DTYPE_Q8_0;
    assert_int_equal(device_type(&m, REGION_HEAD, 0, 1), DTYPE_BF16); /* unless it says so */
    m.own_formats = true;
    l->wq.type = l->wk.type = l->wv.type = DTYPE_Q4_K;
    assert_int_equal(device_type(&m, REGION_ATTN_IN, 0, 1), DTYPE_Q4_K);
    l->wv.type = DTYPE_Q6_K;
    assert_int_equal(device_type(&m, REGION_ATTN_IN, 0, 1), DTYPE_BF16);
    l->gate.type = l->up.type = DTYPE_F16;
    assert_int_equal(device_type(&m, REGION_MLP_IN, 0, 1), DTYPE_BF16);
    l->wq.type = l->wk.type = l->wv.type = l->gate.type = l->up.type = DTYPE_BF16;
    for (int t = DTYPE_Q8_0; t < DTYPE_COUNT; t++) {
        m.head.type = t;
        bool kept =
            (t >= DTYPE_Q8_0 && t <= DTYPE_Q5_K) || t == DTYPE_F8; /* all others become bf16 */
        assert_int_equal(device_type(&m, REGION_HEAD, 0, 1), kept ? t : DTYPE_BF16);
        m.fine_scales = true;
        kept &= t != DTYPE_F8;
        assert_int_equal(device_type(&m, REGION_HEAD, 0, 1), kept ? t : DTYPE_BF16);
        m.fine_scales = false;
    }
    m.head.type = DTYPE_BF16;
}

/* With bf16 beside them, steps of many tokens read that: the head by its rows, which are few in a
 * prompt. The table of the embedding is read by rows and needs no other. */
static void steps_of_many_tokens_read_the_bf16_beside_a_kept_format(void **state)
{
    (void)state;
    struct model m = qwen();
    const enum region both[] = {REGION_ATTN_OUT, REGION_MLP_OUT, REGION_HEAD};
    m.layer[0].wo.type = m.layer[0].down.type = m.head.type = m.embed.type = DTYPE_Q4_K;
    m.own_formats = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(device_type(&m, both[i], 0, 2048), DTYPE_Q4_K);
    m.bf16_copies = true;
    for (int i = 0; i < 3; i++) {
        assert_true(device_copied(&m, both[i], 0));
        assert_int_equal(device_type(&m, both[i], 0, OWN_MOST), DTYPE_Q4_K);
        assert_int_equal(device_type(&m, both[i], 0, OWN_MOST + 1), DTYPE_BF16);
    }
    assert_false(device_copied(&m, REGION_EMBED, 0));
    assert_int_equal(device_type(&m, REGION_EMBED, 0, 2048), DTYPE_Q4_K);
    assert_true(plan_cost(&m, REGION_MLP_OUT, 0, 16, 16, 512, 16).kept_element > 0);
    assert_false(plan_cost(&m, REGION_MLP_OUT, 0, 32, 32, 512, 32).kept_element > 0);
    assert_true(plan_cost(&m, REGION_HEAD, 0, 2048, 1, 2048, 1).kept_element > 0);
    m.own_formats = false;
    assert_false(device_copied(&m, REGION_MLP_OUT, 0));
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, 1), DTYPE_BF16);
    m.layer[0].wo.type = m.layer[0].down.type = m.head.type = m.embed.type = DTYPE_BF16;
}

/* Of wide steps F8 alone, where kernels may take it as it is. */
static void prompts_read_f8_again_where_kernels_may_multiply_it(void **state)
{
    (void)state;
    struct model m = qwen();
    m.layer[0].wo.type = DTYPE_Q8_0;
    m.layer[0].down.type = DTYPE_F8;
    m.own_formats = m.bf16_copies = true;
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, E4M3_OVER + 1), DTYPE_BF16);
    m.e4m3_products = true;
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, OWN_MOST), DTYPE_F8);
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, OWN_MOST + 1), DTYPE_BF16);
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, E4M3_OVER), DTYPE_BF16);
    assert_int_equal(device_type(&m, REGION_MLP_OUT, 0, E4M3_OVER + 1), DTYPE_F8);
    assert_int_equal(device_type(&m, REGION_ATTN_OUT, 0, E4M3_OVER + 1), DTYPE_BF16);
    m.layer[0].wo.type = m.layer[0].down.type = DTYPE_BF16;
}

static void zones_end_where_the_form_of_a_matrix_may_change(void **state)
{
    (void)state;
    for (int zone = 0; zone < ZONES; zone++) {
        int from = device_zone_from(zone);
        assert_int_equal(device_zone(from), zone);
        assert_int_equal(zone == 0 ? -1 : device_zone(from - 1), zone - 1);
    }
    assert_int_equal(device_zone(2048), ZONES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_five_regions_a_layer_between_embed_and_head),
        cmocka_unit_test(several_ranks_put_together_what_out_regions_and_the_head_left),
        cmocka_unit_test(every_region_has_a_row_and_its_own_name),
        cmocka_unit_test(nodes_are_found_and_what_they_may_fetch_ahead),
        cmocka_unit_test(a_walk_ends_at_the_first_that_fails),
        cmocka_unit_test(a_fused_region_is_visited_in_place_of_its_parts),
        cmocka_unit_test(a_fused_region_moves_what_its_parts_do_but_for_what_lies_between),
        cmocka_unit_test(weight_bytes_match_the_published_table),
        cmocka_unit_test(weights_are_read_once_whatever_the_batch),
        cmocka_unit_test(causal_attention_counts_what_each_token_sees),
        cmocka_unit_test(a_format_is_kept_where_the_whole_matrix_has_it),
        cmocka_unit_test(steps_of_many_tokens_read_the_bf16_beside_a_kept_format),
        cmocka_unit_test(prompts_read_f8_again_where_kernels_may_multiply_it),
        cmocka_unit_test(zones_end_where_the_form_of_a_matrix_may_change),
        cmocka_unit_test(bytes_are_those_of_the_machines_own_formats),
        cmocka_unit_test(the_roofline_is_the_slower_of_bytes_and_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
