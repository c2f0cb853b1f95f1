/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a CPU backend whose keys and values are bf16: what hooks copy and compare, and what
 * benches run on, are pages of that type. */
#include "tests/unit/engine/cpu/backend_world.h"

#include "engine/cpu/backend_private.h"
#include "engine/quant.h"

static const struct feed both[] = {{text_a, 0, 17, {7, 0, 11}}, {text_b, 0, 5, {10, 12, 13}}};

static void alone_at_the_barrier(const struct team *team)
{
    (void)team;
}

static void pages_take_half_the_memory(void **state)
{
    (void)state;
    const struct model_shape *s = &model->shape;
    int64_t elements = (int64_t)PAGES * KV_PAGE * s->kv_heads * s->head_dim;
    assert_true(s->kv_bf16);
    assert_int_equal(cpu->kv.bytes, 2 * s->layers * elements * 2);
    assert_int_equal(backend_pages(cpu, 1, 0) - backend_pages(cpu, 0, 0), 2 * elements * 2);
    assert_int_equal(cpu->machine.kv_element, 2);
}

/* Eager and the oracle on captured pages, which are those that the step wrote. */
static void captured_attention_is_replayed(void **state)
{
    (void)state;
    struct built b;
    struct capture c = {0};
    struct hook t = {.kind = HOOK_CAPTURE,
                     .every = 1,
                     .left = 1,
                     .capture = &c,
                     .slot = dispatch_slot(table, REGION_ATTN, 0, 22, 20)};
    assert_int_equal(backend_cpu.hook(cpu, &t), 0);
    run_step(cpu, &b, both, 2);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.left, 0);
    const uint16_t *pages = c.k_pages, *live = (const void *)backend_pages(cpu, c.layer, 0);
    int64_t page = KV_PAGE * 2 * 32; /* of the first span: page 7 of the pool */
    assert_memory_equal(pages + c.page_table[0] * page, live + 7 * page, page * 2);
    struct kernel_case *k = case_captured(model, &c, true);
    struct team alone = {.size = 1, .barrier = alone_at_the_barrier};
    struct oracle_out ref;
    int32_t rows, cols;
    float *got;
    eager_cpu_of(REGION_ATTN, true)->run(case_args(k), &alone);
    oracle_run_kv(REGION_ATTN, true, case_args(k), &ref);
    assert_null(case_damage(k));
    assert_true(case_output(k, 0, &rows, &cols, &got));
    assert_int_equal(rows, 22);
    double top = 0;
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        assert_true(fabs((double)got[i] - ref.output[0].value[i]) < 1e-4);
        top = fmax(top, fabs(ref.output[0].value[i]));
    }
    assert_true(top > 1e-2);
    free(got);
    oracle_free(&ref);
    case_free(k);
    capture_free(&c);
}

static void an_observed_kernel_differs_in_no_bit(void **state)
{
    (void)state;
    for (int r = REGION_ATTN_IN; r <= REGION_ATTN; r++) {
        struct built b;
        struct hook t = {.kind = HOOK_COMPARE,
                         .every = 1,
                         .left = 4,
                         .slot = dispatch_slot(table, (enum region)r, 0, 16, 16),
                         .kernel = backend_cpu.eager(cpu, (enum region)r)};
        assert_int_equal(backend_cpu.hook(cpu, &t), 0);
        for (int i = 0; i < 5; i++)
            run_step(cpu, &b, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(t.comparisons, 4);
        assert_int_equal(t.different, 0);
        assert_int_equal(t.nonfinite + t.served_nonfinite, 0);
    }
}

static void write_other_keys(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    eager_cpu_of(REGION_ATTN_IN, true)->run(args, team);
    team->barrier(team);
    uint16_t *k = a->k_pages;
    int64_t at = (a->kv_at[0] / KV_PAGE * a->kv_heads * KV_PAGE + a->kv_at[0] % KV_PAGE);
    if (team->rank == 0)
        k[at * a->head_dim] = f32_to_bf16(bf16_to_f32(k[at * a->head_dim]) + 1);
}

static void a_wrong_key_is_seen_and_reaches_no_page(void **state)
{
    (void)state;
    struct built before, during;
    struct cpu_kernel c = *eager_cpu_of(REGION_ATTN_IN, true);
    c.run = write_other_keys;
    struct kernel wrong = {.id = "test", .region = REGION_ATTN_IN, .m_max = 64, .cpu = &c};
    run_step(cpu, &before, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    struct hook t = {.kind = HOOK_COMPARE,
                     .every = 1,
                     .left = 1,
                     .slot = dispatch_slot(table, REGION_ATTN_IN, 0, 16, 16),
                     .kernel = &wrong};
    backend_cpu.hook(cpu, &t);
    run_step(cpu, &during, &(struct feed){text_a, 0, 16, {2, 5, 8}}, 1);
    backend_cpu.hook(cpu, NULL);
    assert_int_equal(t.different, 1);
    assert_true(t.worst_max > 0.05);
    assert_memory_equal(&before.sample[0].out, &during.sample[0].out, sizeof(struct sampled));
}

static void attention_is_timed_on_copies_of_its_pages(void **state)
{
    (void)state;
    struct built b;
    struct capture c = {0};
    struct err e = {""};
    float a_ns[2], b_ns[2];
    struct slot *slot = dispatch_slot(table, REGION_ATTN, 0, 22, 20);
    struct hook t = {.kind = HOOK_CAPTURE, .every = 1, .left = 1, .capture = &c, .slot = slot};
    backend_cpu.hook(cpu, &t);
    run_step(cpu, &b, both, 2);
    backend_cpu.hook(cpu, NULL);
    const struct kernel *eager = backend_cpu.eager(cpu, REGION_ATTN);
    struct bench_job job = {
        .slot = slot, .a = eager, .b = eager, .inputs = &c, .want = 2, .a_ns = a_ns, .b_ns = b_ns};
    assert_int_equal(backend_cpu.bench_begin(cpu, &job, &e), 0);
    while (backend_cpu.bench(cpu, &job, 1000000000, &e) == 0)
        ;
    assert_int_equal(job.have, 2);
    backend_cpu.bench_end(cpu, &job);
    capture_free(&c);
}

static int open_all(void **state)
{
    (void)state;
    struct model_shape shape = tiny();
    model = model_random(&shape, DTYPE_F32, 3);
    model->shape.kv_bf16 = true;
    cpu = open_cpu(0, &table);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    dispatch_close(table);
    backend_cpu.close(cpu);
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_take_half_the_memory),
        cmocka_unit_test(captured_attention_is_replayed),
        cmocka_unit_test(an_observed_kernel_differs_in_no_bit),
        cmocka_unit_test(a_wrong_key_is_seen_and_reaches_no_page),
        cmocka_unit_test(attention_is_timed_on_copies_of_its_pages),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
