/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - histograms and the Prometheus text format.
 *
 * A bucket counts its own interval; the cumulative sums that the format wants are made when the
 * text is written. Readers may see a histogram between two atomic adds, so the count is derived
 * from the buckets: buckets and count always agree. The sum is a double: of tokens it grows beyond
 * any integer that holds billionths of seconds.
 */
#include "config/metrics.h"

#include <math.h>
#include <stddef.h>

const double bounds_latency[] = {0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01,
                                 0.015,  0.02,  0.03,  0.05,  0.075, 0.1,   0.25,   0.5,
                                 1,      2.5,   5,     10,    30,    60,    120};
const int bounds_latency_n = sizeof bounds_latency / sizeof *bounds_latency;
const double bounds_step[] = {0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002,
                              0.003,   0.004,   0.005,   0.0075, 0.01,   0.02,   0.05,  0.1,
                              0.2,     0.5,     1,       2,      5,      10};
const int bounds_step_n = sizeof bounds_step / sizeof *bounds_step;

void histogram_init(struct histogram *h, const double *bound, int bounds)
{
    h->bound = bound;
    h->bounds = bounds < HISTOGRAM_MAX ? bounds : HISTOGRAM_MAX;
    for (int i = 0; i <= HISTOGRAM_MAX; i++)
        atomic_init(&h->bucket[i], 0);
    atomic_init(&h->sum, 0);
}

void histogram_observe(struct histogram *h, double value)
{
    int i = 0;
    while (i < h->bounds && value > h->bound[i])
        i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    while (value > 0 && !atomic_compare_exchange_weak_explicit(
                            &h->sum, &sum, sum + value, memory_order_relaxed, memory_order_relaxed))
        ;
}

void metric_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP whet_%s %s\n# TYPE whet_%s %s\n", name, help, name, type);
}

static void put_number(FILE *out, double value)
{
    if (isnan(value))
        fputs("NaN\n", out);
    else if (isinf(value))
        fputs(value > 0 ? "+Inf\n" : "-Inf\n", out);
    else
        fprintf(out, "%.17g\n", value);
}

void metric_value(FILE *out, const char *name, const char *labels, double value)
{
    if (labels && *labels)
        fprintf(out, "whet_%s{%s} ", name, labels);
    else
        fprintf(out, "whet_%s ", name);
    put_number(out, value);
}

void metric_histogram(FILE *out, const char *name, const char *labels, struct histogram *h)
{
    const char *l = labels ? labels : "", *comma = labels && *labels ? "," : "";
    uint64_t total = 0;
    for (int i = 0; i <= h->bounds; i++) {
        total += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        if (i < h->bounds)
            fprintf(out, "whet_%s_bucket{%s%sle=\"%g\"} %llu\n", name, l, comma, h->bound[i],
                    (unsigned long long)total);
        else
            fprintf(out, "whet_%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, l, comma,
                    (unsigned long long)total);
    }
    const char *open = *l ? "{" : "", *close = *l ? "}" : "";
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    fprintf(out, "whet_%s_sum%s%s%s %.9f\n", name, open, l, close, sum);
    fprintf(out, "whet_%s_count%s%s%s %llu\n", name, open, l, close, (unsigned long long)total);
}
