/* SPDX-License-Identifier: Apache-2.0 */
/* Logits with a candidate in the model against eager's: the numbers, and what the limits are. */
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

#include "specializer/admission/endcheck.h"

enum { VOCAB = 4 };

/* ---- logits ---------------------------------------------------------------------------------- */

/* Any bits but eager's; what they are is set in a test. */
static float eager[3 * VOCAB], own[3 * VOCAB];

static int reset_logits(void **state)
{
    (void)state;
    const float row[VOCAB] = {1, 4, 2, -1};
    for (int i = 0; i < 3 * VOCAB; i++)
        own[i] = eager[i] = row[i % VOCAB];
    return 0;
}

static struct end_result compared(int32_t tokens, double tie)
{
    struct end_result r;
    memset(&r, 0x77, sizeof r);
    end_compare(eager, own, tokens, VOCAB, tie, &r);
    assert_int_equal(r.tokens, tokens);
    return r;
}

/* By the definition, in another order. */
static double kl_of(const float *p, const float *q)
{
    long double sum_p = 0, sum_q = 0, kl = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum_p += expl(p[i]);
        sum_q += expl(q[i]);
    }
    for (int i = 0; i < VOCAB; i++)
        kl += expl(p[i]) / sum_p * (logl(expl(p[i]) / sum_p) - logl(expl(q[i]) / sum_q));
    return (double)kl;
}

static void the_same_bits_diverge_in_nothing(void **state)
{
    (void)state;
    struct end_result r = compared(3, 1e-3);
    assert_true(r.bit_equal && r.kl == 0 && r.max_error == 0 && r.top1 == 1 && r.changed == 0);
    /* rms of {1, 4, 2, -1} about 1.5 */
    assert_float_equal(r.spread, sqrt((0.25 + 6.25 + 0.25 + 6.25) / 4), 1e-12);
}

static void numbers_are_of_the_row_and_means_over_tokens(void **state)
{
    (void)state;
    own[VOCAB + 2] += 1; /* in the second of three */
    eager[0] = own[0] = -3;
    struct end_result r = compared(3, 1e-3);
    assert_false(r.bit_equal);
    assert_float_equal(r.max_error, 0.25, 1e-12); /* 1 of 4 */
    assert_float_equal(r.kl, kl_of(eager + VOCAB, own + VOCAB) / 3, 1e-12);
    assert_float_equal(r.top1, 1, 0);
    own[2 * VOCAB] += 2; /* the worst of all counts, and what diverges adds up */
    r = compared(3, 1e-3);
    assert_float_equal(r.max_error, 0.5, 1e-12);
    assert_float_equal(
        r.kl, (kl_of(eager + VOCAB, own + VOCAB) + kl_of(eager + 2 * VOCAB, own + 2 * VOCAB)) / 3,
        1e-12);
    own[VOCAB + 2] += 4; /* and the worst may come first */
    r = compared(3, 1e-3);
    assert_float_equal(r.max_error, 1.25, 1e-12);
    assert_float_equal(r.top1, 2. / 3, 1e-12);
    assert_int_equal(r.changed, 1);
}

/* Relative to the largest magnitude, which may be negative. */
static void an_error_is_relative_to_the_largest_logit(void **state)
{
    (void)state;
    own[3] = eager[3] = -8;
    own[0] -= 2;
    struct end_result r = compared(1, 1e-3);
    assert_float_equal(r.max_error, 0.25, 1e-12);
    /* So is their spread eager's: about -0.25, not -0.75. */
    assert_float_equal(r.spread, sqrt((1 + 16 + 4 + 64) / 4. - 0.0625), 1e-12);
}

/* Logits of thousands, whose exponentials no double holds, whichever of them is the largest. */
static void a_divergence_of_large_logits_is_a_number(void **state)
{
    (void)state;
    const float row[VOCAB] = {-2000, 2000, 1999, 0};
    for (int at = 0; at < VOCAB; at++) {
        for (int i = 0; i < VOCAB; i++)
            own[i] = eager[i] = row[(i + at) % VOCAB];
        own[(2 - at + VOCAB) % VOCAB] += 0.5f; /* the one that was 1999 */
        double kl = compared(1, 1e-3).kl;
        assert_true(kl > 0.01);
        assert_float_equal(kl, kl_of(eager, own), 1e-9);
    }
}

static void another_first_choice_is_a_change_unless_it_was_a_tie(void **state)
{
    (void)state;
    eager[2] = 4 - 0x1p-10f; /* 0.00098 below the first */
    own[2] = 4.5;
    own[1] = 4.25;
    struct end_result r = compared(1, 1e-3);
    assert_int_equal(r.changed, 0);
    assert_true(r.top1 == 0);
    assert_int_equal(compared(1, 0.9e-3).changed, 1);
    eager[2] = 2;
    assert_int_equal(compared(1, 1e-3).changed, 1);
}

/* Without a width a tie is as wide as eight times the rms of the row's difference. */
static void a_tie_without_a_width_is_as_wide_as_the_rows_noise(void **state)
{
    (void)state;
    own[2] = 4.5f; /* eager's two best are 2 apart; the rms is 2.5 / 2 */
    assert_true(compared(1, 0).top1 == 0);
    assert_int_equal(compared(1, 0).changed, 0);
    assert_int_equal(compared(1, 1e-3).changed, 1);
}

/* One that no rounding could have brought about: many values agree, so the noise is small. */
static void beyond_the_noise_a_first_choice_is_changed(void **state)
{
    (void)state;
    enum { WIDE = 4096 };
    static float e[WIDE], c[WIDE];
    struct end_result r;
    for (int i = 0; i < WIDE; i++)
        c[i] = e[i] = (float)(i % 5);
    e[7] = c[7] = 10;
    c[9] = 11; /* eager's is 4, 6 below; the rms is 7 / 64 */
    end_compare(e, c, 1, WIDE, 0, &r);
    assert_int_equal(r.changed, 1);
    e[9] = 9.3f; /* 0.7 below, the rms 1.7 / 64 */
    end_compare(e, c, 1, WIDE, 0, &r);
    assert_int_equal(r.changed, 1);
    e[9] = 9.9f; /* 0.1 below, the rms 1.1 / 64 */
    end_compare(e, c, 1, WIDE, 0, &r);
    assert_int_equal(r.changed, 0);
}

/* Whatever is beside them, in their row or in the next ones. */
static void what_is_no_number_is_refused_wherever_it_is(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 3 * VOCAB; i++)
            for (int beside = 0; beside < 2; beside++) {
                struct err err = {""};
                reset_logits(NULL);
                for (int j = 0; j < 3 * VOCAB && beside; j++)
                    own[j] += 1e-6f; /* every row differs in something */
                own[i] = bad[k];
                struct end_result r = compared(3, 1e-3);
                assert_false(isfinite(r.max_error)); /* either would do */
                assert_false(r.kl <= 2e-3);
                assert_int_equal(end_verdict(NUMERICS_TOLERANCE, PRECISION_F32, 1e-6, &r, &err),
                                 -1);
                assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_E4M3, 2e-3, &r, &err), -1);
            }
}

/* The same bits as eager's prove nothing where those are no numbers. */
static void nobody_agrees_on_what_is_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < VOCAB; i++) {
        struct err err = {""};
        reset_logits(NULL);
        own[i] = eager[i] = NAN;
        struct end_result r = compared(2, 1e-3);
        assert_true(r.bit_equal);
        assert_int_equal(end_verdict(NUMERICS_BIT_EQUAL, PRECISION_F32, 1e-6, &r, &err), -1);
        own[i] = eager[i] = INFINITY;
        r = compared(2, 1e-3);
        assert_int_equal(end_verdict(NUMERICS_TOLERANCE, PRECISION_F32, 1e-6, &r, &err), -1);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* A result that passes everywhere, but for what is set in a row. */
static void each_limit_is_where_it_is_said_to_be(void **state)
{
    (void)state;
    const struct {
        enum numerics numerics;
        enum precision precision;
        struct end_result r;
        double limit;
        const char *why; /* NULL: passes */
    } row[] = {
        {NUMERICS_BIT_EQUAL, PRECISION_F32, {.bit_equal = true, .top1 = 1}, 1e-6, NULL},
        {NUMERICS_BIT_EQUAL, PRECISION_F32, {.top1 = 1}, 1e-6, "logits differ from eager's by up"},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.top1 = 1}, 1e-6, NULL},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.kl = 1e-6, .top1 = 1}, 1e-6, NULL},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.kl = 1.01e-6, .top1 = 1}, 1e-6, "KL 1.01e-06 nats"},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.kl = NAN, .top1 = 1}, 1e-6, "logits diverge"},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.max_error = NAN, .top1 = 1}, 1, "logits diverge"},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.max_error = INFINITY}, 1, "logits diverge"},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.top1 = 0.5}, 1e-6, NULL},
        {NUMERICS_TOLERANCE, PRECISION_F32, {.top1 = 1, .changed = 1}, 1e-6, "was no tie"},
        {NUMERICS_REDUCED, PRECISION_INT8, {.top1 = 0.99, .changed = 9}, 1e-3, NULL},
        {NUMERICS_REDUCED, PRECISION_INT8, {.top1 = 0.989}, 1e-3, "first choice differs"},
        {NUMERICS_REDUCED, PRECISION_BF16, {.top1 = 0.99, .changed = 9}, 1e-3, NULL},
        {NUMERICS_REDUCED, PRECISION_BF16, {.top1 = 0.989}, 1e-3, "first choice differs"},
        {NUMERICS_REDUCED, PRECISION_INT8, {.top1 = 1, .kl = 2e-3, .spread = 9}, 1e-3, "KL"},
        {NUMERICS_FP8, PRECISION_BF16, {.top1 = 1, .kl = 2e-3, .spread = 9}, 1e-3, "KL"},
        /* (2 * 0.05 * 3)^2 / 2 is 0.045; where logits have no spread, what is given */
        {NUMERICS_FP8, PRECISION_E4M3, {.top1 = 0.5, .kl = 0.0449, .spread = 3}, 1e-3, NULL},
        {NUMERICS_FP8, PRECISION_E4M3, {.kl = 0.0451, .spread = 3}, 1e-3, "limit 4.5e-02"},
        {NUMERICS_FP8, PRECISION_E4M3, {.kl = 0.9e-3, .spread = 0}, 1e-3, NULL},
        {NUMERICS_FP8, PRECISION_E4M3, {.spread = 3, .changed = 1}, 1e-3, "was no tie"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct err err = {""};
        int rc = end_verdict(row[i].numerics, row[i].precision, row[i].limit, &row[i].r, &err);
        assert_int_equal(rc, row[i].why ? -1 : 0);
        if (row[i].why && !strstr(err.msg, row[i].why))
            fail_msg("row %zu says: %s", i, err.msg);
    }
}

#define LOGITS(f) cmocka_unit_test_setup(f, reset_logits)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOGITS(the_same_bits_diverge_in_nothing),
        LOGITS(numbers_are_of_the_row_and_means_over_tokens),
        LOGITS(an_error_is_relative_to_the_largest_logit),
        LOGITS(a_divergence_of_large_logits_is_a_number),
        LOGITS(another_first_choice_is_a_change_unless_it_was_a_tie),
        LOGITS(a_tie_without_a_width_is_as_wide_as_the_rows_noise),
        LOGITS(beyond_the_noise_a_first_choice_is_changed),
        LOGITS(what_is_no_number_is_refused_wherever_it_is),
        LOGITS(nobody_agrees_on_what_is_no_number),
        cmocka_unit_test(each_limit_is_where_it_is_said_to_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
