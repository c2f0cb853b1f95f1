/* SPDX-License-Identifier: Apache-2.0 */
/* check_rows.h - a few tokens of a large step as a step of their own.
 *
 * The oracle takes a nanosecond a multiply-add; for wide steps only some tokens are compared with
 * it. In every region a token's output depends on its own row alone (attention: on its own
 * positions), so the chosen tokens make a smaller argument struct with the same results.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_CHECK_ROWS_H
#define WHET_SPECIALIZER_ADMISSION_CHECK_ROWS_H

#include "engine/cpu/bind.h"

struct row_set {
    union region_args args; /* outputs NULL, but attn: `a` is a buffer of n rows */
    void *memory[4];
};

/* `row[n]` are tokens of `args`. */
void row_set_open(struct row_set *s, const struct model *model, enum region r, const void *args,
                  const int32_t *row, int32_t n);
void row_set_close(struct row_set *s);

/* Up to `most` of m tokens: both ends, what lies around powers of two, then by chance. Rising. */
int32_t row_set_choose(int32_t m, int32_t most, uint64_t seed, int32_t *row);

#endif
