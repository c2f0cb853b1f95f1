/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - a candidate as a row of the store, of an export, of what operators are shown. */
#ifndef WHET_SPECIALIZER_CANDIDATE_RECORD_H
#define WHET_SPECIALIZER_CANDIDATE_RECORD_H

#include "specializer/candidate/candidate.h"

/* A candidate as it is stored. `env` names machine + compiler + model shape + numerics, `source` a
 * template's text with its headers: rows of another env or source are history, not evidence. */
struct record {
    char key[KEY_HEX + 1], object_key[KEY_HEX + 1], object_sum[17];
    char env[KEY_HEX + 1], source[KEY_HEX + 1];
    char template[48], slot[40], knobs[400], name[160];
    enum origin origin;
    enum life state;
    bool bit_equal;
    double predicted_s;
    struct evidence evidence;
    char reason[240];
    int32_t rollbacks;
    int32_t deaths;        /* times the process died while it was on trial, */
    int32_t served_deaths; /* died of a fault in steps that it served, */
    int32_t probe_deaths;  /* and its probe was killed since the last verdict of one */
    int64_t changed_s;     /* unix seconds */
    char *log;             /* only from store_get(); caller frees */
};

/* A kernel with which the process died so often is neither tried nor restored again. */
enum { DEATHS_MOST = 3 };
static inline bool record_deadly(const struct record *r)
{
    return r->deaths >= DEATHS_MOST || r->served_deaths >= DEATHS_MOST;
}

#endif
