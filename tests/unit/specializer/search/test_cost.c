/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: what its formula must order, and what learning must do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "specializer/candidate/hash.h"
#include "specializer/search/cost.h"
#include "tests/unit/specializer/shapes.h"

static const struct machine machine = {
    .device = "test", .read_bandwidth = 40e9, .peak_flops = 100e9, .boundary_s = 2e-6};

static struct facts facts(int m)
{
    return (struct facts){.HAS_AVX2 = 1,
                          .HAS_AVX512 = 1,
                          .HAS_VNNI = 1,
                          .REGION = REGION_MLP_OUT,
                          .M_MAX = m,
                          SMOLLM_SHAPE};
}

static struct point with(const struct template *t, const char *knob, int value)
{
    struct point p = template_defaults(t);
    p.value[template_knob(t, "ISA")] = 2;
    if (knob)
        p.value[template_knob(t, knob)] = value;
    return p;
}

static void formula_prefers_wider_instruction_sets(void **unused)
{
    (void)unused;
    struct cost c;
    cost_open(&c, &machine, 2);
    const struct template *t = template_find("mlp_out");
    struct facts f = facts(8);
    struct point portable = with(t, "ISA", 0), avx2 = with(t, "ISA", 1), avx512 = with(t, "ISA", 2);
    double slow = cost_formula(&c, t, &portable, &f), mid = cost_formula(&c, t, &avx2, &f);
    double fast = cost_formula(&c, t, &avx512, &f);
    assert_true(slow > mid && mid > fast && fast > 0);
    cost_close(&c);
}

static void formula_is_never_faster_than_the_bytes_allow(void **unused)
{
    (void)unused;
    struct cost c;
    cost_open(&c, &machine, 2);
    const struct template *t = template_find("mlp_out");
    struct facts f = facts(1);
    double bytes = 576.0 * 1536 * 20 / 32; /* Q4_1: 20 bytes for 32 weights */
    for (int rows = 1; rows <= 8; rows *= 2) {
        struct point p = with(t, "ROWS", rows);
        assert_true(cost_formula(&c, t, &p, &f) >= bytes / machine.read_bandwidth);
    }
    cost_close(&c);
}

static void prediction_moves_towards_what_was_measured(void **unused)
{
    (void)unused;
    struct cost c;
    cost_open(&c, &machine, 2);
    const struct template *t = template_find("mlp_out");
    struct facts f = facts(4);
    struct point p = with(t, NULL, 0);
    double truth = cost_formula(&c, t, &p, &f) * 3;
    double first = cost_learn(&c, t, &p, &f, truth);
    double before = fabs(log(truth / first));
    for (int i = 0; i < 20; i++)
        cost_learn(&c, t, &p, &f, truth);
    double after = fabs(log(truth / cost_predict(&c, t, &p, &f)));
    assert_true(after < 0.01 * before);
    assert_true(isfinite(cost_predict(&c, t, &p, &f)));
    double kept = cost_predict(&c, t, &p, &f);
    cost_learn(&c, t, &p, &f, NAN); /* a broken measurement teaches nothing */
    cost_learn(&c, t, &p, &f, -1);
    assert_true(cost_predict(&c, t, &p, &f) == kept);
    cost_close(&c);
}

/* A machine that likes PREFETCH=512 by a factor that the formula knows nothing of: after a few
 * dozen measurements the model ranks the unseen points well. */
static void learning_ranks_points_it_has_not_seen(void **unused)
{
    (void)unused;
    struct cost c;
    cost_open(&c, &machine, 2);
    struct facts f = facts(4);
    struct space *s = space_open(&f, REGION_MLP_OUT, 4, NUMERICS_TOLERANCE);
    int n = space_size(s);
    float *truth = malloc((size_t)n * sizeof *truth), *guess = malloc((size_t)n * sizeof *guess);
    uint64_t seed = 3;
    for (int32_t i = 0; i < n; i++) {
        struct point p;
        const struct template *t = space_template(s, i);
        space_point(s, i, &p);
        int prefetch = template_knob(t, "PREFETCH");
        double like = prefetch >= 0 && p.value[prefetch] == 512 ? 0.5 : 1;
        truth[i] = (float)(cost_formula(&c, t, &p, &f) * like);
    }
    for (int i = 0; i < 120; i++) {
        struct point p;
        int32_t id = random_below(&seed, n);
        space_point(s, id, &p);
        cost_learn(&c, space_template(s, id), &p, &f, (double)truth[id]);
    }
    space_predict(s, &c);
    for (int32_t i = 0; i < n; i++)
        guess[i] = (float)space_predicted(s, i);
    assert_true(rank_correlation(guess, truth, n) > 0.8);
    free(truth);
    free(guess);
    space_close(s);
    cost_close(&c);
}

/* Values worked out by hand: rho = 1 - 6 sum d^2 / (n (n^2 - 1)) without ties. */
static void rank_correlation_is_spearmans(void **unused)
{
    (void)unused;
    const float a[] = {1, 2, 3, 4, 5}, up[] = {10, 20, 30, 40, 50}, down[] = {5, 4, 3, 2, 1};
    const float swapped[] = {2, 1, 3, 4, 5}; /* d = 1, -1, 0, 0, 0: 1 - 12/120 */
    const float flat[] = {7, 7, 7, 7, 7};
    assert_float_equal(rank_correlation(a, up, 5), 1, 1e-9);
    assert_float_equal(rank_correlation(a, down, 5), -1, 1e-9);
    assert_float_equal(rank_correlation(a, swapped, 5), 0.9, 1e-9);
    assert_true(isnan(rank_correlation(a, flat, 5)));
    assert_true(isnan(rank_correlation(a, up, 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formula_prefers_wider_instruction_sets),
        cmocka_unit_test(formula_is_never_faster_than_the_bytes_allow),
        cmocka_unit_test(prediction_moves_towards_what_was_measured),
        cmocka_unit_test(learning_ranks_points_it_has_not_seen),
        cmocka_unit_test(rank_correlation_is_spearmans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
