/* SPDX-License-Identifier: Apache-2.0 */
/* history.c - see history.h. */
#include "engine/history.h"

#include <math.h>
#include <stdbool.h>

#include "config/table.h"

#define LEAST_S 50e-6 /* the first bucket ends here */
#define A_OCTAVE 8    /* buckets */

#define SECOND_NS INT64_C(1000000000)
/* A step that ends with a second is still being counted for a moment after it. */
#define SETTLE_NS INT64_C(100000000)

void history_init(struct history *h, int64_t now_ns, int64_t wall_s)
{
    h->since = now_ns / SECOND_NS;
    h->wall_offset = wall_s - h->since;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* The engine thread is the only writer, so a load and a store make an addition. */
static void add32(_Atomic uint32_t *n, uint32_t more)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

static void add16(_Atomic uint16_t *n)
{
    uint16_t old = atomic_load_explicit(n, memory_order_relaxed);
    if (old < UINT16_MAX)
        atomic_store_explicit(n, (uint16_t)(old + 1), memory_order_relaxed);
}

static void clear(struct history_second *s)
{
    _Atomic uint32_t *const sums[] = {&s->generated, &s->prompt, &s->steps, &s->requests,
                                      &s->running};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        atomic_store_explicit(sums[i], 0, memory_order_relaxed);
    for (int i = 0; i < HISTORY_BUCKETS; i++) {
        atomic_store_explicit(&s->gap[i], 0, memory_order_relaxed);
        atomic_store_explicit(&s->first[i], 0, memory_order_relaxed);
    }
}

/* The entry of this second, emptied if it still holds the last lap's. */
static struct history_second *current(struct history *h, int64_t now_ns)
{
    int64_t at = now_ns / SECOND_NS;
    struct history_second *s = &h->second[at % HISTORY_SECONDS];
    if (atomic_load_explicit(&s->at, memory_order_relaxed) != at) {
        clear(s);
        atomic_store_explicit(&s->at, at, memory_order_release);
    }
    return s;
}

static int bucket_of(double seconds)
{
    if (!(seconds > LEAST_S))
        return 0;
    double i = 1 + log2(seconds / LEAST_S) * A_OCTAVE;
    return i < HISTORY_BUCKETS - 1 ? (int)i : HISTORY_BUCKETS - 1;
}

void history_step(struct history *h, int64_t now_ns, int32_t generated, int32_t running)
{
    struct history_second *s = current(h, now_ns);
    add32(&s->steps, 1);
    add32(&s->generated, (uint32_t)generated);
    if ((uint32_t)running > atomic_load_explicit(&s->running, memory_order_relaxed))
        atomic_store_explicit(&s->running, (uint32_t)running, memory_order_relaxed);
}

void history_prompt(struct history *h, int64_t now_ns, int32_t tokens)
{
    struct history_second *s = current(h, now_ns);
    add32(&s->requests, 1);
    add32(&s->prompt, (uint32_t)tokens);
}

void history_first(struct history *h, int64_t now_ns, double seconds)
{
    add16(&current(h, now_ns)->first[bucket_of(seconds)]);
}

void history_gap(struct history *h, int64_t now_ns, double seconds)
{
    add16(&current(h, now_ns)->gap[bucket_of(seconds)]);
}

/* ---- reading ------------------------------------------------------------------------------- */

/* The entry of a complete second, or NULL if nothing happened in it. */
static const struct history_second *past(const struct history *h, int64_t at)
{
    const struct history_second *s = &h->second[at % HISTORY_SECONDS];
    return at >= 0 && atomic_load_explicit(&s->at, memory_order_acquire) == at ? s : NULL;
}

static void gather(const _Atomic uint16_t *from, uint64_t *to)
{
    for (int i = 0; i < HISTORY_BUCKETS; i++)
        to[i] += atomic_load_explicit(&from[i], memory_order_relaxed);
}

/* Where in its bucket the value lies is a guess: as far up as its rank is. */
static double percentile(const uint64_t *count, double p)
{
    uint64_t total = 0, below = 0;
    for (int i = 0; i < HISTORY_BUCKETS; i++)
        total += count[i];
    if (total == 0)
        return 0;
    double rank = p * (double)total;
    int i = 0;
    while (i < HISTORY_BUCKETS - 1 && (double)(below + count[i]) < rank)
        below += count[i++];
    double part = count[i] ? (rank - (double)below) / (double)count[i] : 0;
    return i == 0 ? LEAST_S : LEAST_S * exp2((i - 1 + part) / A_OCTAVE);
}

static int64_t last_complete(int64_t now_ns)
{
    return (now_ns - SETTLE_NS) / SECOND_NS - 1;
}

struct history_latency history_latency(const struct history *h, int64_t now_ns, int seconds)
{
    uint64_t gap[HISTORY_BUCKETS] = {0}, first[HISTORY_BUCKETS] = {0};
    int64_t last = last_complete(now_ns);
    for (int64_t at = last - seconds + 1; at <= last; at++) {
        const struct history_second *s = past(h, at);
        if (!s)
            continue;
        gather(s->gap, gap);
        gather(s->first, first);
    }
    return (struct history_latency){percentile(gap, 0.5), percentile(gap, 0.99),
                                    percentile(first, 0.5), percentile(first, 0.99)};
}

enum series { GENERATED, PROMPT, STEPS, REQUESTS, RUNNING, GAP_P50, GAP_P99, SERIES };

static double value(const struct history_second *s, enum series which)
{
    const _Atomic uint32_t *const sums[] = {&s->generated, &s->prompt, &s->steps, &s->requests,
                                            &s->running};
    if (which <= RUNNING)
        return atomic_load_explicit(sums[which], memory_order_relaxed);
    uint64_t gap[HISTORY_BUCKETS] = {0};
    gather(s->gap, gap);
    return percentile(gap, which == GAP_P50 ? 0.5 : 0.99) * 1e3;
}

void history_json(const struct history *h, int64_t now_ns, int seconds, FILE *out)
{
    static const char *const names[] = {"generated", "prompt",     "steps",     "requests",
                                        "running",   "gap_p50_ms", "gap_p99_ms"};
    EVERY_ROW(names, SERIES);
    int64_t last = last_complete(now_ns);
    int64_t n = seconds < HISTORY_SECONDS ? seconds : HISTORY_SECONDS - 2;
    if (n > last - h->since + 1)
        n = last - h->since + 1;
    fprintf(out, "{\"to\":%lld", (long long)(last + h->wall_offset));
    for (int which = 0; which < SERIES; which++) {
        fprintf(out, ",\"%s\":[", names[which]);
        for (int64_t at = last - n + 1; at <= last; at++) {
            const struct history_second *s = past(h, at);
            fprintf(out, "%s%.6g", at > last - n + 1 ? "," : "",
                    s ? value(s, (enum series)which) : 0);
        }
        fputc(']', out);
    }
    fputc('}', out);
}
