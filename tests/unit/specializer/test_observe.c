/* SPDX-License-Identifier: Apache-2.0 */
/* Observation: shares and means of recent busy time, and what a slot is still worth. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "specializer/observe.h"

static struct model *model;
static struct kernel eager[REGION_NODES];
static const struct machine machine = {
    .device = "test", .read_bandwidth = 1e9, .peak_flops = 1e12, .boundary_s = 0};

static int open_model(void **unused)
{
    (void)unused;
    struct model_shape shape = {.layers = 1,
                                .hidden = 64,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 32,
                                .ffn = 128,
                                .vocab = 100,
                                .max_context = 64,
                                .eps = 1e-5f,
                                .rope_base = 10000};
    model = model_random(&shape, DTYPE_F32, 1);
    return model ? 0 : -1;
}

static int close_model(void **unused)
{
    (void)unused;
    model_close(model);
    return 0;
}

struct world {
    struct dispatch *d;
    struct observe o;
};

static void open_world(struct world *w)
{
    const struct kernel *table[REGION_NODES];
    for (int r = 0; r < REGION_NODES; r++) {
        eager[r] = (struct kernel){.id = "eager", .region = (enum region)r};
        table[r] = &eager[r];
    }
    w->d = dispatch_open_fused(table, NULL);
    observe_open(&w->o, w->d, model, &machine);
}

static void close_world(struct world *w)
{
    observe_close(&w->o);
    dispatch_close(w->d);
}

/* `runs` runs of `ns` each with one token; returns the slot's index. */
static int run(struct world *w, enum region r, int m, uint64_t runs, uint64_t ns)
{
    struct slot *s = dispatch_slot(w->d, r, 0, m, 16);
    s->counters.runs += runs;
    s->counters.steps += runs;
    s->counters.tokens += runs * (uint64_t)m;
    s->counters.sequences += runs;
    s->counters.context += runs * 16;
    s->counters.ns += runs * ns;
    for (int i = 0; i < dispatch_slots(w->d); i++)
        if (dispatch_slot_at(w->d, i) == s)
            return i;
    return -1;
}

static void observe_shares_follow_time(void **unused)
{
    (void)unused;
    struct world w;
    open_world(&w);
    int a = run(&w, REGION_MLP_OUT, 1, 100, 30000), b = run(&w, REGION_HEAD, 1, 100, 10000);
    observe_update(&w.o);
    assert_float_equal(w.o.slot[a].share, 0.75, 1e-9);
    assert_float_equal(w.o.slot[b].share, 0.25, 1e-9);
    assert_float_equal(observe_run_s(&w.o, a), 30e-6, 1e-12);
    assert_float_equal(observe_m(&w.o, a), 1, 1e-9);
    assert_float_equal(observe_context(&w.o, b), 16, 1e-9);
    close_world(&w);
}

/* A fused region that no kernel serves yet is worth what its parts take, and takes nothing from
 * them. */
static void observe_sees_a_fused_region_as_its_parts(void **unused)
{
    (void)unused;
    struct world w;
    open_world(&w);
    int in = run(&w, REGION_MLP_IN, 1, 100, 20000), out = run(&w, REGION_MLP_OUT, 1, 100, 10000);
    run(&w, REGION_HEAD, 1, 100, 10000);
    run(&w, REGION_MLP_OUT, 8, 100, 10000); /* another M bucket: another fused region */
    int fused = run(&w, REGION_MLP, 1, 0, 0);
    assert_float_equal(observe_update(&w.o), 5e-3, 1e-12);
    assert_float_equal(w.o.slot[in].share, 0.4, 1e-9);
    assert_float_equal(w.o.slot[out].share, 0.2, 1e-9);
    assert_float_equal(w.o.slot[fused].share, 0.6, 1e-9);
    assert_float_equal(w.o.slot[fused].own, 0, 1e-9); /* what is shown, and adds up to 1 */
    assert_float_equal(w.o.slot[in].own, 0.4, 1e-9);
    assert_float_equal(observe_run_s(&w.o, fused), 30e-6, 1e-12);
    assert_float_equal(w.o.slot[fused].total_s, 0, 1e-12);
    run(&w, REGION_MLP, 1, 100, 25000); /* a kernel of its own serves */
    assert_float_equal(observe_update(&w.o), 2.5e-3, 1e-12);
    assert_float_equal(w.o.slot[fused].total_s, 2.5e-3, 1e-12);
    assert_float_equal(w.o.slot[fused].share, 5.5 / 7.5, 1e-3);
    assert_float_equal(w.o.slot[fused].own, 2.5 / 7.5, 1e-3);
    double all = 0;
    for (int i = 0; i < w.o.slots; i++)
        all += w.o.slot[i].own;
    assert_float_equal(all, 1, 1e-9);
    close_world(&w);
}

static void observe_forgets_with_busy_time_and_not_with_idle_time(void **unused)
{
    (void)unused;
    struct world w;
    open_world(&w);
    int a = run(&w, REGION_MLP_OUT, 1, 1000, 1000000); /* 1 s */
    observe_update(&w.o);
    double before = w.o.slot[a].seconds;
    for (int i = 0; i < 100; i++)
        observe_update(&w.o); /* a quiet night */
    assert_float_equal(w.o.slot[a].seconds, before, 1e-12);
    int b = 0;
    for (int i = 0; i < 40; i++) { /* 20 s of other work, twice */
        b = run(&w, REGION_HEAD, 1, 1000, 1000000);
        observe_update(&w.o);
    }
    assert_float_equal(w.o.slot[a].seconds, before / 4, 0.01 * before);
    assert_true(w.o.slot[b].share > 0.95);
    close_world(&w);
}

static void observe_credits_saved_time_to_specialized_kernels_only(void **unused)
{
    (void)unused;
    struct world w;
    open_world(&w);
    int a = run(&w, REGION_MLP_OUT, 1, 1000, 1000000);
    w.o.gain_eager[a] = 0.5;
    observe_update(&w.o);
    assert_float_equal(w.o.slot[a].saved_s, 0, 1e-12);
    struct kernel better = {.id = "k", .region = REGION_MLP_OUT, .origin = ORIGIN_TEMPLATE};
    dispatch_publish(w.d, dispatch_slot_at(w.d, a), &better);
    run(&w, REGION_MLP_OUT, 1, 1000, 1000000);
    observe_update(&w.o);
    assert_float_equal(w.o.slot[a].saved_s, 0.5, 1e-9); /* 1 s that would have been 1.5 */
    w.o.gain_eager[a] = -0.25; /* pinned by an operator, say: a counter never falls */
    run(&w, REGION_MLP_OUT, 1, 1000, 1000000);
    observe_update(&w.o);
    assert_float_equal(w.o.slot[a].saved_s, 0.5, 1e-9);
    close_world(&w);
}

static void observe_worth_falls_with_barren_candidates_and_near_the_roofline(void **unused)
{
    (void)unused;
    struct world w;
    open_world(&w);
    /* mlp_out at m = 1: 64 x 128 floats = 32 KiB, over 1 GB/s about 33 us. */
    int slow = run(&w, REGION_MLP_OUT, 1, 1000, 330000),
        good = run(&w, REGION_MLP_OUT, 2, 1000, 36000);
    observe_update(&w.o);
    double roofline = observe_roofline_s(&w.o, slow);
    assert_in_range((int)(roofline * 1e6), 32, 36);
    assert_in_range((int)observe_bytes(&w.o, slow), 32768, 36000);
    assert_true(observe_bytes(&w.o, 0) == 0);
    assert_true(observe_worth(&w.o, slow, 0, 0) > 10 * observe_worth(&w.o, good, 0, 0));
    assert_true(observe_worth(&w.o, slow, 10, 10) < observe_worth(&w.o, slow, 10, 0));
    assert_true(observe_worth(&w.o, slow, 10, 0) < observe_worth(&w.o, slow, 0, 0));
    assert_true(observe_worth(&w.o, slow, 300, 300) < OBSERVE_LEAST);
    assert_true(observe_worth(&w.o, 0, 0, 0) == 0); /* never used */
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(observe_shares_follow_time),
        cmocka_unit_test(observe_sees_a_fused_region_as_its_parts),
        cmocka_unit_test(observe_forgets_with_busy_time_and_not_with_idle_time),
        cmocka_unit_test(observe_credits_saved_time_to_specialized_kernels_only),
        cmocka_unit_test(observe_worth_falls_with_barren_candidates_and_near_the_roofline),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
