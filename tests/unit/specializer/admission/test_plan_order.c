/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan_order.c - who runs a step on the CPU runs the plan, and no order of its own.
 *
 * A plan is planted that is the usual one from its end to its beginning, and every region runs a
 * kernel that notes where it was. What comes of such a step is nonsense; only the order counts.
 * Built with plan_build() and eager_cpu_of() replaced (tests/meson.build).
 */
#include "tests/unit/engine/cpu/backend_world.h"

#include "specializer/admission/forward.h"

struct plan *__real_plan_build(const struct model_shape *shape);
struct plan *__wrap_plan_build(const struct model_shape *shape);
const struct cpu_kernel *__real_eager_cpu_of(enum region r, bool kv_bf16);
const struct cpu_kernel *__wrap_eager_cpu_of(enum region r, bool kv_bf16);

static bool planted;

struct plan *__wrap_plan_build(const struct model_shape *shape)
{
    struct plan *p = __real_plan_build(shape);
    for (int32_t i = 0; planted && i < p->nodes / 2; i++) {
        struct plan_node other = p->node[i];
        p->node[i] = p->node[p->nodes - 1 - i];
        p->node[p->nodes - 1 - i] = other;
    }
    return p;
}

/* ---- kernels that note where they ran ------------------------------------------------------- */

enum { MOST = 64 };
static struct plan_node ran[MOST];
static int32_t runs;
static const void *pages_of[MOST]; /* keys that attn_in was given, by layer */

static int32_t layer_of(enum region r, const union region_args *a)
{
    for (int32_t l = 0; l < model->shape.layers; l++) {
        const struct layer *at = &model->layer[l];
        if ((r == REGION_ATTN_IN && a->attn_in.wq.data == at->wq.data) ||
            (r == REGION_ATTN && a->attn.k_pages == pages_of[l]) ||
            (r == REGION_ATTN_OUT && a->out.w.data == at->wo.data) ||
            (r == REGION_MLP_IN && a->mlp_in.gate.data == at->gate.data) ||
            (r == REGION_MLP_OUT && a->out.w.data == at->down.data) ||
            (r == REGION_MLP && a->mlp.down.data == at->down.data))
            return l;
    }
    return 0;
}

static void note(enum region r, const void *args, const struct team *team)
{
    int32_t layer = layer_of(r, args);
    if (team->rank == 0 && r == REGION_ATTN_IN)
        pages_of[layer] = ((const struct attn_in_args *)args)->k_pages;
    if (team->rank == 0 && runs < MOST)
        ran[runs++] = (struct plan_node){r, layer};
    __real_eager_cpu_of(r, false)->run(args, team);
}

#define NOTES(r)                                                   \
    static void run_##r(const void *args, const struct team *team) \
    {                                                              \
        note(r, args, team);                                       \
    }
NOTES(REGION_EMBED)
NOTES(REGION_ATTN_IN)
NOTES(REGION_ATTN)
NOTES(REGION_ATTN_OUT)
NOTES(REGION_MLP_IN)
NOTES(REGION_MLP_OUT)
NOTES(REGION_HEAD)
NOTES(REGION_MLP)

const struct cpu_kernel *__wrap_eager_cpu_of(enum region r, bool kv_bf16)
{
    static void (*const run[])(const void *, const struct team *) = {
        run_REGION_EMBED,  run_REGION_ATTN_IN, run_REGION_ATTN, run_REGION_ATTN_OUT,
        run_REGION_MLP_IN, run_REGION_MLP_OUT, run_REGION_HEAD, run_REGION_MLP};
    static struct cpu_kernel noting[REGION_LOCAL];
    noting[r] = *__real_eager_cpu_of(r, kv_bf16);
    noting[r].run = run[r];
    return &noting[r];
}

/* ---- who walks ------------------------------------------------------------------------------ */

static void live_step(void)
{
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 5, {5, 2, 9}}, 1);
}

static struct forward *checked; /* open while its walks are compared: its pages tell layers apart */

static void whole_model_check(void)
{
    static float logits[5 * VOCAB];
    if (!checked)
        checked = forward_open(model, 1, 5);
    forward_step(checked, text_a, 0, 1, 0, 5, logits);
}

static void assert_runs_the_plan(void (*walk)(void))
{
    struct plan *p = plan_build(&model->shape);
    runs = 0;
    walk(); /* tells which pages are whose */
    runs = 0;
    walk();
    forward_close(checked);
    checked = NULL;
    assert_int_equal(runs, p->nodes);
    for (int32_t i = 0; i < runs; i++) {
        assert_int_equal(ran[i].region, p->node[i].region);
        assert_int_equal(ran[i].layer, p->node[i].layer);
    }
    plan_free(p);
}

static void steps_and_the_whole_model_check_run_the_usual_plan(void **state)
{
    (void)state;
    assert_runs_the_plan(live_step);
    assert_runs_the_plan(whole_model_check);
    assert_int_equal(ran[0].region, REGION_EMBED);
}

static void a_planted_order_is_what_a_step_runs(void **state)
{
    (void)state;
    assert_runs_the_plan(live_step);
    assert_int_equal(ran[0].region, REGION_HEAD);
}

static void a_planted_order_is_what_the_whole_model_check_runs(void **state)
{
    (void)state;
    assert_runs_the_plan(whole_model_check);
    assert_int_equal(ran[0].region, REGION_HEAD);
}

static void a_step_that_needs_no_logits_has_no_head(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    build(&b, &(struct feed){text_a, 0, 5, {5, 2, 9}}, 1);
    b.step.rows = 0;
    runs = 0;
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, &e), 0);
    assert_int_equal(runs, 5 * 3 + 1);
    for (int32_t i = 0; i < runs; i++)
        assert_int_not_equal(ran[i].region, REGION_HEAD);
}

/* ---- fused regions -------------------------------------------------------------------------- */

/* A kernel of mlp in the slot of the steps below: the eager one, but not known as such. */
static void with_a_fused_kernel(void (*walk)(void))
{
    struct kernel fused = *backend_cpu.fused(cpu, REGION_MLP);
    struct slot *s = dispatch_slot(table, REGION_MLP, 0, 5, 5);
    dispatch_publish(table, s, &fused);
    runs = 0;
    walk();
    dispatch_publish(table, s, s->eager);
}

static void a_fused_kernel_stands_for_its_parts(void **state)
{
    (void)state;
    static const enum region want[] = {REGION_ATTN_IN, REGION_ATTN, REGION_ATTN_OUT, REGION_MLP};
    with_a_fused_kernel(live_step);
    assert_int_equal(runs, 4 * 3 + 2);
    for (int32_t i = 1; i <= 4 * 3; i++) {
        assert_int_equal(ran[i].region, want[(i - 1) % 4]);
        assert_int_equal(ran[i].layer, (i - 1) / 4);
    }
}

static void a_fused_kernel_does_not_run_where_its_parts_are_no_neighbours(void **state)
{
    (void)state;
    with_a_fused_kernel(live_step);
    assert_int_equal(runs, 5 * 3 + 2);
    for (int32_t i = 0; i < runs; i++)
        assert_int_not_equal(ran[i].region, REGION_MLP);
}

static void the_whole_model_check_runs_a_fused_kernel(void **state)
{
    (void)state;
    static float split[5 * VOCAB], whole[5 * VOCAB];
    struct kernel_sizes sizes = {.packed = xcalloc(3, sizeof *sizes.packed)};
    struct forward *f = forward_open(model, 1, 5);
    forward_step(f, text_a, 0, 1, 0, 5, split);
    forward_room(f, eager_cpu_of(REGION_MLP, false), NULL, &sizes);
    forward_use(f, eager_cpu_of(REGION_MLP, false));
    runs = 0;
    forward_step(f, text_a, 0, 1, 0, 5, whole);
    assert_int_equal(runs, 4 * 3 + 2);
    assert_int_equal(ran[4].region, REGION_MLP);
    assert_memory_equal(split, whole, sizeof split);
    forward_close(f);
    sizes_free(&sizes);
}

/* What a region's kernel was called with, and what it made of it, whatever the order. */
static struct call {
    int32_t m, position, layer;
    float in, out;
} call[MOST * 4];
static int32_t calls;
static enum region watched;

static void note_call(const void *args, const struct team *team)
{
    const union region_args *a = args;
    const float *in = watched == REGION_ATTN_IN  ? a->attn_in.x
                      : watched == REGION_ATTN   ? a->attn.q
                      : watched == REGION_MLP_IN ? a->mlp_in.x
                      : watched == REGION_HEAD   ? a->head.x
                      : watched == REGION_MLP    ? a->mlp.x
                                                 : a->out.in;
    const float *out = watched == REGION_ATTN_IN  ? a->attn_in.q
                       : watched == REGION_ATTN   ? a->attn.a
                       : watched == REGION_MLP_IN ? a->mlp_in.h
                       : watched == REGION_HEAD   ? a->head.logits
                       : watched == REGION_MLP    ? a->mlp.y
                                                  : a->out.y;
    float before = in[1]; /* y may be x */
    __real_eager_cpu_of(watched, false)->run(args, team);
    if (calls < (int32_t)(sizeof call / sizeof *call))
        call[calls++] = (struct call){a->embed.m,
                                      watched == REGION_ATTN_IN ? a->attn_in.position[0]
                                      : watched == REGION_ATTN  ? a->attn.span[0].context
                                                                : 0,
                                      layer_of(watched, a), before, out[1]};
}

static int by_content(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct call));
}

/* Five tokens of two sequences, in steps of one, or in steps of five whose tokens the kernel gets
 * one by one: it must not be able to tell, and the logits are the same bits. */
static void calls_of_one_token_are_those_of_steps_of_one_token(void **state)
{
    (void)state;
    static const int32_t text[10] = {5, 2, 9, 11, 3, 7, 1, 4, 8, 6};
    static float logits[2][10 * VOCAB];
    static struct call seen[2][MOST * 4];
    for (watched = REGION_ATTN_IN; (int)watched < REGION_LOCAL; watched++) {
        struct cpu_kernel noting = *__real_eager_cpu_of(watched, false);
        noting.run = note_call;
        for (int wide = 0; wide < 2; wide++) {
            struct kernel_sizes sizes = {.packed = xcalloc(3, sizeof *sizes.packed)};
            struct forward *f = forward_open(model, 2, 5);
            forward_room(f, &noting, NULL, &sizes);
            forward_use(f, &noting);
            if (wide)
                forward_by_rows(f);
            calls = runs = 0;
            for (int32_t s = 0; s < 2; s++)
                for (int32_t at = 0; at < 5; at += wide ? 5 : 1)
                    forward_step(f, text, s, 1, at, wide ? 5 : 1, logits[wide]);
            assert_int_equal(calls, 10 * region_runs(watched, model->shape.layers));
            qsort(call, (size_t)calls, sizeof *call, by_content);
            memcpy(seen[wide], call, sizeof call);
            forward_close(f);
            sizes_free(&sizes);
        }
        assert_int_equal(seen[0][0].m, 1);
        assert_memory_equal(seen[0], seen[1], (size_t)calls * sizeof *call);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    }
}

/* Regions of layers with the same formats run once. */
static void stretching_is_no_whole_step(void **state)
{
    (void)state;
    struct forward *f = forward_open(model, 1, 5);
    runs = 0;
    forward_stretch(f, text_a, 1, 0, 5);
    assert_true(runs >= 7 && runs < 5 * 3 + 2);
    forward_close(f);
}

static int usual(void **state)
{
    (void)state;
    planted = false;
    return open_backend();
}

static int reversed(void **state)
{
    (void)state;
    planted = true;
    return open_backend();
}

static int tear_down(void **state)
{
    (void)state;
    close_backend();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_and_the_whole_model_check_run_the_usual_plan, usual,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_planted_order_is_what_a_step_runs, reversed, tear_down),
        cmocka_unit_test_setup_teardown(a_planted_order_is_what_the_whole_model_check_runs,
                                        reversed, tear_down),
        cmocka_unit_test_setup_teardown(a_step_that_needs_no_logits_has_no_head, usual, tear_down),
        cmocka_unit_test_setup_teardown(a_fused_kernel_stands_for_its_parts, usual, tear_down),
        cmocka_unit_test_setup_teardown(
            a_fused_kernel_does_not_run_where_its_parts_are_no_neighbours, reversed, tear_down),
        cmocka_unit_test_setup_teardown(the_whole_model_check_runs_a_fused_kernel, usual,
                                        tear_down),
        cmocka_unit_test_setup_teardown(calls_of_one_token_are_those_of_steps_of_one_token, usual,
                                        tear_down),
        cmocka_unit_test_setup_teardown(stretching_is_no_whole_step, usual, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
