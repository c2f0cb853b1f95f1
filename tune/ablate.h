/* SPDX-License-Identifier: Apache-2.0 */
/* ablate.h - what each strategy would have found on a table of measured points, and how soon.
 *
 * Regret is how much longer a run takes with the kernel believed best so far than with the best of
 * all points: optimum's speed / its speed - 1. Measurements that a search sees carry the noise that
 * the bench had there; regret is counted in the table's own numbers. One thread.
 */
#ifndef WHET_TUNE_ABLATE_H
#define WHET_TUNE_ABLATE_H

#include "tune/sim_adviser.h"

/* One search. */
struct trial_run {
    int samples;    /* candidates tried, refused ones included */
    float *seconds; /* [samples] on the search's clock once this one was decided */
    float *regret;  /* [samples] then */
    int points;     /* of the space */
    int to_95;      /* samples until a point of 95 % of the best speed was among them; 0: never */
    double to_95_s; /* and seconds; HUGE_VAL: never */
    double eager;   /* regret before the first */
    struct sim_adviser_use use;
};

struct trial_terms {
    const struct tables *tables;
    const struct table *table;
    const struct strategy *strategy;
    enum sim_adviser_kind adviser;
    struct consulted llm; /* of SIM_REPLAY */
    uint64_t seed;
    double budget_s;
};
/* -1: only if the recording cannot be read. Free with trial_free. */
int trial_run(const struct trial_terms *terms, struct trial_run *out, struct err *err);
void trial_free(struct trial_run *r);

/* A strategy with an adviser on one table, over several seeds. */
struct variant {
    const struct table *table;
    const char *strategy;
    enum sim_adviser_kind adviser;
    struct trial_run *run; /* [seeds] */
};

struct ablation {
    const struct tables *tables;
    int seeds;
    int before; /* seeds left out: those taken are before + 1 .. before + seeds */
    double budget_s;
    double drop;          /* every seed has its own part of each table: table_part() */
    struct consulted llm; /* without one that row stays open */
    struct variant *variant;
    int variants;
};

/* All strategies x advisers on all tables of `a`. */
int ablate(struct ablation *a, struct err *err);
/* One strategy with the heuristic and with the `n` advisers of `kind`. */
int ablate_advisers(struct ablation *a, const char *strategy, const enum sim_adviser_kind *kind,
                    int n, struct err *err);
void ablation_free(struct ablation *a);

/* Mean regret and the 10th and 90th percentile over seeds, once `samples` were tried or `seconds`
 * have passed (the other is ignored if negative). Before the first sample: eager's regret. */
struct band {
    double mean, low, high;
};
struct band variant_regret(const struct ablation *a, const struct variant *v, int samples,
                           double seconds);
/* Samples (or seconds) to 95 %: median, 10th, 90th percentile; HUGE_VAL where that is a search that
 * never got there. */
struct band variant_to_95(const struct ablation *a, const struct variant *v, bool in_seconds);
/* Searches that never got there. */
int variant_never(const struct ablation *a, const struct variant *v);
/* The median of samples is at least this: a search that never got there needs one more than it
 * tried, or more. */
double variant_to_95_least(const struct ablation *a, const struct variant *v);

/* What an adviser costs or saves a strategy: samples to 95 % over those that it needs with the
 * heuristic alone on the same seeds, the mean over slots of ratios of means. Interval: 95 %, by
 * bootstrap over seeds. A search that never got there counts against the adviser: as all points and
 * one more with it, as one more than were tried without; a seed on which neither got there is left
 * out. *never: how many searches that were, with it and without; may be NULL. NAN if none is left.
 */
struct band variant_cost(const struct ablation *a, const char *strategy, enum sim_adviser_kind k,
                         int *never);

void ablation_print(const struct ablation *a);
int ablation_write_json(const struct ablation *a, const char *path, struct err *err);
/* PREFIX-strategies.svg and PREFIX-advisers.svg. */
int ablation_write_svg(const struct ablation *a, const char *prefix, struct err *err);

#endif
