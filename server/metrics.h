/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - what the HTTP side counts, and /metrics as a whole. Loop thread only. */
#ifndef WHET_SERVER_METRICS_H
#define WHET_SERVER_METRICS_H

#include <stdio.h>

#include "config/metrics.h"

struct server;
struct exchange;

enum { METRIC_ROUTES = 40, METRIC_CODES = 20 };

struct metrics {
    struct histogram duration[METRIC_ROUTES]; /* by route label */
    uint64_t requests[METRIC_ROUTES][METRIC_CODES];
    _Atomic uint64_t connections_total, connections_refused, bytes_in, bytes_out;
    _Atomic uint64_t slow_clients, disconnects, connections_evicted;
    /* Gauges, by server_measure(). */
    int connections;
    uint64_t pending_bytes, pending_jobs, answer_bytes;
};

void metrics_init(struct metrics *m);
/* One request was answered (or given up: status 499). `seconds` since its first byte. */
void metrics_request(struct metrics *m, int route, int status, double seconds);
/* The server's own part. */
void metrics_write(struct metrics *m, FILE *out);
/* Answers of the routes that generate, by hundreds of their status: [2] is 200 to 299. */
void metrics_answers(const struct metrics *m, uint64_t by_class[6]);
/* process_*: the standard set of Prometheus client libraries. */
void metrics_process(FILE *out);

#endif
