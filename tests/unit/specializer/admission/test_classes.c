/* SPDX-License-Identifier: Apache-2.0 */
/* test_classes.c - what the specializer knows and proves of a slot whose layers are a format class,
 * one that layer 0 is not in: its facts, the cases of its proof, the whole model with its kernel.
 */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cpu/bind.h"
#include "engine/cpu/eager.h"
#include "engine/quant.h"
#include "specializer/admission/check_plan.h"
#include "specializer/admission/forward.h"
#include "specializer/admission/inputs.h"
#include "specializer/admission/probe_request.h"
#include "specializer/candidate/live.h"
#include "specializer/candidate/slot_list.h"
#include "specializer/candidate/template.h"
#include "tests/unit/met_layers.h"
#include "tests/unit/specializer/shapes.h"

/* Layers 2 and 3 of four have ffn_down and attn_v in Q8_0, all else is Q4_0. */
static struct model *model;
static struct dispatch *table;
static struct slot *few, *many;

static int open_model(void **state)
{
    static const struct model_shape shape = {SMALL_MODEL};
    static struct kernel eager[REGION_LOCAL];
    const struct kernel *k[REGION_LOCAL];
    (void)state;
    for (int r = 0; r < REGION_LOCAL; r++)
        k[r] = &eager[r];
    met_model = model = model_random_mixed(&shape, DTYPE_Q4_0, DTYPE_Q8_0, 1);
    table = dispatch_open_fused(k, formats_open(model, MACHINE_CPU));
    few = dispatch_find(table, "mlp_out/m4/q8_0");
    many = dispatch_find(table, "mlp_out/m4/q4_0");
    return few && many ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    dispatch_close(table);
    model_close(model);
    return 0;
}

static void facts_are_those_of_the_slots_layers(void **state)
{
    (void)state;
    struct facts f;
    facts_fill(&f, model, REGION_MLP_OUT, 4, NUMERICS_TOLERANCE);
    assert_int_equal(f.WTYPE, DTYPE_COUNT); /* of all layers there is no one format */
    facts_slot(&f, model, few, NUMERICS_TOLERANCE);
    assert_int_equal(f.WTYPE, DTYPE_Q8_0);
    assert_int_equal(f.M_MAX, 4);
    facts_slot(&f, model, many, NUMERICS_TOLERANCE);
    assert_int_equal(f.WTYPE, DTYPE_Q4_0);
    assert_int_equal(f.WTYPE_2, DTYPE_Q4_0);
    const struct slot *in = dispatch_find(table, "attn_in/m1/q4_0-q4_0-q8_0");
    facts_slot(&f, model, in, NUMERICS_TOLERANCE);
    assert_int_equal(f.WTYPE, DTYPE_Q4_0);
    assert_int_equal(f.WTYPE_3, DTYPE_Q8_0);
    facts_slot(&f, model, dispatch_find(table, "mlp_in/m1"), NUMERICS_TOLERANCE);
    assert_int_equal(f.WTYPE_2, DTYPE_Q4_0);
}

/* Whatever a case is made of, its weights have the formats that the kernel was compiled for. */
static void cases_are_of_the_slots_layers(void **state)
{
    (void)state;
    struct check_range range = {REGION_MLP_OUT, 3, 4, 0, few->formats};
    struct planned plan[PLAN_MAX];
    int seen = 0, n = check_plan(model, &range, NULL, 0, true, 0, plan);
    for (int i = 0; i < n; i++) {
        assert_true(class_has(few->formats, plan[i].shape.layer));
        seen |= 1 << plan[i].shape.layer;
    }
    assert_int_equal(seen, 1 << 2 | 1 << 3);
    range.formats = NULL;
    for (n = check_plan(model, &range, NULL, 0, true, 0, plan), seen = 0; n > 0; n--)
        seen |= 1 << plan[n - 1].shape.layer;
    assert_int_equal(seen, 1 << 0 | 1 << 2); /* in large steps */
    struct capture *c = capture_seeded(model, few, 4, 1);
    assert_int_equal(c->layer, 2);
    capture_free(c);
    free(c);
}

/* A step runs a slot of each class, and is one step. */
static void who_waits_for_a_class_counts_each_step_once(void **state)
{
    (void)state;
    struct stage_env env = {.dispatch = table};
    struct patience p;
    patience_begin(&p, &env, few, 100);
    for (int step = 0; step < 3; step++) {
        atomic_fetch_add(&dispatch_find(table, "mlp_out/m1/q8_0")->counters.steps, 1);
        atomic_fetch_add(&dispatch_find(table, "mlp_out/m1/q4_0")->counters.steps, 1);
    }
    assert_false(patience_over(&p));
    assert_int_equal(patience_passed(&p), 3);
}

static void note_packed(const struct weight *w, void *to, int32_t from, int32_t rows)
{
    (void)from;
    (void)rows;
    *(int32_t *)to = met[meets++] = layer_of(w);
}

static void the_whole_model_runs_eager_in_the_other_layers(void **state)
{
    (void)state;
    enum { TOKENS = 3 };
    static const int32_t text[TOKENS] = {5, 2, 9};
    static float eager[TOKENS * 320], own[TOKENS * 320];
    struct cpu_kernel k = *eager_cpu(REGION_MLP_OUT);
    struct kernel_sizes sizes = {.packed = xcalloc(4, sizeof *sizes.packed), .packed_total = 128};
    sizes.packed[2][0] = sizes.packed[3][0] = 64;
    k.run = note_layer;
    k.pack = note_packed;
    struct forward *f = forward_open(model, 1, TOKENS);
    forward_step(f, text, 0, 1, 0, TOKENS, eager);
    forward_room(f, &k, few->formats, &sizes);
    meets = 0;
    forward_use(f, &k);
    assert_int_equal(meets, 2);
    assert_int_equal(met[0] * 10 + met[1], 23);
    meets = 0;
    forward_step(f, text, 0, 1, 0, TOKENS, own);
    assert_int_equal(meets, 2);
    assert_int_equal(met[0] * 10 + met[1], 23);
    assert_memory_equal(eager, own, sizeof own);
    forward_by_rows(f);
    meets = 0;
    forward_step(f, text, 0, 1, 0, TOKENS, own);
    assert_int_equal(meets, 2 * TOKENS);
    forward_close(f);
    sizes_free(&sizes);
}

/* A request names a layer; the probe's process finds the class. */
static void a_request_says_for_which_layers_the_kernel_is(void **state)
{
    (void)state;
    struct err err = {""};
    char path[] = "/tmp/whet-classes-XXXXXX";
    struct probe_request q = {.shape = model->shape,
                              .model = (char *)"m.gguf",
                              .object = (char *)"o.so",
                              .name = (char *)"n",
                              .region = REGION_MLP_OUT,
                              .m_from = 1,
                              .m_to = 1,
                              .layer = slot_layer(few),
                              .drawn = DTYPE_Q8_0,
                              .threads = 1,
                              .ranks = 1},
                         back;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&back, path, &err), 0);
    assert_int_equal(back.layer, 2);
    assert_int_equal(back.drawn, DTYPE_Q8_0);
    struct format_class *c = class_of_layer(model, back.machine, back.region, back.layer, 1);
    assert_string_equal(c->name, few->formats->name);
    assert_int_equal(c->layers, few->formats->layers);
    free(c);
    probe_request_free(&back);
    unlink(path);
}

static void a_list_of_slots_may_name_formats_or_not(void **state)
{
    (void)state;
    struct err err = {""};
    assert_true(slot_list_has("mlp_out/m4", few) && slot_list_has("mlp_out/m4", many));
    assert_true(slot_list_has("mlp_out/m4/q8_0", few));
    assert_false(slot_list_has("mlp_out/m4/q8_0", many));
    assert_true(slot_list_has("mlp_out", many));
    assert_false(slot_list_has("mlp_out/m", few));
    assert_int_equal(slot_list_check("mlp_out/m4/q8_0, attn_in/m1/q4_k-q4_k-q6_k,head/m1", &err),
                     0);
    assert_int_equal(slot_list_check("mlp_out/m4/q9", &err), -1);
    assert_int_equal(slot_list_check("head/m1/q8_0", &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_are_those_of_the_slots_layers),
        cmocka_unit_test(cases_are_of_the_slots_layers),
        cmocka_unit_test(who_waits_for_a_class_counts_each_step_once),
        cmocka_unit_test(the_whole_model_runs_eager_in_the_other_layers),
        cmocka_unit_test(a_request_says_for_which_layers_the_kernel_is),
        cmocka_unit_test(a_list_of_slots_may_name_formats_or_not),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
