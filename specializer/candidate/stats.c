/* SPDX-License-Identifier: Apache-2.0 */
/* stats.c - paired ratios and a confidence interval that outliers cannot buy.
 *
 * Step and kernel times on a shared machine have a long right tail (interrupts, neighbours, clock
 * changes), so means mislead and the t interval is far too wide or, after trimming by eye, too
 * narrow. Pairs taken next to each other share most of the disturbance; what is left in
 * x = log(a / b) is close to symmetric about the true log ratio. For such data the signed-rank
 * test is valid whatever the tails, and inverting it gives an interval: with the n (n + 1) / 2
 * Walsh averages (x_i + x_j) / 2 in order, the C-th from either end, where
 *
 *   C = n (n + 1) / 4 - z sqrt(n (n + 1) (2 n + 1) / 24)
 *
 * (Hodges and Lehmann, Ann. Math. Stat. 34, 1963). It loses 5 % of efficiency against the t
 * interval on normal data and stands up to 29 % arbitrary outliers. Beyond 600 samples a seeded
 * sample of the averages stands in for all of them.
 *
 * What it does not protect against: looking again and again until the answer pleases. Callers that
 * look k times ask for confidence 1 - 0.05 / k each time.
 */
#include "specializer/candidate/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"

enum { WALSH_EXACT = 600, WALSH_SAMPLE = 200000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_median(double *x, int n)
{
    if (n <= 0)
        return 0;
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

double stats_normal_quantile(double p)
{
    /* Bisection on erfc: slow, exact to the last digits, and called a few times a candidate. */
    double low = -40, high = 40;
    for (int i = 0; i < 200; i++) {
        double z = 0.5 * (low + high);
        if (0.5 * erfc(-z / sqrt(2)) < p)
            low = z;
        else
            high = z;
    }
    return 0.5 * (low + high);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* The Walsh averages of x, or a sample of them; sorted, malloc'ed. */
static double *walsh(const double *x, int n, uint64_t seed, int *count)
{
    double *w;
    int k = 0;
    if (n <= WALSH_EXACT) {
        w = xmalloc((size_t)n * (size_t)(n + 1) / 2 * sizeof *w);
        for (int i = 0; i < n; i++)
            for (int j = i; j < n; j++)
                w[k++] = 0.5 * (x[i] + x[j]);
    } else {
        w = xmalloc(WALSH_SAMPLE * sizeof *w);
        while (k < WALSH_SAMPLE) {
            uint64_t r = next_random(&seed);
            w[k++] = 0.5 * (x[(r >> 32) % (uint64_t)n] + x[(r & 0xffffffff) % (uint64_t)n]);
        }
    }
    qsort(w, (size_t)k, sizeof *w, by_value);
    *count = k;
    return w;
}

struct interval stats_centre(const double *x, int n, double confidence, uint64_t seed)
{
    struct interval r = {0, -HUGE_VAL, HUGE_VAL};
    if (n <= 0)
        return r;
    int count;
    double *w = walsh(x, n, seed, &count);
    r.mid = count % 2 ? w[count / 2] : 0.5 * (w[count / 2 - 1] + w[count / 2]);
    double all = 0.5 * n * (n + 1.0);
    double z = stats_normal_quantile(0.5 + 0.5 * confidence);
    double rank = 0.5 * all - z * sqrt(n * (n + 1.0) * (2.0 * n + 1) / 24);
    int at = (int)floor(rank / all * count);
    if (rank >= 1 && at >= 1) {
        r.low = w[at - 1];
        r.high = w[count - at];
    }
    free(w);
    return r;
}

struct gain stats_gain(const double *a, const double *b, int n, double confidence, uint64_t seed)
{
    double *x = xmalloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    int k = 0;
    for (int i = 0; i < n; i++)
        if (a[i] > 0 && b[i] > 0)
            x[k++] = log(a[i] / b[i]);
    struct interval c = stats_centre(x, k, confidence, seed);
    free(x);
    struct gain g = {.pairs = k, .mean = expm1(c.mid), .low = -1, .high = 1e9};
    if (c.low > -HUGE_VAL) {
        g.low = expm1(c.low);
        g.high = expm1(c.high);
    }
    return g;
}
