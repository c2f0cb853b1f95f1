/* SPDX-License-Identifier: Apache-2.0 */
/* test_walk.c - eager steps, captured steps and whole-model checks run the plan, and no order of
 * their own.
 *
 * Regions are noted instead of launched, so no device is needed: what graph.c captures is
 * walk_step(), as a step without a graph is.
 */
#include "tests/unit/unit.h"

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/walk.h"

enum { MOST = 64 };
static struct noted {
    enum region region;
    int32_t layer;
    const float *x, *y, *logits;
    const void *k_pages;
} ran[MOST];
static int runs;

static int note(struct walk *w, enum region r, int32_t layer, struct err *e)
{
    (void)e;
    if (runs < MOST)
        ran[runs++] = (struct noted){r, layer, w->x, w->y, w->logits, w->k_pages};
    return 0;
}
#define eager_region note
#include "engine/cuda/walk.c"

#define run model_check_run
#define check model_check_check
#define choose model_check_choose
#include "engine/cuda/model_check.c"
#undef run
#undef check
#undef choose

static struct model model = {
    .shape = {.layers = 3, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 64, .vocab = 100}};
static float buffer[4];
static char pages[1];

static void rig(struct backend *b, struct kernel_choice *c, bool planted)
{
    *b = (struct backend){.model = &model, .plan = plan_build(&model.shape)};
    b->x[0] = &buffer[0];
    b->x[1] = &buffer[1];
    b->logits = &buffer[2];
    b->spare.y = &buffer[3];
    b->spare.k = b->spare.v = pages;
    *c = (struct kernel_choice){.m = 2, .rows = 2};
    for (int r = 0; r < REGION_NODES; r++)
        c->kernel[r] = &b->eager[r];
    for (int32_t i = 0; planted && i < b->plan->nodes / 2; i++) {
        struct plan_node other = b->plan->node[i];
        b->plan->node[i] = b->plan->node[b->plan->nodes - 1 - i];
        b->plan->node[b->plan->nodes - 1 - i] = other;
    }
    runs = 0;
}

static void assert_ran(const struct backend *b)
{
    assert_int_equal(runs, b->plan->nodes);
    for (int i = 0; i < runs; i++) {
        enum region r = b->plan->node[i].region;
        bool mlp = r == REGION_MLP_IN || r == REGION_MLP_OUT;
        assert_int_equal(ran[i].region, r);
        assert_int_equal(ran[i].layer, b->plan->node[i].layer);
        assert_ptr_equal(ran[i].x, b->x[mlp]);
        assert_ptr_equal(ran[i].y, b->x[!mlp && !region_info(r)->once]);
    }
}

static void a_step_runs_the_plan(void **state)
{
    (void)state;
    struct step_block block = {0};
    struct backend b;
    struct kernel_choice c;
    struct walk w;
    struct err e;
    for (int planted = 0; planted < 2; planted++) {
        rig(&b, &c, planted);
        walk_init(&w, &b, NULL, &block, &c);
        assert_int_equal(walk_step(&w, &e), 0);
        assert_ran(&b);
        assert_int_equal(ran[0].region, planted ? REGION_HEAD : REGION_EMBED);
        runs = 0;
        w.rows = 0;
        assert_int_equal(walk_step(&w, &e), 0);
        assert_int_equal(runs, b.plan->nodes - 1);
        plan_free(b.plan);
    }
}

static void a_whole_model_check_runs_the_plan_on_pages_and_logits_of_its_own(void **state)
{
    (void)state;
    struct step_block block = {0};
    struct backend b;
    struct kernel_choice c;
    struct walk w;
    struct err e;
    for (int planted = 0; planted < 2; planted++) {
        rig(&b, &c, planted);
        walk_init(&w, &b, NULL, &block, &c);
        assert_int_equal(walk_model(&w, &e), 0);
        assert_ran(&b);
        for (int i = 0; i < runs; i++) {
            assert_ptr_equal(ran[i].k_pages, pages + ran[i].layer * layer_bytes(&b, 2));
            assert_ptr_equal(ran[i].logits, b.spare.y);
        }
        plan_free(b.plan);
    }
}

/* What templates of attention read and write is there where they, or a capture hook, will look for
 * it. */
static void a_wide_step_of_decodes_has_floats_for_a_template_of_attention(void **state)
{
    struct loaded code = {.number = 1};
    struct kernel k = {.region = REGION_ATTN, .backend = &code};
    struct backend b;
    struct kernel_choice c;
    struct walk w;
    (void)state;
    rig(&b, &c, false);
    b.q = &buffer[0];
    b.a = &buffer[1];
    c.m = c.rows = 256;
    c.decode = true;
    for (int i = 0; i < 16; i++) {
        bool template = i & 1, look = i & 2, decode = !(i & 4), narrow_enough = !(i & 8);
        c.kernel[REGION_ATTN] = template ? &k : &b.eager[REGION_ATTN];
        c.m = narrow_enough ? 256 : 576;
        walk_init(&w, &b, NULL, &b.wide, &c);
        w.decode = decode;
        walk_floats(&w, look);
        bool there = (template || look) && decode && narrow_enough;
        assert_ptr_equal(w.q, there ? b.q : NULL);
        assert_ptr_equal(w.a, there ? b.a : NULL);
        assert_null(w.h);
    }
    plan_free(b.plan);
}

/* ---- several ranks --------------------------------------------------------------------------- */

static struct {
    const float *in, *residual, *out;
    int64_t n;
    int after; /* regions that had run */
} sums[MOST];
static int summed;

static int note_sum(struct collective *c, const float *in, const float *residual, float *out,
                    int64_t n, void *stream, struct err *e)
{
    (void)c;
    (void)stream;
    (void)e;
    sums[summed].in = in;
    sums[summed].residual = residual;
    sums[summed].out = out;
    sums[summed].n = n;
    sums[summed++].after = runs;
    return 0;
}

static void a_rank_sums_what_every_out_region_wrote(void **state)
{
    (void)state;
    static float partial[1];
    static const struct collective_ops noting = {.reduce = note_sum};
    struct collective c = {&noting, 0, 2};
    struct step_block block = {0};
    struct backend b;
    struct kernel_choice choice;
    struct walk w;
    struct err e;
    rig(&b, &choice, false);
    plan_free(b.plan);
    b.plan = plan_build_ranks(&model.shape, 2);
    b.options.collective = &c;
    b.partial = partial;
    walk_init(&w, &b, NULL, &block, &choice);
    w.rows = 0; /* no logits, so nothing is joined */
    assert_int_equal(walk_step(&w, &e), 0);
    assert_int_equal(runs, 1 + 5 * 3);
    assert_int_equal(summed, 2 * 3);
    for (int i = 0; i < summed; i++) {
        const struct noted *before = &ran[sums[i].after - 1];
        assert_int_equal(before->region, i % 2 ? REGION_MLP_OUT : REGION_ATTN_OUT);
        assert_int_equal(before->layer, i / 2);
        assert_ptr_equal(before->y, partial);
        assert_ptr_equal(sums[i].in, partial);
        assert_ptr_equal(sums[i].residual, b.x[i % 2]);
        assert_ptr_equal(sums[i].out, b.x[!(i % 2)]);
        assert_int_equal(sums[i].n, 2 * 64);
    }
    plan_free(b.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wide_step_of_decodes_has_floats_for_a_template_of_attention),
        cmocka_unit_test(a_step_runs_the_plan),
        cmocka_unit_test(a_rank_sums_what_every_out_region_wrote),
        cmocka_unit_test(a_whole_model_check_runs_the_plan_on_pages_and_logits_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
