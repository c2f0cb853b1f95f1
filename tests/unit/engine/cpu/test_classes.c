/* SPDX-License-Identifier: Apache-2.0 */
/* test_classes.c - slots of format classes on the CPU backend: a kernel runs, is observed, is timed
 * and has its weights packed in the layers of its class and in no others. */
#include "engine/cpu/backend_load.c"

#include "tests/unit/engine/cpu/backend_world.h"
#include "tests/unit/met_layers.h"

/* ffn_down and attn_v are Q8_0 in the last of three layers, else Q4_0. */
static int open_mixed(void **state)
{
    struct model_shape shape = tiny();
    (void)state;
    met_model = model = model_random_mixed(&shape, DTYPE_Q4_0, DTYPE_Q8_0, 3);
    cpu = open_cpu(1 << 20, &table);
    for (int i = 0; i < TOKENS; i++)
        text_a[i] = (i * 7 + 3) % VOCAB;
    return 0;
}

static struct slot *slot_named_so(const char *name)
{
    struct slot *s = dispatch_find(table, name);
    assert_non_null(s);
    return s;
}

static void a_kernel_runs_in_the_layers_of_its_class(void **state)
{
    (void)state;
    struct cpu_kernel own;
    struct kernel k = test_kernel(&own, note_layer, 1);
    struct slot *few = slot_named_so("mlp_out/m1/q8_0"), *many = slot_named_so("mlp_out/m1/q4_0");
    const struct feed feed = {text_a, 0, 1, {4, 1, 7}};
    struct built b;
    own.scratch_bytes = eager_cpu(REGION_MLP_OUT)->scratch_bytes;
    meets = 0;
    dispatch_publish(table, few, &k);
    run_step(cpu, &b, &feed, 1);
    assert_follows(&b.step.sample[0].out, text_a, 1);
    assert_int_equal(meets, 1);
    assert_int_equal(met[0], 2);
    dispatch_publish(table, few, few->eager);
    dispatch_publish(table, many, &k);
    run_step(cpu, &b, &feed, 1);
    assert_int_equal(meets, 3);
    assert_int_equal(met[1] * 10 + met[2], 1); /* 0 and 1 */
    dispatch_publish(table, many, many->eager);
    assert_int_equal(atomic_load(&few->counters.steps), 2);
    assert_int_equal(atomic_load(&few->counters.runs), 2);
    assert_int_equal(atomic_load(&many->counters.runs), 4);
    assert_int_equal(atomic_load(&slot_named_so("attn_in/m1/q4_0-q4_0-q8_0")->counters.runs), 2);
    assert_int_equal(atomic_load(&slot_named_so("mlp_in/m1")->counters.runs), 6);
}

static void a_hook_sees_the_layers_of_its_slot(void **state)
{
    (void)state;
    struct cpu_kernel own;
    struct kernel k = test_kernel(&own, note_layer, 1);
    const struct feed feed = {text_a, 0, 1, {4, 1, 7}};
    struct capture *c = xcalloc(1, sizeof *c);
    struct hook capture = {
        .kind = HOOK_CAPTURE, .slot = slot_named_so("mlp_out/m1/q8_0"), .left = 1, .capture = c};
    struct hook compare = {
        .kind = HOOK_COMPARE, .slot = slot_named_so("mlp_out/m1/q4_0"), .kernel = &k, .left = 4};
    struct built b;
    own.scratch_bytes = eager_cpu(REGION_MLP_OUT)->scratch_bytes;
    backend_cpu.hook(cpu, &capture);
    run_step(cpu, &b, &feed, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(atomic_load(&capture.left), 0);
    assert_int_equal(c->layer, 2);
    meets = 0;
    backend_cpu.hook(cpu, &compare);
    for (int i = 0; i < 4; i++)
        run_step(cpu, &b, &feed, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(compare.comparisons, 4);
    assert_int_equal(compare.different, 0);
    assert_int_equal(meets, 4);
    for (int i = 0; i < 4; i++) /* in turn */
        assert_int_equal(met[i], (met[0] + i) % 2);
    capture_free(c);
    free(c);
}

static void a_bench_takes_the_layers_of_its_slot_in_turn(void **state)
{
    (void)state;
    struct cpu_kernel own;
    struct kernel k = test_kernel(&own, note_layer, 1);
    float x[64] = {0}, in[96] = {0}, a_ns[4], b_ns[4];
    struct capture c = {
        .region = REGION_MLP_OUT, .m = 1, .spans = 1, .context = 1, .x = x, .in = in};
    struct bench_job job = {.slot = slot_named_so("mlp_out/m1/q8_0"),
                            .a = &k,
                            .b = &k,
                            .inputs = &c,
                            .want = 4,
                            .a_ns = a_ns,
                            .b_ns = b_ns};
    struct err e = {""};
    c.layer = slot_layer(job.slot);
    own.scratch_bytes = eager_cpu(REGION_MLP_OUT)->scratch_bytes;
    meets = 0;
    while (backend_cpu.bench(cpu, &job, 1000000000, &e) == 0)
        ;
    backend_cpu.bench_end(cpu, &job);
    assert_true(meets > 0);
    for (int32_t i = 0; i < meets; i++)
        assert_int_equal(met[i], 2);
}

/* Six layers, six formats: two of them have no slots, and are computed all the same. */
static void layers_without_slots_run_eager(void **state)
{
    (void)state;
    static const enum dtype of[6] = {DTYPE_Q4_0, DTYPE_F32,  DTYPE_BF16,
                                     DTYPE_F16,  DTYPE_Q8_0, DTYPE_Q4_1};
    struct model *first_model = model, *from[6];
    struct backend *first_cpu = cpu;
    struct dispatch *first_table = table;
    struct model_shape shape = tiny();
    const struct feed feed = {text_a, 0, 5, {4, 1, 7}};
    struct built b;
    shape.layers = 6;
    model = model_random(&shape, DTYPE_F32, 3);
    for (int i = 0; i < 6; i++) {
        from[i] = model_random(&shape, of[i], 3);
        model->layer[i].down = from[i]->layer[i].down;
    }
    cpu = open_cpu(1 << 20, &table);
    assert_int_equal(formats_beyond(dispatch_formats(table), REGION_MLP_OUT, 6), 2);
    assert_null(dispatch_slot(table, REGION_MLP_OUT, 0, 6, 5));
    run_step(cpu, &b, &feed, 1);
    assert_follows(&b.step.sample[0].out, text_a, 5);
    uint64_t runs = 0;
    for (int i = 0; i < dispatch_slots(table); i++)
        if (dispatch_slot_at(table, i)->region == REGION_MLP_OUT)
            runs += atomic_load(&dispatch_slot_at(table, i)->counters.runs);
    assert_int_equal(runs, 4);
    close_backend();
    for (int i = 0; i < 6; i++)
        model_close(from[i]);
    model = first_model;
    cpu = first_cpu;
    table = first_table;
}

/* ---- packing -------------------------------------------------------------------------------- */

static int64_t packed_bytes(const struct weight *w)
{
    return w->type == DTYPE_Q8_0 ? 128 : 192;
}

static void pack_rows(const struct weight *w, void *to, int32_t from, int32_t rows)
{
    (void)from;
    (void)rows;
    *(int32_t *)to = met[meets++] = layer_of(w);
}

/* Two kernels with a layout of the same name, as those of two classes may have. */
static void weights_are_packed_for_the_layers_of_a_class(void **state)
{
    (void)state;
    const struct cpu_kernel k = {.abi = WHET_CPU_ABI,
                                 .region = REGION_MLP_OUT,
                                 .m_max = 1,
                                 .layout = "rows",
                                 .pack = pack_rows,
                                 .packed_bytes = packed_bytes};
    const struct format_class *few = slot_named_so("mlp_out/m1/q8_0")->formats,
                              *many = slot_named_so("mlp_out/m1/q4_0")->formats;
    struct pack *of[3];
    struct err e = {""};
    int64_t before = cpu->packed_bytes;
    meets = 0;
    assert_int_equal(pack_open(cpu, &k, few, &of[0], &e), 0);
    assert_int_equal(cpu->packed_bytes - before, 128);
    assert_int_equal(meets, 1);
    assert_int_equal(*(const int32_t *)of[0]->data[3 * 2], 2);
    assert_null(of[0]->data[0]);
    assert_int_equal(pack_open(cpu, &k, many, &of[1], &e), 0);
    assert_int_equal(cpu->packed_bytes - before, 128 + 2 * 192);
    assert_ptr_not_equal(of[1], of[0]);
    assert_int_equal(*(const int32_t *)of[1]->data[3 * 1], 1);
    assert_int_equal(pack_open(cpu, &k, few, &of[2], &e), 0); /* shared */
    assert_ptr_equal(of[2], of[0]);
    assert_int_equal(meets, 3);
    for (int i = 0; i < 3; i++)
        pack_drop(cpu, of[i]);
    assert_int_equal(cpu->packed_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_runs_in_the_layers_of_its_class),
        cmocka_unit_test(a_hook_sees_the_layers_of_its_slot),
        cmocka_unit_test(a_bench_takes_the_layers_of_its_slot_in_turn),
        cmocka_unit_test(layers_without_slots_run_eager),
        cmocka_unit_test(weights_are_packed_for_the_layers_of_a_class),
    };
    return cmocka_run_group_tests(tests, open_mixed, backend_tear_down);
}
