/* SPDX-License-Identifier: Apache-2.0 */
/* check_reduce.h - what a kernel of reduce must get right before ranks may meet in it: check.h's
 * part for the region that no rank computes by itself. Runs in the probe process; CPU kernels.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_CHECK_REDUCE_H
#define WHET_SPECIALIZER_ADMISSION_CHECK_REDUCE_H

#include "specializer/admission/check.h"

/* Ranks of a probe at most: a larger world is probed with so many. */
enum { CHECK_RANKS_MOST = 4 };

/* For a world of q->ranks, or of two. check_kernel() does it for that region: 0 passed, -1 refused.
 * Bits are compared, whatever q->rule says. */
int check_reduce(const struct check_request *q, struct check_result *result, struct err *err);

#endif
