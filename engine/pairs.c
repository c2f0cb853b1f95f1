/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.c - see pairs.h. */
#include "engine/pairs.h"

#include "config/clock.h"

int pairs_run(struct pairs *p, struct backend *b, struct bench_job *job, int64_t until_ns,
              pair_run_fn *run, struct err *e)
{
    while (job->have < job->want) {
        int at = p->runs % 4;
        if (run(b, job, at == 1 || at == 2, &p->ns[at], e))
            return -1;
        p->runs++;
        if (at == 3 && p->warm) {
            job->a_ns[job->have] = (p->ns[0] + p->ns[3]) / 2;
            job->b_ns[job->have] = (p->ns[1] + p->ns[2]) / 2;
            job->have++;
        }
        p->warm |= at == 3;
        if (clock_ns() >= until_ns)
            break;
    }
    return job->have >= job->want;
}
