/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/step.c: which kernels a step gets, its attention as tiles, its checks. */
#include "tests/unit/unit.h"

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

/* What the runtime says when asked, instead of a device on which a graph is being captured. */
static int wait_says, stream_says;
#define cudaEventSynchronize(event) ((void)(event), (cudaError_t)wait_says)
#define cudaStreamSynchronize(stream) ((void)(stream), (cudaError_t)stream_says)
#define cudaDeviceSynchronize() cudaErrorStreamCaptureUnsupported
#include "engine/cuda/step.c"

static struct model model = {
    .shape = {.layers = 2, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .vocab = 100}};

static struct dispatch *table(struct backend *b)
{
    const struct kernel *eager[REGION_NODES];
    for (int r = 0; r < REGION_NODES; r++) {
        b->eager[r] = (struct kernel){.region = (enum region)r, .m_max = INT32_MAX};
        eager[r] = &b->eager[r];
    }
    return dispatch_open(eager, NULL);
}

static void a_kernel_is_chosen_only_where_it_fits(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct loaded l = {.info = {.context_max = 1000}};
    struct kernel k = {.region = REGION_ATTN, .m_max = 4, .backend = &l};
    struct step s = {.m = 3, .rows = 3, .spans = 3, .context = 900};
    struct kernel_choice c;
    b.dispatch = table(&b);
    for (int m = 1; m <= 100; m++)
        dispatch_publish(b.dispatch, dispatch_slot(b.dispatch, REGION_ATTN, 0, m, 900), &k);
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &k);
    assert_int_equal(c.m, 3);
    assert_int_equal(c.context, 1024);
    assert_ptr_equal(c.kernel[REGION_MLP_IN], &b.eager[REGION_MLP_IN]);
    s.context = 1010; /* the same bucket, beyond what the kernel takes */
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    s.context = 900;
    const struct span prompt[] = {{0, 2, 900, 0}, {2, 1, 900, 57}};
    s.spans = 2; /* a prompt in front: attention is eager's */
    s.span = prompt;
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    assert_false(c.decode);
    assert_int_equal(c.lead, 0);
    s.m = s.spans = 5; /* bucket 6: more than m_max */
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    s.m = s.spans = 3;
    struct slot *slot = dispatch_slot(b.dispatch, REGION_MLP_IN, 0, 3, 900);
    struct kernel trial = {.region = REGION_MLP_IN, .m_max = 64, .backend = &l};
    l.info.context_max = 0;
    choose(&b, &s, true, &(struct overrides){1, {{slot, &trial}}},
           &c); /* wide steps run eager kernels, but for attention */
    assert_ptr_equal(c.kernel[REGION_MLP_IN], &b.eager[REGION_MLP_IN]);
    assert_ptr_equal(c.kernel[REGION_ATTN], &k);
    k.m_max = 64;
    s.m = s.spans = s.rows = 100;
    choose(&b, &s, true, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    k.m_max = 128;
    choose(&b, &s, true, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &k);
    assert_true(c.decode && c.m == 128);
    s.m = s.spans = s.rows = 3;
    choose(&b, &s, false, &(struct overrides){1, {{slot, &trial}}}, &c);
    assert_ptr_equal(c.kernel[REGION_MLP_IN], &trial);
    dispatch_close(b.dispatch);
}

/* Layers 1 and 3 of four keep ffn_down in Q6_K: each class has its kernel in one step, runs and
 * time are counted in its slot, and a graph of other kernels in one class is another graph. */
static void each_format_class_has_its_kernel_in_a_step(void **state)
{
    (void)state;
    static struct layer layer[4];
    struct model mixed = model;
    struct backend b = {.model = &mixed};
    struct loaded l = {.number = 1};
    struct kernel k = {.region = REGION_MLP_OUT, .m_max = 4, .backend = &l};
    struct step s = {.m = 3, .rows = 3, .spans = 3, .context = 900};
    const struct kernel *eager[REGION_NODES];
    struct kernel_choice c, other;
    struct inflight f = {.rows = 3};
    double share[STEP_PLACES] = {0};
    mixed.shape.layers = 4;
    mixed.layer = layer;
    mixed.own_formats = true;
    for (int i = 0; i < 4; i++)
        layer[i].down =
            (struct weight){.rows = 64, .cols = 256, .type = i % 2 ? DTYPE_Q6_K : DTYPE_Q4_K};
    dispatch_close(table(&b)); /* for the eager kernels */
    for (int r = 0; r < REGION_NODES; r++)
        eager[r] = &b.eager[r];
    b.dispatch = dispatch_open(eager, formats_open(&mixed, MACHINE_CUDA));
    b.formats = dispatch_formats(b.dispatch);
    struct slot *odd = dispatch_find(b.dispatch, "mlp_out/m3/q6_k");
    int even_place = formats_place(b.formats, REGION_MLP_OUT, 0, 3),
        odd_place = formats_place(b.formats, REGION_MLP_OUT, 1, 3);
    assert_int_not_equal(even_place, odd_place);
    choose(&b, &s, false, NULL, &other);
    dispatch_publish(b.dispatch, odd, &k);
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[odd_place], &k);
    assert_ptr_equal(c.slot[odd_place], odd);
    assert_ptr_equal(c.kernel[even_place], &b.eager[REGION_MLP_OUT]);
    assert_null(c.kernel[REGION_NODES + REGION_MLP_IN]); /* its layers are alike */
    assert_int_not_equal(memcmp(c.kernel, other.kernel, sizeof c.kernel), 0);
    struct walk w = {.b = &b, .choice = &c, .m = 3};
    assert_ptr_equal(walk_kernel(&w, REGION_MLP_OUT, 3), &k);
    assert_ptr_equal(walk_kernel(&w, REGION_MLP_OUT, 2), &b.eager[REGION_MLP_OUT]);
    assert_false(walk_times(&w, REGION_MLP_OUT, 3));
    w.timed = &f; /* one layer of each place */
    for (int32_t i = 0, timed = 0; i < 4; i++)
        assert_int_equal(timed += walk_times(&w, REGION_MLP_OUT, i), i < 2 ? 0 : i - 1);
    share[odd_place] = 0.25;
    f.choice = c;
    count(&b, &f, &s, share, 100);
    assert_int_equal(atomic_load(&odd->counters.runs), 2);
    assert_int_equal(atomic_load(&odd->counters.ns), 25);
    assert_int_equal(atomic_load(&dispatch_find(b.dispatch, "mlp_out/m3/q4_k")->counters.runs), 2);
    assert_int_equal(atomic_load(&dispatch_find(b.dispatch, "mlp_in/m3")->counters.runs), 4);
    dispatch_close(b.dispatch);
}

/* Of several ranks; without slots of reduce its kernel is eager's, and nothing is counted. */
static void sums_of_ranks_have_slots_where_they_are_searched(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct loaded l = {.number = 1};
    struct kernel k = {.region = REGION_REDUCE, .m_max = 4, .backend = &l};
    struct step s = {.m = 3, .rows = 3, .spans = 3, .context = 900};
    const struct kernel *eager[REGION_NODES];
    struct kernel_choice c;
    struct inflight f = {.rows = 3};
    double share[STEP_PLACES] = {0};
    b.dispatch = table(&b);
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_REDUCE], &b.eager[REGION_REDUCE]);
    assert_null(c.slot[REGION_REDUCE]);
    assert_null(c.slot[REGION_MLP]);
    f.choice = c;
    count(&b, &f, &s, share, 100);
    dispatch_close(b.dispatch);
    for (int r = 0; r < REGION_NODES; r++)
        eager[r] = &b.eager[r];
    b.dispatch = dispatch_open_ranks(eager, NULL);
    struct slot *slot = dispatch_slot(b.dispatch, REGION_REDUCE, 0, 3, 0);
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_REDUCE], &b.eager[REGION_REDUCE]);
    assert_ptr_equal(c.slot[REGION_REDUCE], slot);
    dispatch_publish(b.dispatch, slot, &k);
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_REDUCE], &k);
    share[REGION_REDUCE] = 0.5;
    f.choice = c;
    count(&b, &f, &s, share, 100);
    assert_int_equal(atomic_load(&slot->counters.runs), 2 * 2); /* twice in each of two layers */
    assert_int_equal(atomic_load(&slot->counters.ns), 50);
    s.m = s.spans = s.rows = 4; /* another slot */
    choose(&b, &s, false, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_REDUCE], &b.eager[REGION_REDUCE]);
    dispatch_close(b.dispatch);
}

static void decodes_beside_a_prompt_have_their_own_slots_template(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct loaded l = {.info = {.context_max = 1000}};
    struct kernel k = {.region = REGION_ATTN, .m_max = 4, .backend = &l};
    const struct span span[] = {
        {0, 1, 700, 0}, {1, 1, 900, 44}, {2, 1, 40, 101}, {3, 200, 5000, 104}};
    struct step s = {.m = 203, .rows = 3, .spans = 4, .span = span, .context = 5000};
    struct kernel_choice c;
    b.dispatch = table(&b);
    struct slot *slot = dispatch_slot(b.dispatch, REGION_ATTN, 0, 3, 900);
    choose(&b, &s, true, NULL, &c); /* eager is in the slot */
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    assert_int_equal(c.lead, 0);
    dispatch_publish(b.dispatch, slot, &k);
    choose(&b, &s, true, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &k);
    assert_int_equal(c.lead, 3);
    choose_tiles(&b, &s, &c);
    assert_int_equal(c.singles, 0);
    assert_int_equal(c.tiles, 4);
    struct span long_one[] = {span[0], {1, 1, 1010, 44}, span[2], span[3]};
    s.span = long_one; /* a decode beyond what the kernel takes */
    choose(&b, &s, true, NULL, &c);
    assert_ptr_equal(c.kernel[REGION_ATTN], &b.eager[REGION_ATTN]);
    choose_tiles(&b, &s, &c);
    assert_int_equal(c.singles, 3);
    k.m_max = 2;
    s.span = span;
    choose(&b, &s, true, NULL, &c);
    assert_int_equal(c.lead, 0);
    dispatch_close(b.dispatch);
}

/* With room for what fill_attention() writes. */
static struct step_block attention_block(void)
{
    static char memory[1 << 16];
    return (struct step_block){.host = memory,
                               .device = memory,
                               .tile = (struct eager_tile *)(void *)memory,
                               .single = (int32_t *)(void *)(memory + (1 << 15))};
}

static void the_first_tokens_are_nobodys_tiles_where_a_template_takes_them(void **state)
{
    (void)state;
    struct step_block block = attention_block();
    const struct span span[] = {{0, 1, 50, 0}, {1, 1, 60, 4}, {2, 3, 3, 8}, {5, 1, 7, 9}};
    struct step s = {.m = 6, .spans = 4, .span = span};
    struct backend b = {.model = &model};
    struct walk w = {.b = &b, .lead = 2};
    fill_attention(&s, &block, &w);
    assert_int_equal(w.tiles, 1);
    assert_int_equal(block.tile[0].first, 2);
    assert_int_equal(w.singles, 1);
    assert_int_equal(block.single[0], 5);
}

static void runs_become_tiles_and_single_tokens_a_list(void **state)
{
    (void)state;
    struct step_block block = attention_block();
    const struct span span[] = {{0, 1, 50, 0}, {1, 130, 200, 4}, {131, 1, 7, 17}, {132, 2, 2, 18}};
    struct step s = {.m = 134, .spans = 4, .span = span};
    struct backend b = {.model = &model};
    struct walk w = {.b = &b};
    fill_attention(&s, &block, &w);
    assert_int_equal(w.singles, 2);
    assert_int_equal(block.single[0], 131);
    assert_int_equal(block.single[1], 0);
    assert_int_equal(w.tiles, 4);
    const struct eager_tile want[] = {
        {129, 2, 198, 4}, {65, 64, 134, 4}, {1, 64, 70, 4}, {132, 2, 0, 18}};
    assert_memory_equal(block.tile, want, sizeof want); /* those with most positions first */
}

static void tiles_of_hopper_have_more_rows(void **state)
{
    (void)state;
    struct step_block block = attention_block();
    const struct span span[] = {{0, 130, 130, 0}, {130, 200, 200, 9}};
    struct step s = {.m = 330, .spans = 2, .span = span};
    struct backend b = {.model = &model, .tensor_map = &b};
    struct walk w = {.b = &b};
    struct kernel_choice c = {0};
    b.primitive[PRIM_WGMMA_64] = (cudaKernel_t)(void *)&b; /* there is one */
    fill_attention(&s, &block, &w);
    const struct eager_tile want[] = {
        {258, 72, 128, 9}, {128, 2, 128, 0}, {0, 128, 0, 0}, {130, 128, 0, 9}};
    assert_int_equal(w.tiles, 4);
    assert_memory_equal(block.tile, want, sizeof want);
    choose_tiles(&b, &s, &c);
    assert_int_equal(c.tiles, w.tiles);
}

static void a_step_beyond_the_limits_is_refused_by_name(void **state)
{
    (void)state;
    struct backend b = {.model = &model, .positions = 64};
    struct step_block block = {.rows = 8, .spans = 8, .pages = 8};
    int32_t token = 1, position = 2, kv_at = 3;
    struct step s = {.m = 1,
                     .spans = 1,
                     .rows = 1,
                     .pages = 1,
                     .tokens = &token,
                     .position = &position,
                     .kv_at = &kv_at};
    struct err e;
    b.options = (struct backend_options){.max_tokens = 4, .max_rows = 4, .kv_pages = 2};
    assert_int_equal(check_step(&b, &s, &block, &e), 0);
    token = 100;
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
    assert_non_null(strstr(e.msg, "token 100"));
    token = 1;
    position = 64;
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
    assert_non_null(strstr(e.msg, "position 64"));
    position = 2;
    kv_at = 2 * KV_PAGE;
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
    assert_non_null(strstr(e.msg, "cache position 32"));
    kv_at = 3;
    s.pages = 9;
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
    s.pages = 1;
    s.m = 5;
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
}

static void a_token_may_be_a_row_of_the_step_under_way_and_of_no_other(void **state)
{
    (void)state;
    struct backend b = {.model = &model, .positions = 64};
    struct step_block block = {.rows = 8, .spans = 8, .pages = 8};
    int32_t token = STEP_TOKEN_OF_ROW(2), position = 2, kv_at = 3;
    struct step before = {.rows = 3};
    struct step s = {
        .m = 1, .spans = 1, .pages = 1, .tokens = &token, .position = &position, .kv_at = &kv_at};
    struct err e;
    b.options = (struct backend_options){.max_tokens = 4, .max_rows = 4, .kv_pages = 2};
    assert_int_equal(check_step(&b, &s, &block, &e), -1); /* nothing is under way */
    b.inflight[1] = (struct inflight){.step = &before, .rows = 3, .drawn_there = true};
    assert_int_equal(check_step(&b, &s, &block, &e), 0);
    token = STEP_TOKEN_OF_ROW(3);
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
    token = STEP_TOKEN_OF_ROW(0);
    b.inflight[1].drawn_there = false; /* a row was left to the CPU */
    assert_int_equal(check_step(&b, &s, &block, &e), -1);
}

static void a_step_that_fails_says_whether_the_device_is_lost(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct step s = {0};
    struct err e = {""};
    assert_int_equal(cuda_step_wait(&b, &s, &e), -1); /* not under way */
    assert_non_null(strstr(e.msg, "not under way"));
    wait_says = cudaErrorIllegalAddress;
    stream_says = cudaSuccess;
    b.inflight[0].step = &s;
    assert_int_equal(cuda_step_wait(&b, &s, &e), -1); /* it would still answer */
    assert_null(b.inflight[0].step);
    stream_says = cudaErrorIllegalAddress;
    b.inflight[1].step = &s;
    assert_int_equal(cuda_step_wait(&b, &s, &e), STEP_LOST);
    assert_non_null(strstr(e.msg, "answers no more"));
    assert_null(b.inflight[1].step);
}

/* A backend whose first cell has a graph of eager kernels and one with `other` beside them. */
static struct variant *two_graphs(struct backend *b, const struct kernel *other,
                                  struct kernel_choice choice[2])
{
    struct variant *v = b->cell[m_bucket_of(1)][context_bucket_of(256)].variant;
    pthread_mutex_init(&b->builder.lock, NULL);
    pthread_cond_init(&b->builder.wake, NULL);
    for (int i = 0; i < 2; i++) {
        choice[i] = (struct kernel_choice){.m = 1, .rows = 1, .context = 256, .decode = true};
        for (int r = 0; r < REGION_NODES; r++)
            choice[i].kernel[r] = &b->eager[r];
        if (i == 1)
            choice[i].kernel[other->region] = other;
        v[i].choice = choice[i];
        v[i].exec = (cudaGraphExec_t)(void *)&v[i]; /* nobody launches it */
        v[i].launches[REGION_ATTN] = i + 1;
    }
    return v;
}

static void a_graphs_time_is_split_as_a_step_of_its_own_kernels_was(void **state)
{
    static struct backend b = {.model = &model};
    static const double eager[STEP_PLACES] = {[REGION_MLP_IN] = 0.75, [REGION_HEAD] = 0.25},
                        other[STEP_PLACES] = {[REGION_MLP_IN] = 0.5, [REGION_HEAD] = 0.5};
    struct loaded l = {.number = 1};
    struct kernel fast = {.region = REGION_MLP_IN, .m_max = 4, .backend = &l};
    struct step s = {.m = 1, .rows = 1, .spans = 1, .context = 200};
    struct kernel_choice choice[2];
    struct inflight f[2] = {{0}};
    (void)state;
    struct variant *v = two_graphs(&b, &fast, choice);
    f[0].choice = choice[0], f[1].choice = choice[1];
    graph_timed(&b, &choice[1], other);
    assert_ptr_equal(graph_for(&b, &s, &f[0], false), &v[0]);
    assert_memory_equal(f[0].share, other, sizeof other); /* the cell knows no better */
    graph_timed(&b, &choice[0], eager);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            assert_ptr_equal(graph_for(&b, &s, &f[k], false), &v[k]);
            assert_memory_equal(f[k].share, k ? other : eager, sizeof other);
            assert_int_equal(f[k].launches[REGION_ATTN], k + 1);
        }
}

static void each_graph_has_its_own_steps_that_are_timed(void **state)
{
    static struct backend b = {.model = &model};
    struct loaded l[2] = {{.number = 1}, {.number = 2}};
    struct kernel fast = {.region = REGION_MLP_IN, .m_max = 4, .backend = &l[0]}, newer = fast;
    struct step s = {.m = 1, .rows = 1, .spans = 1, .context = 200};
    struct kernel_choice choice[2];
    struct inflight f = {0};
    (void)state;
    struct variant *v = two_graphs(&b, &fast, choice);
    newer.backend = &l[1];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2 * TIMED_EVERY; i++) {
            f.choice = choice[k];
            assert_non_null(graph_for(&b, &s, &f, true)); /* a canary's step never is */
            assert_int_equal(graph_for(&b, &s, &f, false) == NULL, i % TIMED_EVERY == TIMED_AT);
        }
    v[0].steps = v[1].steps = TIMED_AT;
    f.choice.kernel[REGION_MLP_IN] = &newer; /* its graph is not there yet, and fast's stands in */
    v[0].exec = NULL;
    assert_ptr_equal(graph_for(&b, &s, &f, false), &v[1]);
    assert_int_equal(v[1].steps, TIMED_AT);
    f.hooked = true;
    assert_null(graph_for(&b, &s, &f, false));
}

static void a_third_step_is_refused(void **state)
{
    (void)state;
    struct backend b = {.model = &model};
    struct step s = {0};
    struct err e = {""};
    b.inflight[0].step = b.inflight[1].step = &s;
    assert_int_equal(cuda_step_start(&b, &s, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "two steps"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_chosen_only_where_it_fits),
        cmocka_unit_test(each_format_class_has_its_kernel_in_a_step),
        cmocka_unit_test(sums_of_ranks_have_slots_where_they_are_searched),
        cmocka_unit_test(decodes_beside_a_prompt_have_their_own_slots_template),
        cmocka_unit_test(the_first_tokens_are_nobodys_tiles_where_a_template_takes_them),
        cmocka_unit_test(runs_become_tiles_and_single_tokens_a_list),
        cmocka_unit_test(tiles_of_hopper_have_more_rows),
        cmocka_unit_test(a_step_beyond_the_limits_is_refused_by_name),
        cmocka_unit_test(a_token_may_be_a_row_of_the_step_under_way_and_of_no_other),
        cmocka_unit_test(a_step_that_fails_says_whether_the_device_is_lost),
        cmocka_unit_test(a_graphs_time_is_split_as_a_step_of_its_own_kernels_was),
        cmocka_unit_test(each_graph_has_its_own_steps_that_are_timed),
        cmocka_unit_test(a_third_step_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
