/* SPDX-License-Identifier: Apache-2.0 */
/* slice_meter.h - when the engine may lend time between two steps, and how much (tuning.c).
 *
 * Pure arithmetic on what it is told, times in nanoseconds; engine thread only.
 */
#ifndef WHET_ENGINE_SLICE_METER_H
#define WHET_ENGINE_SLICE_METER_H

#include <stdbool.h>
#include <stdint.h>

/* Slices under load: time is lent at `share` of the wall time, never more than one slice ahead.
 * A slice that took longer than its budget is paid back before the next one. */
struct slice_meter {
    double share;
    int64_t slice_ns, most_ns; /* shortest worth running, and longest */
    uint64_t apart;            /* steps between two slices, at least */
    double credit_ns;          /* below zero: in debt */
    int64_t at_ns;
    uint64_t at_step; /* of the last slice */
    int64_t step_ns;  /* what the last step took */
    bool small;       /* the slice that is due may take the share of that at most */
    bool overran;     /* the last one was small and took twice that: a single run is longer, and no
                         small ones are lent before the next that is far from it */
};
/* Slices of one length, whenever they were earned. */
void slice_meter_init(struct slice_meter *m, double share, int64_t slice_ns, int64_t now);
/* On top of that: at most one slice in `apart` steps, as long as what was saved allows. For where
 * what counts is how many steps are late. But one that takes no more than the share of the last
 * step is not counted among them. */
void slice_meter_spread(struct slice_meter *m, uint64_t apart, int64_t most_ns);
/* Takes the time passed into account; true if a slice may run now, before step number `step`. */
bool slice_meter_due(struct slice_meter *m, int64_t now, uint64_t step);
/* Steps of `step_ns` whose share of the time is a slice of `slice_ns`; at least 1, and `most` at
 * most, also where no step has been seen (0). */
uint64_t slice_meter_saves(double share, int64_t slice_ns, int64_t step_ns, uint64_t most);
/* How long it may be. */
int64_t slice_meter_budget(const struct slice_meter *m);
void slice_meter_spend(struct slice_meter *m, int64_t ns, uint64_t step);

/* What slices do to the time between tokens where one is several steps long, as on a GPU. */
struct slice_gaps {
    int64_t target_ns;  /* for the time between tokens; 0: any */
    int64_t longest_ns; /* of a slice */
    int64_t decodes_ns; /* what the next step would take without prompt tokens; 0: not known */
    double waits;       /* share of the last steps with decodes that took as long as such a step and
                           a slice before it */
};
void slice_gaps_init(struct slice_gaps *g, int64_t target_ns, int64_t longest_ns);
/* The longest slice behind which a step of decodes is within the target; 0 if that is too short to
 * be worth a change of contexts. */
int64_t slice_gaps_room(const struct slice_gaps *g);
/* A step with sequences that decode took so long. */
void slice_gaps_step(struct slice_gaps *g, int64_t ns);
/* Whoever decodes waits as long for one step in fifty anyway, as beside prompts: slices within the
 * room then lengthen no 99th percentile, however many they are. */
bool slice_gaps_hide(const struct slice_gaps *g);

#endif
