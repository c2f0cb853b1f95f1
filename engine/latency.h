/* SPDX-License-Identifier: Apache-2.0 */
/* latency.h - what the time between two tokens was made of: which steps came late, by how much,
 * why.
 *
 * Everything that the specializer does to a running server ends up between two decode steps: a
 * slice, a step that is launched kernel by kernel instead of as a graph, a canary, a swap.
 * Each gap between two decode steps is counted under the strongest of those that fell into it. A
 * share of all gaps above 1 % is what a 99th percentile can see.
 *
 * Engine thread writes, anyone reads.
 */
#ifndef WHET_ENGINE_LATENCY_H
#define WHET_ENGINE_LATENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Weakest first. */
enum latency_cause {
    GAP_PLAIN,
    GAP_CANARY,     /* ran a canary's candidate */
    GAP_UNCAPTURED, /* kernel by kernel: to time regions, or for want of a graph */
    GAP_HOOK,       /* a hook observed it */
    GAP_SLICE,      /* a slice was lent before it */
    GAP_SWAP,       /* the first with another kernel in some slot */
    GAP_KINDS
};

struct latency_causes {
    _Atomic uint64_t n[GAP_KINDS], ns[GAP_KINDS], longest_ns[GAP_KINDS];
    _Atomic uint64_t swap_ns, swap_excess_ns; /* longest step with a swap, and over a plain one */
    /* engine thread */
    double plain_ns; /* running mean of plain steps of `m` tokens */
    int32_t m, plain_n;
};

struct gap {
    enum latency_cause kind;
    int32_t m;
    int64_t gap_ns;  /* since the decode step before it landed; 0: there was none just before */
    int64_t step_ns; /* of the step alone */
};
void latency_add(struct latency_causes *g, const struct gap *at);
void latency_metrics(const struct latency_causes *g, FILE *out);

#endif
