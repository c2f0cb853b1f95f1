/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - the last quarter of an hour of serving, second by second.
 *
 * For whoever opens the dashboard after something happened: tokens, steps, requests and the
 * latencies of every second are kept here and not in the page. Latencies go into buckets an eighth
 * of an octave wide, from 50 microseconds to 2 minutes, so a percentile is good to a tenth of
 * itself.
 *
 * The engine thread writes, anyone reads, and there is no lock: an entry is written only during
 * its own second and read only after it. Seconds are counted on the monotonic clock and named by
 * the wall clock as it was at the start, so two readings always agree about what was when.
 */
#ifndef WHET_ENGINE_HISTORY_H
#define WHET_ENGINE_HISTORY_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

enum { HISTORY_SECONDS = 900, HISTORY_BUCKETS = 172 };

struct history_second {
    _Atomic int64_t at; /* monotonic second; an entry of another one is from the last lap */
    _Atomic uint32_t generated, prompt, steps, requests;
    _Atomic uint32_t running;                                      /* most sequences in one step */
    _Atomic uint16_t gap[HISTORY_BUCKETS], first[HISTORY_BUCKETS]; /* saturating counts */
};

struct history {
    int64_t wall_offset; /* wall second - monotonic second */
    int64_t since;       /* monotonic second of the start */
    struct history_second second[HISTORY_SECONDS];
};

void history_init(struct history *h, int64_t now_ns, int64_t wall_s);

/* Engine thread; `now_ns` is the monotonic clock. */
void history_step(struct history *h, int64_t now_ns, int32_t generated, int32_t running);
void history_prompt(struct history *h, int64_t now_ns, int32_t tokens);
void history_first(struct history *h, int64_t now_ns, double seconds);
void history_gap(struct history *h, int64_t now_ns, double seconds);

/* Percentiles over the last `seconds` seconds, the one under way left out; 0 if there was none. */
struct history_latency {
    double gap_p50, gap_p99, first_p50, first_p99; /* seconds */
};
struct history_latency history_latency(const struct history *h, int64_t now_ns, int seconds);

/* A JSON object with one array a series, oldest first, for at most `seconds` complete seconds
 * since the start: {"to": unix second of the last one, "generated": [...], ...}. */
void history_json(const struct history *h, int64_t now_ns, int seconds, FILE *out);

#endif
