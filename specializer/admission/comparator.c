/* SPDX-License-Identifier: Apache-2.0 */
/* comparator.c - the error rule.
 *
 * A fixed tolerance is either too wide for outputs near zero or too narrow for long sums, and a
 * wide one hides a precision downgrade. So the yardstick is the eager kernel's own distance to the
 * double-precision truth on the very same inputs: a candidate may be `factor` (2) times as far.
 *
 * For each row, with s = max |truth| and t = rms(truth) of that row:
 *
 *   max |own - truth| / s  <=  factor * max(e, E / 2) + 8 u       u = 2^-24, float's rounding unit
 *   rms(own - truth) / t   <=  factor * max(f, F / 2) + 2 u
 *
 * where e, f are eager's errors in this row and E, F its largest over the rows of this output: one
 * lucky eager row must not condemn a kernel. A second, sharper test has no luck in it: the rms over
 * all rows together <= factor * eager's + 2 u. The constant is what storing floats costs: without
 * it an input on which eager happens to round well would refuse kernels that are as good as float.
 * In attention a score is such a float, too, and one of S nats is wrong by S u wherever it is
 * stored, so that its weight is by as much of itself: u becomes (1 + S) u, where S is how large
 * what the scores of a row are summed up from is (device_outcome.scores). Eager's own error is a
 * poor measure of that, because it may be lucky in all rows: tensor cores cut sums off where other
 * units round them, and are right to 3 or 4 u S where eager was to 1. Anything that keeps fewer
 * bits of q or of a weight than a float is wrong by hundreds of u S. Rows below 1e-30 are judged as
 * if they were 1e-30: a kernel may flush what vanishes there.
 *
 * Under `reduced` and `fp8` the declared precision adds its budget: bf16 rounds each activation by
 * up to 2^-9 of itself, int8 by up to 1/254 of the largest of its block, which for the
 * distributions that we draw is below 1 % of the row's rms. e4m3 has three bits behind the first:
 * it rounds an activation by up to 2^-4 of itself, by 2.5 % of its rms where they have all sizes,
 * and so is a sum of many wrong, whose weights know nothing of that. mlp_in multiplies two such
 * sums: 3.5 %. Drawn and computed in double, for activations that are normal, shifted, have heavy
 * tails or an outlier, the worst of 64 rows is 2.3 to 2.9 % off, and 3.3 to 4.3 % in mlp_in; its
 * largest value 2 to 7 % of the row's largest. One bit less (e5m2) gives 4.4 to 5.8 and 6.7 to 8.4
 * %, which 5 % refuses in all but some rows.
 */
#include "specializer/admission/comparator.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double unit = 0x1p-24, smallest = 1e-30;

static const struct {
    double max, rms;
} budget[PRECISION_COUNT] = {[PRECISION_F32] = {0, 0},
                             [PRECISION_BF16] = {0.01, 0.004},
                             [PRECISION_INT8] = {0.04, 0.015},
                             [PRECISION_E4M3] = {0.08, 0.05}};

double precision_max(enum precision p)
{
    return budget[p].max;
}

double precision_rms(enum precision p)
{
    return budget[p].rms;
}

struct error {
    double max, rms;
};

struct scale {
    double max, rms;
};

static struct scale scale_of(const double *truth, int32_t n)
{
    double max = smallest, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        max = fmax(max, fabs(truth[i]));
        sum += truth[i] * truth[i];
    }
    return (struct scale){max, fmax(sqrt(sum / n), smallest)};
}

static struct error error_of(const float *v, const double *truth, int32_t n, struct scale s)
{
    double max = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = fabs((double)v[i] - truth[i]);
        max = fmax(max, d);
        sum += d * d;
    }
    return (struct error){max / s.max, sqrt(sum / n) / s.rms};
}

/* Values that no error can be computed of: where the truth is finite, the kernel must be. */
static int32_t not_finite(const float *v, int32_t n)
{
    int32_t bad = 0;
    for (int32_t i = 0; i < n; i++)
        bad += !isfinite(v[i]);
    return bad;
}

void comparison_start(struct comparison *j)
{
    *j = (struct comparison){.bit_equal = true};
}

static int check_finite(const struct outcome *o, struct err *err)
{
    for (int32_t r = 0; r < o->rows; r++) {
        int32_t bad = not_finite(o->own + (int64_t)r * o->cols, o->cols);
        if (bad > 0)
            return err_set(err, "row %d of %d: %d of %d values not written or not finite", r,
                           o->rows, bad, o->cols);
    }
    return 0;
}

static int check_exact(const struct outcome *o, struct err *err)
{
    for (int64_t i = 0; i < (int64_t)o->rows * o->cols; i++)
        if ((double)o->own[i] != o->truth[i])
            return err_set(err, "row %d: %.9g where the exact result is %.9g", (int)(i / o->cols),
                           (double)o->own[i], o->truth[i]);
    return 0;
}

static int check_bits(struct comparison *j, const struct rule *rule, const struct outcome *o,
                      struct err *err)
{
    int64_t n = (int64_t)o->rows * o->cols, different = 0;
    if (memcmp(o->own, o->eager, (size_t)n * sizeof(float)) == 0)
        return 0;
    j->bit_equal = false;
    if (!rule->bit_equal)
        return 0;
    for (int64_t i = 0; i < n; i++)
        different += memcmp(&o->own[i], &o->eager[i], sizeof(float)) != 0;
    return err_set(err, "%lld of %lld values differ from eager's bits", (long long)different,
                   (long long)n);
}

static int over(struct comparison *j, double own, double eager, double limit, int32_t row,
                const char *kind, struct err *err)
{
    j->ratio = fmax(j->ratio, own / limit);
    if (own <= limit)
        return 0;
    char which[24] = "all rows";
    if (row >= 0)
        snprintf(which, sizeof which, "row %d", row);
    j->times = own / fmax(eager, unit);
    return err_set(err, "%s: %s error %.3g is %.3g times eager's %.3g", which, kind, own, j->times,
                   eager);
}

/* Largest errors of eager over the rows, and the rms over all rows of both kernels. */
struct totals {
    struct error eager_worst;
    double own_sum, eager_sum;
};

static struct totals total(const struct outcome *o)
{
    struct totals t = {{0, 0}, 0, 0};
    for (int32_t r = 0; r < o->rows; r++) {
        int64_t at = (int64_t)r * o->cols;
        struct scale s = scale_of(o->truth + at, o->cols);
        struct error e = error_of(o->eager + at, o->truth + at, o->cols, s);
        struct error c = error_of(o->own + at, o->truth + at, o->cols, s);
        t.eager_worst.max = fmax(t.eager_worst.max, e.max);
        t.eager_worst.rms = fmax(t.eager_worst.rms, e.rms);
        t.own_sum += c.rms * c.rms;
        t.eager_sum += e.rms * e.rms;
    }
    return t;
}

/* Floating-point numbers that an output of the row depends on, each wrong by a unit. */
static double stored_floats(const struct outcome *o, int32_t row)
{
    return 1 + (o->scores ? o->scores[row] : 0);
}

static int check_row(struct comparison *j, const struct rule *rule, const struct outcome *o,
                     const struct totals *t, int32_t r, struct err *err)
{
    int64_t at = (int64_t)r * o->cols;
    struct scale s = scale_of(o->truth + at, o->cols);
    struct error e = error_of(o->eager + at, o->truth + at, o->cols, s);
    struct error c = error_of(o->own + at, o->truth + at, o->cols, s);
    j->own_max = fmax(j->own_max, c.max);
    j->own_rms = fmax(j->own_rms, c.rms);
    j->eager_max = fmax(j->eager_max, e.max);
    j->eager_rms = fmax(j->eager_rms, e.rms);
    double k = rule->factor, stored = unit * stored_floats(o, r);
    double max =
        k * fmax(e.max, t->eager_worst.max / 2) + 8 * stored + precision_max(rule->precision);
    double rms =
        k * fmax(e.rms, t->eager_worst.rms / 2) + 2 * stored + precision_rms(rule->precision);
    if (over(j, c.max, e.max, max, r, "largest", err) != 0)
        return -1;
    return over(j, c.rms, e.rms, rms, r, "rms", err);
}

int compare(struct comparison *j, const struct rule *rule, const struct outcome *o, struct err *err)
{
    if (check_finite(o, err) != 0)
        return -1;
    if (rule->exact && check_exact(o, err) != 0)
        return -1;
    if (check_bits(j, rule, o, err) != 0)
        return -1;
    struct totals t = total(o);
    for (int32_t r = 0; r < o->rows; r++)
        if (check_row(j, rule, o, &t, r, err) != 0)
            return -1;
    double own = sqrt(t.own_sum / o->rows), eager = sqrt(t.eager_sum / o->rows), stored = 0;
    for (int32_t r = 0; r < o->rows; r++)
        stored += unit * stored_floats(o, r) / o->rows;
    double limit = rule->factor * eager + 2 * stored + precision_rms(rule->precision);
    return over(j, own, eager, limit, -1, "rms", err);
}

int compare_rest(struct comparison *j, const struct rule *rule, const struct outcome *o,
                 struct err *err)
{
    if (check_finite(o, err) != 0)
        return -1;
    if (!o->eager)
        return 0;
    if (check_bits(j, rule, o, err) != 0)
        return -1;
    double limit =
        (rule->factor + 1) * 2 * j->eager_rms + 2 * unit + precision_rms(rule->precision);
    for (int32_t r = 0; r < o->rows; r++) {
        const float *own = o->own + (int64_t)r * o->cols, *eager = o->eager + (int64_t)r * o->cols;
        double distance = 0, size = 0;
        for (int32_t i = 0; i < o->cols; i++) {
            double d = (double)own[i] - (double)eager[i];
            distance += d * d;
            size += (double)eager[i] * (double)eager[i];
        }
        double rms = sqrt(distance / fmax(size, smallest * smallest * o->cols));
        if (rms > limit)
            return err_set(err, "row %d: rms distance %.3g from eager, limit %.3g", r, rms, limit);
    }
    return 0;
}
