/* SPDX-License-Identifier: Apache-2.0 */
/* counts.h - what happened, as metrics count it: stages with their outcomes, rollbacks. Any
 * thread. */
#ifndef WHET_SPECIALIZER_COUNTS_H
#define WHET_SPECIALIZER_COUNTS_H

#include "config/metrics.h"
#include "specializer/candidate/stage.h"

struct specializer;

/* The outcomes of each stage. */
enum { OUTCOMES = STAGE_STOPPED + 1 };
enum rollback {
    ROLLBACK_AUDIT,
    ROLLBACK_DRIFT,
    ROLLBACK_OPERATOR,
    ROLLBACK_RESTORE,
    ROLLBACK_EXECUTOR,
    ROLLBACK_CRASH,
    ROLLBACKS
};

enum known_count { KNOWN_TRIED, KNOWN_PUBLISHED, KNOWN_COUNTS };

struct counts {
    _Atomic uint64_t stage[STAGES][OUTCOMES], impossible;
    _Atomic uint64_t published, restored, rolled_back[ROLLBACKS];
    _Atomic uint64_t known[KNOWN_COUNTS]; /* points of other machines (search/known.h) */
    _Atomic uint64_t audits, mismatches;  /* by the watch */
    struct histogram build_seconds;
};

const char *outcome_name(enum stage_result r); /* specializer_metrics.c */
void count_stage(struct specializer *s, enum stage stage, enum stage_result r);

#endif
