/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - everything a kernel must get right before it may run inside the server.
 *
 * The probe's part of docs/specializer.md (Admission), on CPU kernels: all but the whole model's
 * logits (endcheck.h). Runs in the probe process.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_CHECK_H
#define WHET_SPECIALIZER_ADMISSION_CHECK_H

#include "specializer/admission/check_plan.h"
#include "specializer/admission/comparator.h"

struct check_request {
    const struct model *model;
    const char *object;
    struct check_range range;
    int32_t threads;   /* of the team that will run it */
    int32_t ranks;     /* that will meet in a kernel of reduce (check_reduce.h) */
    bool must_seal;    /* a language model wrote it: nothing of it is called unsealed, */
    int64_t pack_most; /* and its packed weights, all layers together, take no more bytes */
    bool full;         /* false: the handful of cases that a restored winner must pass again */
    struct rule rule;
    unsigned risk; /* what the adviser warned about: these cases come first */
    const struct capture *const *captured;
    int captures;
    uint64_t seed;
    const char
        *references; /* folder of reference_cache.h; or NULL: nothing is kept between probes */
};

struct check_result {
    struct comparison comparison;
    int32_t cases, runs;
    bool sealed;    /* seccomp was in force */
    char worst[96]; /* the case that came closest to a limit */
    char wrong[96]; /* the case whose outputs were refused; "": none was */
};

/* 0 passed, -1 refused; err->msg says in which case what happened. */
int check_kernel(const struct check_request *q, struct check_result *result, struct err *err);

#endif
