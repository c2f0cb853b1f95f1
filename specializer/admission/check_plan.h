/* SPDX-License-Identifier: Apache-2.0 */
/* check_plan.h - which inputs a kernel must survive: the list of cases of one admission. */
#ifndef WHET_SPECIALIZER_ADMISSION_CHECK_PLAN_H
#define WHET_SPECIALIZER_ADMISSION_CHECK_PLAN_H

#include "engine/cpu/case.h"
#include "specializer/candidate/candidate.h"

/* Cases of a full admission at most, and of a restored winner's short one: the object is the very
 * file that passed them all, so this asks whether machine and model are still what they were. */
enum { PLAN_MAX = 64, PLAN_SHORT = 4, PLAN_SHORT_HEAD = 2 };

/* What the slot serves: m in [m_from, m_to]; attn: longest contexts up to `context`. */
struct check_range {
    enum region region;
    int32_t m_from, m_to, context;
    const struct format_class *formats; /* of its layers; NULL: all */
};

struct planned {
    struct case_shape shape;
    enum fill fill;
    bool random_params;
    const struct capture *capture; /* or NULL: seeded */
    char label[64];                /* "m=3 outlier", "m=4 normal, context 17 ragged" */
};

/* Multiply-adds of one row of the region's output, about; attention at `context`. */
double plan_row_work(const struct model *model, enum region r, int32_t context);

/* Fills `out`, most telling first; returns how many. `full` false: PLAN_SHORT of them, real weights
 * only for the head. `risk` (enum risk) moves the cases that look for it to the front; it never
 * drops one. */
int check_plan(const struct model *model, const struct check_range *range,
               const struct capture *const *captured, int captures, bool full, unsigned risk,
               struct planned out[PLAN_MAX]);

#endif
