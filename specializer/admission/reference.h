/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - what an input should give: eager's outputs and the oracle's. */
#ifndef WHET_SPECIALIZER_ADMISSION_REFERENCE_H
#define WHET_SPECIALIZER_ADMISSION_REFERENCE_H

#include "engine/cpu/oracle.h"
#include "specializer/admission/test_case.h"

enum { ROWS_MAX = 4096 };

/* For one content of one case. */
struct reference {
    int32_t rows, row[ROWS_MAX]; /* the tokens that `truth` has */
    struct oracle_out truth;
    float *eager[OUTPUTS];     /* those rows; malloc'ed */
    float *eager_all[OUTPUTS]; /* every row, or NULL */
};

/* Draws the content into the arena, which no kernel may be able to reach any more, and computes, or
 * takes what another probe computed of the very same inputs. */
void reference_open(const struct check_request *q, struct test_case *s, int32_t content,
                    struct reference *ref);
void reference_close(struct reference *ref);
/* The rows of `all` that `truth` has; malloc'ed. */
float *reference_rows(const struct reference *ref, const float *all, int32_t cols);

/* What every reference depends on beside its inputs: this program, eager's library of products, the
 * model and its file. */
uint64_t reference_key(const struct model *model);

#endif
