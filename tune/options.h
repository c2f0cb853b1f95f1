/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - what `whet tune` was asked to do. */
#ifndef WHET_TUNE_OPTIONS_H
#define WHET_TUNE_OPTIONS_H

#include "config/config.h"
#include "config/err.h"

enum { SLOTS_MOST = 64 };

struct tune_options {
    enum { TUNE_LOOP, TUNE_MEASURE, TUNE_ABLATE, TUNE_REPORT } mode;
    char *slot[SLOTS_MOST];
    int slots;
    double seconds; /* 0: the mode's default */
    const char *table, *json, *svg, *record;
    int points, seeds;
    int first_seed; /* 0: 1 */
    int questions;  /* to a language model in one search; 0: no limit */
    int history;    /* points of a node's lineage that it is shown; 0: all */
    bool at_once;   /* its replies take no time of the search */
    double drop;    /* share of the points that each seed of an ablation does without */
    bool build_only;
    struct config config;
};

/* Takes the flags that are not whet serve's out of argv; the rest is for config_parse(), with
 * --strategy by its long name. Texts stay argv's. -1 with a message that names the flag: a value
 * that is none, a flag that the mode has no use for, or two modes. */
int tune_own_flags(struct tune_options *o, int *argc, char **argv, struct err *err);

#endif
