/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps came late, and by how much a step was longer in which a kernel was swapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/latency.h"

static void add(struct latency_causes *g, enum latency_cause kind, int32_t m, int64_t gap_us,
                int64_t step_us)
{
    latency_add(g, &(struct gap){kind, m, gap_us * 1000, step_us * 1000});
}

static void every_gap_is_counted_under_its_kind(void **state)
{
    (void)state;
    struct latency_causes g = {0};
    for (int i = 0; i < 90; i++)
        add(&g, GAP_PLAIN, 1, 1000, 1000);
    add(&g, GAP_SLICE, 1, 9000, 1000);
    add(&g, GAP_SLICE, 1, 7000, 1000);
    add(&g, GAP_HOOK, 1, 0, 1500); /* the first after a pause: no gap of ours */
    assert_int_equal(g.n[GAP_PLAIN], 90);
    assert_int_equal(g.n[GAP_SLICE], 2);
    assert_int_equal(g.ns[GAP_SLICE], 16000000);
    assert_int_equal(g.longest_ns[GAP_SLICE], 9000000);
    assert_int_equal(g.n[GAP_HOOK], 0);
}

static void a_swap_is_held_against_the_plain_steps_around_it(void **state)
{
    (void)state;
    struct latency_causes g = {0};
    for (int i = 0; i < 100; i++)
        add(&g, GAP_PLAIN, 1, 1000, 990 + i % 3 * 10);
    add(&g, GAP_SLICE, 1, 9000, 5000); /* no plain step: the mean stays */
    add(&g, GAP_SWAP, 1, 1300, 1300);
    assert_int_equal(g.swap_ns, 1300000);
    assert_in_range(g.swap_excess_ns, 285000, 315000);
    add(&g, GAP_SWAP, 1, 900, 900); /* faster: nothing was lengthened */
    assert_in_range(g.swap_excess_ns, 285000, 315000);
}

static void a_swap_without_steps_to_compare_with_has_no_excess(void **state)
{
    (void)state;
    struct latency_causes g = {0};
    for (int i = 0; i < 100; i++)
        add(&g, GAP_PLAIN, 1, 1000, 1000);
    add(&g, GAP_SWAP, 8, 4000, 4000);
    assert_int_equal(g.swap_ns, 4000000);
    assert_int_equal(g.swap_excess_ns, 0);
    for (int i = 0; i < 16; i++)
        add(&g, GAP_PLAIN, 8, 3900, 3900);
    add(&g, GAP_SWAP, 8, 4100, 4100);
    assert_in_range(g.swap_excess_ns, 199000, 201000);
}

static void the_metrics_name_every_kind(void **state)
{
    (void)state;
    struct latency_causes g = {0};
    char *text = NULL;
    size_t n = 0;
    add(&g, GAP_SWAP, 1, 2000, 2000);
    FILE *out = open_memstream(&text, &n);
    latency_metrics(&g, out);
    fclose(out);
    assert_non_null(strstr(text, "whet_token_gaps_total{step=\"swap\"} 1\n"));
    assert_non_null(strstr(text, "whet_token_gaps_total{step=\"plain\"} 0\n"));
    assert_non_null(strstr(text, "whet_swap_step_seconds 0.002\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gap_is_counted_under_its_kind),
        cmocka_unit_test(a_swap_is_held_against_the_plain_steps_around_it),
        cmocka_unit_test(a_swap_without_steps_to_compare_with_has_no_excess),
        cmocka_unit_test(the_metrics_name_every_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
