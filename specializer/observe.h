/* SPDX-License-Identifier: Apache-2.0 */
/* observe.h - what real traffic spends its time on, and where looking is worth it.
 *
 * The engine counts steps, runs, tokens and nanoseconds per slot. Here they are aged: what counts
 * is the recent *busy* time, so a quiet night does not wash out the knowledge of the day.
 * Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_OBSERVE_H
#define WHET_SPECIALIZER_OBSERVE_H

#include "engine/dispatch.h"
#include "engine/plan.h"

/* The counters of a slot (struct slot_counters); nanoseconds last, which parts of a fused region
 * add up. */
enum { SEEN_STEPS, SEEN_RUNS, SEEN_TOKENS, SEEN_CONTEXT, SEEN_SEQUENCES, SEEN_NS, SEEN };

/* One slot as seen lately (aged sums), and since start (totals). */
struct observed {
    double steps, runs, tokens, context, sequences, seconds;
    double share; /* of the aged time of all slots; 0..1 */
    double own;   /* of that, what runs here took themselves: all slots' make 1 */
    /* A fused region's slot without a kernel of its own is seen as its parts are, which count the
     * same time too: so much of `seconds` is theirs. */
    double lent;
    double delta[SEEN]; /* of the counters, at the last look */
    double saved_s;     /* against the eager kernel, by the measured gain */
    double roofline_s;  /* what the machine could have done all of it in, since start */
    double total_s;
    uint64_t raw[SEEN]; /* counters at the last look */
};

struct observe {
    struct dispatch *dispatch;
    const struct model *model;
    const struct machine *machine;
    int slots;
    struct observed *slot; /* [slots] */
    double *gain_eager;    /* [slots] of the kernel now in the slot, set by the specializer */
    double busy_s;         /* since start */
};

/* Half of the weight of a moment is gone after this much busy time. */
#define OBSERVE_HALF_LIFE_S 20.0

void observe_open(struct observe *o, struct dispatch *d, const struct model *model,
                  const struct machine *machine);
void observe_close(struct observe *o);
/* Reads the counters; call a few times a second. Returns busy seconds since the last call. */
double observe_update(struct observe *o);

/* Means over the aged traffic of a slot; 0 when it has had none. */
double observe_run_s(const struct observe *o, int slot);      /* seconds a run (one layer) */
double observe_roofline_s(const struct observe *o, int slot); /* the machine's limit for that run */
double observe_bytes(const struct observe *o, int slot);      /* that it has to move */
double observe_m(const struct observe *o, int slot);          /* tokens a run */
double observe_context(const struct observe *o, int slot);

struct region_cost observe_work(const struct observe *o, int slot); /* of that run */

/* What could still be gained there: share x (1 - roofline / incumbent) x chance left. `measured`:
 * candidates benched there; `dry`: of them, those since the last gain. */
double observe_worth(const struct observe *o, int slot, int measured, int dry);
/* A slot whose worth is below this is left alone: it could save one step in a thousand. */
#define OBSERVE_LEAST 0.001

#endif
