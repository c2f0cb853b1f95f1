/* SPDX-License-Identifier: Apache-2.0 */
/* bound.c - what the machine cannot be faster than.
 *
 * "Faster than the machine allows" means that the clock or the work is broken. The bound must never
 * refuse an honest kernel, so it is a wide one: 1.5 times the best bandwidth seen, and only for
 * working sets that no private cache holds (on a GPU: eight times larger ones, because all of it
 * shares one cache); 16 times the float peak, for kernels that multiply in 8-bit integers or on
 * tiles.
 */
#include "specializer/pipeline/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"

static const double bandwidth_slack = 1.5, flops_slack = 16;

double bound_read_bandwidth(int64_t bytes, int32_t threads)
{
    size_t n = (size_t)bytes / 64 * 8;
    uint64_t *data = xaligned((n + 8) * sizeof *data), sum[8] = {0};
    memset(data, 1, (n + 8) * sizeof *data);
    int64_t best = INT64_MAX, end = clock_ns() + 20000000;
    for (int pass = 0; pass < 3 || clock_ns() < end; pass++) {
        int64_t start = clock_ns();
        for (size_t i = 0; i < n; i += 8)
            for (int l = 0; l < 8; l++)
                sum[l] += data[i + (size_t)l];
        int64_t ns = clock_ns() - start;
        best = ns < best ? ns : best;
        __asm__ volatile("" : : "r"(sum) : "memory"); /* the sums are wanted */
    }
    free(data);
    return best > 0 ? (double)n * 8e9 / (double)best * threads : 0;
}

double bound_seconds(const struct machine *m, const struct region_cost *cost, int64_t resident,
                     double bandwidth)
{
    double reading = 0;
    if (resident >= BOUND_CACHED_BYTES)
        reading =
            machine_weight_bytes(m, cost) / (bandwidth_slack * fmax(bandwidth, m->read_bandwidth));
    return fmax(reading, (double)cost->flops / (flops_slack * m->peak_flops));
}
