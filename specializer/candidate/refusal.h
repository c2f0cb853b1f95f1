/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.h - why a candidate goes no further, as data: part of its evidence, made where the stage
 * decides and carried through probe, store and export. The sentence for people that goes with it is
 * the candidate's `reason`; candidate_explain() sets both. Any thread.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_REFUSAL_H
#define WHET_SPECIALIZER_CANDIDATE_REFUSAL_H

#include <cjson/cJSON.h>

/* Stages from a proposal to a published kernel, in their order. */
enum stage {
    STAGE_BUILD,
    STAGE_PROBE,
    STAGE_LOAD,
    STAGE_BENCH,
    STAGE_SHADOW,
    STAGE_CANARY,
    STAGES
};
const char *stage_name(enum stage stage);

enum cause {
    CAUSE_NONE,       /* nothing is held against it */
    CAUSE_OTHER,      /* what its sentence says */
    CAUSE_ERROR,      /* wrong outputs: an error of `value` times eager's, in `in_case` */
    CAUSE_GAIN,       /* too little time is saved, or none: a relative gain of `value` */
    CAUSE_IMPOSSIBLE, /* `value` of the time that the machine needs at least */
    CAUSE_WITHDRAWN,  /* had been admitted, and was taken out; no stage */
    CAUSE_AUDIT,      /* the same, because live steps found its outputs wrong: for good */
    CAUSES
};

struct refusal {
    enum cause cause;
    enum stage stage; /* whose verdict it is, or that could not come to one */
    double value;     /* see the cause; 0: none is known */
    char in_case[96]; /* "m=3 outlier, team of 2", or "" */
};

/* {"stage": "probe", "cause": "error", "value": 3.1, "case": "m=3 outlier"}; what an audit found
 * has the stage "audit". Caller deletes. */
cJSON *refusal_json(const struct refusal *r);
/* Takes over what is right in `json` (may be NULL); the rest is none. */
void refusal_read(struct refusal *r, const cJSON *json);
/* The refusal that a sentence tells of: rows that were written before 0.2 have nothing else. */
void refusal_of_sentence(struct refusal *r, const char *sentence);

#endif
