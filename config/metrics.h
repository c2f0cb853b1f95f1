/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - histograms, and Prometheus text exposition 0.0.4.
 *
 * Modules keep their own counters (C11 atomics) and write them out when /metrics is read; there is
 * no registry. Names are given without the prefix `whet_`, which the writers add.
 */
#ifndef WHET_CONFIG_METRICS_H
#define WHET_CONFIG_METRICS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

enum { HISTOGRAM_MAX = 24 };

/* Observations in seconds (or any unit); safe to observe from several threads. */
struct histogram {
    const double *bound; /* [bounds], rising; +Inf is implied */
    int bounds;
    _Atomic uint64_t bucket[HISTOGRAM_MAX + 1];
    _Atomic double sum;
};

/* Shared bucket bounds: latency from 0.5 ms to 120 s; fine steps from 10 us to 10 s. */
extern const double bounds_latency[];
extern const int bounds_latency_n;
extern const double bounds_step[];
extern const int bounds_step_n;

void histogram_init(struct histogram *h, const double *bound, int bounds);
void histogram_observe(struct histogram *h, double value);

/* # HELP and # TYPE lines. type: "counter", "gauge", "histogram". */
void metric_head(FILE *out, const char *name, const char *type, const char *help);
/* One sample. `labels` is NULL or a ready list `a="b",c="d"`; values are words of ours (stages,
 * slots, keys), so there is nothing to escape. */
void metric_value(FILE *out, const char *name, const char *labels, double value);
void metric_histogram(FILE *out, const char *name, const char *labels, struct histogram *h);

#endif
