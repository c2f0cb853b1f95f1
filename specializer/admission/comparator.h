/* SPDX-License-Identifier: Apache-2.0 */
/* comparator.h - how wrong may a kernel be? Compared with the oracle, by the measure of eager.
 *
 * A comparison gathers the outputs of many runs. Each is compared row by row with the oracle and
 * with the eager kernel on the same inputs. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_COMPARATOR_H
#define WHET_SPECIALIZER_ADMISSION_COMPARATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "specializer/candidate/numerics.h"

struct rule {
    double factor;            /* times eager's own error: 2 */
    enum precision precision; /* declared, as far as numerics allows it */
    bool bit_equal;           /* identical bits to eager demanded */
    bool exact;               /* identical values to the oracle demanded (integer inputs) */
};

/* Rows of one output of one run. `row` i of all three is the same token. */
struct outcome {
    int32_t rows, cols;
    const float *own, *eager;
    const double *truth;
    const double *scores; /* [rows], of attention: as in struct device_outcome; or NULL */
};

/* Worst values over everything judged. Errors are relative to the row: max |a - b| / max |truth|
 * and rms(a - b) / rms(truth). */
struct comparison {
    double own_max, own_rms, eager_max, eager_rms;
    double ratio;   /* largest share of the limit used up; above 1 is a refusal */
    bool bit_equal; /* own and eager had the same bits in everything judged */
    double times;   /* eager's error is what the refused one's is; 0: refused for something else */
};
void comparison_start(struct comparison *j);
/* What a declared precision may add to the largest and to the rms error of a row. */
double precision_max(enum precision p);
double precision_rms(enum precision p);
/* 0, or -1 with what is wrong: "row 3: 12 values not finite", "row 0: error 4.1 times eager's". */
int compare(struct comparison *j, const struct rule *rule, const struct outcome *o,
            struct err *err);
/* The rows of a wide step that the oracle did not look at, against eager alone (`truth` unused;
 * `eager` NULL: only whether they are finite): they may be as far from it as both may be from the
 * truth. After compare() on the rows that it did look at. */
int compare_rest(struct comparison *j, const struct rule *rule, const struct outcome *o,
                 struct err *err);

#endif
