/* SPDX-License-Identifier: Apache-2.0 */
/* cost_rank.c - how well predictions rank: Spearman's correlation with what was measured. */
#include "specializer/search/cost.h"

#include <math.h>
#include <stdlib.h>

#include "config/err.h"

static int by_value(const void *a, const void *b, void *values)
{
    const float *v = values;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (v[x] > v[y]) - (v[x] < v[y]);
}

/* Ranks 0 .. n-1, equal values sharing the mean of theirs. */
static double *ranks(const float *value, int n)
{
    int32_t *order = xmalloc((size_t)n * sizeof *order);
    double *rank = xmalloc((size_t)n * sizeof *rank);
    for (int i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_value, (void *)value);
    for (int i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && value[order[j]] == value[order[i]];)
            j++;
        for (int k = i; k < j; k++)
            rank[order[k]] = (i + j - 1) / 2.0;
    }
    free(order);
    return rank;
}

double rank_correlation(const float *a, const float *b, int n)
{
    if (n < 3)
        return NAN;
    double *x = ranks(a, n), *y = ranks(b, n), mean = (n - 1) / 2.0;
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < n; i++) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    free(x);
    free(y);
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

double cost_correlation(const struct cost *c, int index)
{
    float *a = xmalloc(((size_t)c->samples + 1) * sizeof *a);
    float *b = xmalloc(((size_t)c->samples + 1) * sizeof *b);
    int n = 0;
    for (int i = 0; i < c->samples; i++)
        if (index < 0 || c->sample[i].template == index) {
            a[n] = c->sample[i].predicted;
            b[n++] = c->sample[i].measured;
        }
    double r = rank_correlation(a, b, n);
    free(a);
    free(b);
    return r;
}
