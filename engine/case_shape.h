/* SPDX-License-Identifier: Apache-2.0 */
/* case_shape.h - what a test case of a region is, whatever device it runs on: its size, and how its
 * inputs are drawn. */
#ifndef WHET_ENGINE_CASE_SHAPE_H
#define WHET_ENGINE_CASE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/plan.h"

/* How random inputs are drawn. */
enum fill {
    FILL_NORMAL,  /* mean 0, deviation 1 */
    FILL_SMALL,   /* deviation 1e-4 */
    FILL_LARGE,   /* deviation 100 */
    FILL_SHIFTED, /* mean 50, deviation 0.1 */
    FILL_OUTLIER, /* normal with one channel at 1000x */
    FILL_ZERO,
    FILL_DENORMAL,
    FILL_BITS, /* 0 or 1 */
    FILL_COUNT
};

struct case_shape {
    enum region region;
    int32_t layer, m;
    int32_t sequences; /* attn, attn_in: tokens are spread over this many sequences */
    int32_t context;   /* longest context; ragged: the others are shorter */
    bool ragged, permuted_pages;
};

#endif
