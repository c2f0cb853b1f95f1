/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/backend*: a step against the oracle's forward pass. What the specializer may
 * do beside it: test_backend_hook.c. */
#include <unistd.h>

#include "config/clock.h"
#include "engine/cpu/backend_private.h"
#include "tests/unit/engine/cpu/backend_world.h"

static void step_equals_the_oracles_forward_pass(void **state)
{
    (void)state;
    struct built b;
    for (int32_t n = 1; n <= 40; n += n < 3 ? 1 : 12) {
        run_step(cpu, &b, &(struct feed){text_a, 0, n, {5, 2, 9}}, 1);
        assert_follows(&b.sample[0].out, text_a, n);
    }
}

static void chunks_and_single_tokens_give_the_same_answer(void **state)
{
    (void)state;
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 19, {1, 4, 3}}, 1);
    run_step(cpu, &b, &(struct feed){text_a, 19, 30, {1, 4, 3}}, 1);
    for (int32_t n = 30; n < 36; n++) {
        run_step(cpu, &b, &(struct feed){text_a, n, n + 1, {1, 4, 3}}, 1);
        assert_follows(&b.sample[0].out, text_a, n + 1);
    }
}

static void sequences_in_one_step_do_not_mix(void **state)
{
    (void)state;
    struct built b;
    run_step(cpu, &b, &(struct feed){text_a, 0, 17, {7, 0, 11}}, 1);
    struct feed both[] = {{text_b, 0, 20, {10, 12, 13}}, {text_a, 17, 18, {7, 0, 11}}};
    run_step(cpu, &b, both, 2);
    assert_follows(&b.sample[0].out, text_b, 20);
    assert_follows(&b.sample[1].out, text_a, 18);
}

static void counters_tell_what_ran(void **state)
{
    (void)state;
    struct built b;
    struct slot *s = dispatch_slot(table, REGION_MLP_IN, 0, 11, 11);
    uint64_t steps = s->counters.steps, runs = s->counters.runs, tokens = s->counters.tokens;
    run_step(cpu, &b, &(struct feed){text_a, 0, 11, {1, 2, 3}}, 1);
    assert_int_equal(s->counters.steps - steps, 1);
    assert_int_equal(s->counters.runs - runs, 3);
    assert_int_equal(s->counters.tokens - tokens, 33);
    assert_true(s->counters.ns > 0);
}

static void step_refuses_what_it_was_not_opened_for(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    build(&b, &(struct feed){text_a, 0, 5, {1, 2, 3}}, 1);
    b.position[4] = 256;
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "position 256"));
    b.step.m = TOKENS + 1;
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "41 tokens"));
}

/* The flags of the mapping that holds the address, as the system shows them. */
static bool mapping_has(const void *at, const char *flag)
{
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "r");
    bool inside = false, has = false;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)at >= from && (uintptr_t)at < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            has = strstr(line, flag) != NULL;
    }
    if (f)
        fclose(f);
    return has;
}

static void keys_and_values_are_in_huge_pages_where_that_is_wanted(void **state)
{
    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0)
        skip(); /* a system that has none */
    for (int wanted = 0; wanted < 2; wanted++) {
        struct err e = {0};
        struct backend_options o = {
            .threads = 1, .kv_pages = 4096, .max_tokens = 16, .max_rows = 1, .huge_pages = wanted};
        struct backend *b = backend_cpu.open(model, &o, &e);
        assert_non_null(b);
        assert_int_equal(mapping_has(backend_pages(b, 0, 0), " hg"), wanted);
        backend_cpu.close(b);
    }
}

static void machine_constants_are_plausible(void **state)
{
    (void)state;
    const struct machine *m = backend_cpu.machine(cpu);
    assert_true(m->read_bandwidth > 1e8 && m->read_bandwidth < 1e13);
    assert_true(m->peak_flops > 1e8 && m->peak_flops < 1e15);
    assert_true(m->boundary_s > 0 && m->boundary_s < 1);
    assert_non_null(strstr(m->device, "2 threads"));
}

/* ---- overrides ------------------------------------------------------------------------------ */

static _Atomic int32_t calls, calls_too;

static void run_too(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_fetch_add(&calls_too, 1);
    eager_cpu(REGION_ATTN_OUT)->run(args, team);
}

static void run_counted(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_fetch_add(&calls, 1);
    eager_cpu(REGION_MLP_OUT)->run(args, team);
}

static void overrides_replace_their_slots_in_one_step(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct cpu_kernel c, c2;
    struct kernel k = test_kernel(&c, run_counted, 64), k2 = test_kernel(&c2, run_too, 64);
    struct slot *mine = dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4);
    struct slot *other = dispatch_slot(table, REGION_MLP_OUT, 0, 8, 8);
    c2.region = k2.region = REGION_ATTN_OUT;
    const struct overrides one = {1, {{mine, &k}}}, none = {1, {{other, &k}}},
                           two = {3,
                                  {{other, &k},
                                   {dispatch_slot(table, REGION_ATTN_OUT, 0, 4, 4), &k2},
                                   {mine, &k}}};
    build(&b, &(struct feed){text_a, 0, 4, {1, 2, 3}}, 1);
    calls = calls_too = 0;
    assert_int_equal(backend_cpu.step(cpu, &b.step, &one, &e), 0);
    assert_int_equal(calls, 3);
    assert_int_equal(backend_cpu.step(cpu, &b.step, &none, &e), 0);
    assert_int_equal(backend_cpu.step(cpu, &b.step, NULL, &e), 0);
    assert_int_equal(calls, 3);
    assert_int_equal(calls_too, 0);
    assert_int_equal(backend_cpu.step(cpu, &b.step, &two, &e), 0);
    assert_int_equal(calls, 6);
    assert_int_equal(calls_too, 3);
    assert_follows(&b.sample[0].out, text_a, 4);
}

static void kernels_that_take_fewer_tokens_fall_back_to_eager(void **state)
{
    (void)state;
    struct built b;
    struct cpu_kernel c;
    struct kernel k = test_kernel(&c, run_counted, 3);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4);
    calls = 0;
    dispatch_publish(table, s, &k);
    run_step(cpu, &b, &(struct feed){text_a, 0, 4, {1, 2, 3}}, 1);
    assert_int_equal(calls, 0);
    assert_follows(&b.sample[0].out, text_a, 4);
    dispatch_publish(table, s, s->eager);
}

static _Atomic int64_t progress;
static _Atomic int64_t progress_seen[3];

static void run_looking(const void *args, const struct team *team)
{
    if (team->rank == 0)
        atomic_store(&progress_seen[atomic_fetch_add(&calls, 1) % 3], atomic_load(&progress));
    eager_cpu(REGION_MLP_OUT)->run(args, team);
}

/* A prompt's step may take longer than any patience: whoever looks sees each layer pass. */
static void a_step_says_how_far_it_has_come(void **state)
{
    (void)state;
    struct built b;
    struct err e = {0};
    struct cpu_kernel c;
    struct kernel k = test_kernel(&c, run_looking, 64);
    const struct overrides one = {1, {{dispatch_slot(table, REGION_MLP_OUT, 0, 4, 4), &k}}};
    int64_t before = clock_ns();
    build(&b, &(struct feed){text_a, 0, 4, {1, 2, 3}}, 1);
    b.step.progress_ns = &progress;
    calls = 0;
    assert_int_equal(backend_cpu.step(cpu, &b.step, &one, &e), 0);
    assert_int_equal(calls, 3);
    assert_true(progress_seen[0] >= before && progress_seen[1] > progress_seen[0]);
    assert_true(progress_seen[2] > progress_seen[1] && progress > progress_seen[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_equals_the_oracles_forward_pass),
        cmocka_unit_test(chunks_and_single_tokens_give_the_same_answer),
        cmocka_unit_test(sequences_in_one_step_do_not_mix),
        cmocka_unit_test(counters_tell_what_ran),
        cmocka_unit_test(step_refuses_what_it_was_not_opened_for),
        cmocka_unit_test(keys_and_values_are_in_huge_pages_where_that_is_wanted),
        cmocka_unit_test(machine_constants_are_plausible),
        cmocka_unit_test(overrides_replace_their_slots_in_one_step),
        cmocka_unit_test(kernels_that_take_fewer_tokens_fall_back_to_eager),
        cmocka_unit_test(a_step_says_how_far_it_has_come),
    };
    return cmocka_run_group_tests(tests, backend_set_up, backend_tear_down);
}
