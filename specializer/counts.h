/* SPDX-License-Identifier: Apache-2.0 */
/* counts.h - what happened, as metrics count it: stages with their outcomes, rollbacks. Any
 * thread. */
#ifndef WHET_SPECIALIZER_COUNTS_H
#define WHET_SPECIALIZER_COUNTS_H

#include "config/metrics.h"
#include "specializer/candidate/stage.h"

struct specializer;

/* Stages as metrics count them, and the outcomes of each. */
enum stage {
    STAGE_BUILD,
    STAGE_PROBE,
    STAGE_LOAD,
    STAGE_BENCH,
    STAGE_SHADOW,
    STAGE_CANARY,
    STAGES
};
enum { OUTCOMES = STAGE_STOPPED + 1 };
enum rollback {
    ROLLBACK_AUDIT,
    ROLLBACK_DRIFT,
    ROLLBACK_OPERATOR,
    ROLLBACK_RESTORE,
    ROLLBACK_EXECUTOR,
    ROLLBACKS
};

struct counts {
    _Atomic uint64_t stage[STAGES][OUTCOMES], impossible;
    _Atomic uint64_t published, restored, rolled_back[ROLLBACKS];
    _Atomic uint64_t looks, mismatches; /* audits by the watch */
    struct histogram build_seconds;
};

const char *stage_name(enum stage stage); /* metrics.c */
const char *outcome_name(enum stage_result r);
void count_stage(struct specializer *s, enum stage stage, enum stage_result r);

#endif
