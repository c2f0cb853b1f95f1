/* SPDX-License-Identifier: Apache-2.0 */
/* latency.c - see latency.h.
 *
 * How much longer a step with a swap was is asked of the steps around it: the mean of plain
 * steps with as many tokens, of which there must have been a few.
 */
#include "engine/latency.h"

#include "config/metrics.h"
#include "config/table.h"

enum { PLAIN_LEAST = 16 };
static const double pace = 1.0 / 64; /* of the running mean */

static void longest(_Atomic uint64_t *at, int64_t ns)
{
    if (ns > 0 && (uint64_t)ns > atomic_load(at))
        atomic_store(at, (uint64_t)ns);
}

static void learn_plain(struct latency_causes *g, const struct gap *at)
{
    if (g->m != at->m) {
        g->m = at->m;
        g->plain_n = 0;
    }
    double share = g->plain_n < PLAIN_LEAST ? 1.0 / (g->plain_n + 1) : pace;
    g->plain_ns += ((double)at->step_ns - (g->plain_n > 0 ? g->plain_ns : 0)) * share;
    if (g->plain_n == 0)
        g->plain_ns = (double)at->step_ns;
    g->plain_n += g->plain_n < PLAIN_LEAST;
}

void latency_add(struct latency_causes *g, const struct gap *at)
{
    if (at->gap_ns > 0) {
        atomic_fetch_add(&g->n[at->kind], 1);
        atomic_fetch_add(&g->ns[at->kind], (uint64_t)at->gap_ns);
        longest(&g->longest_ns[at->kind], at->gap_ns);
    }
    if (at->kind == GAP_SWAP) {
        longest(&g->swap_ns, at->step_ns);
        if (g->m == at->m && g->plain_n == PLAIN_LEAST)
            longest(&g->swap_excess_ns, at->step_ns - (int64_t)g->plain_ns);
    } else if (at->kind == GAP_PLAIN) {
        learn_plain(g, at);
    }
}

static void put_each(FILE *out, const char *name, const _Atomic uint64_t *values, double scale)
{
    static const char *const label[] = {"step=\"plain\"", "step=\"canary\"", "step=\"uncaptured\"",
                                        "step=\"hook\"",  "step=\"slice\"",  "step=\"swap\""};
    EVERY_ROW(label, GAP_KINDS);
    for (int k = 0; k < GAP_KINDS; k++)
        metric_value(out, name, label[k], (double)atomic_load(&values[k]) * scale);
}

void latency_metrics(const struct latency_causes *g, FILE *out)
{
    metric_head(out, "token_gaps_total", "counter",
                "Gaps between two decode steps, by what fell into them");
    put_each(out, "token_gaps_total", g->n, 1);
    metric_head(out, "token_gap_seconds_total", "counter", "Their time");
    put_each(out, "token_gap_seconds_total", g->ns, 1e-9);
    metric_head(out, "token_gap_longest_seconds", "gauge", "The longest of them since start");
    put_each(out, "token_gap_longest_seconds", g->longest_ns, 1e-9);
    metric_head(out, "swap_step_seconds", "gauge",
                "Longest decode step in which a kernel was swapped");
    metric_value(out, "swap_step_seconds", NULL, (double)atomic_load(&g->swap_ns) * 1e-9);
    metric_head(out, "swap_step_excess_seconds", "gauge",
                "Most that such a step was longer than plain steps around it");
    metric_value(out, "swap_step_excess_seconds", NULL,
                 (double)atomic_load(&g->swap_excess_ns) * 1e-9);
}
