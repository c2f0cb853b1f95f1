/* SPDX-License-Identifier: Apache-2.0 */
/* bad_rows.h - the planted kernels of tests/device/bad, and what must notice each: in the harness
 * of its own that asks what admission asks (test_bad.c), and in admission itself
 * (test_bad_probe.c). */
#ifndef WHET_TESTS_DEVICE_BAD_ROWS_H
#define WHET_TESTS_DEVICE_BAD_ROWS_H

#include "engine/model.h"
#include "engine/plan.h"

enum { BUCKET = 8 };

static const struct model_shape shape = {ARCH_LLAMA, 2,     512,   8,    2, 64, 1024,
                                         1000,       40960, 1e-5f, 1e5f, 1, 0,  {0}};

static const struct row {
    const char *name;
    enum region region;
    const char *word;  /* of the reason of the first; NULL: it must pass */
    const char *probe; /* of the second's */
} row[] = {
    {"good_out", REGION_MLP_OUT, NULL, NULL},
    {"good_attn", REGION_ATTN, NULL, NULL},
    {"missing_wait", REGION_MLP_OUT, "late", "other bits"},
    {"late_wait", REGION_MLP_OUT, "late", "other bits"},
    {"attn_without_wait", REGION_ATTN, "late", "other bits"},
    {"shared_race", REGION_MLP_OUT, "", "other bits"},
    {"not_repeatable", REGION_MLP_OUT, "other bits", "other bits"},
    {"missing_tail_row", REGION_MLP_OUT, "not written", "not written"},
    {"only_m1", REGION_MLP_OUT, "row 1", "row 1"},
    {"stale_output", REGION_MLP_OUT, "not written", "other bits"},
    {"caches_by_pointer", REGION_MLP_OUT, "other contents", "error"},
    {"wrong_page", REGION_ATTN, "context", ""},
    {"ignores_last_page", REGION_ATTN, "context 17", "error"},
    {"cut_halves", REGION_ATTN, "in bf16", "in bf16"},
    {"only_floats", REGION_ATTN, "in bf16", "in bf16"},
    {"bf16_accumulate", REGION_MLP_OUT, "error", "error"},
    {"fp16_accumulate", REGION_MLP_OUT, "error", "error"},
    {"small_inputs_only", REGION_MLP_OUT, "outlier", "outlier"},
    {"nan_on_zero", REGION_MLP_OUT, "zero", ""},
    {"reads_past_end", REGION_MLP_OUT, "not finite", "not finite"},
    {"reads_far_away", REGION_MLP_OUT, "illegal", "illegal"},
    {"writes_past_end", REGION_MLP_OUT, "wrote after its output", "wrote outside"},
    {"overwrites_input", REGION_MLP_OUT, "changed its input", "changed its inputs"},
    {"leaves_counter", REGION_MLP_OUT, "counter", "counters"},
    {"hangs", REGION_MLP_OUT, "hang", "hang"},
    {"sleeps", REGION_MLP_OUT, "hang", "hang"},
};

/* What is planted in bad/reduce.cuh, by its number, for two ranks; an early flag is a race, which
 * a cleaning that leaves words gives away in any case. */
static const struct row ranks_row[] = {
    {"nothing", REGION_REDUCE, NULL, NULL},
    {"no_wait", REGION_REDUCE, NULL, "element"},
    {"one_turn", REGION_REDUCE, NULL, "place is used too early or too late"},
    {"own_count", REGION_REDUCE, NULL, "round"},
    {"no_clean", REGION_REDUCE, NULL, "which cleans, left"},
    {"residual_first", REGION_REDUCE, NULL, "in the order of ranks"},
    {"own_first", REGION_REDUCE, NULL, "in the order of ranks"},
    {"short", REGION_REDUCE, NULL, "in the order of ranks"},
    {"past_end", REGION_REDUCE, NULL, "behind its output"},
    {"spins", REGION_REDUCE, NULL, "hang"},
    {"strays", REGION_REDUCE, NULL, "wrote to way 1"},
    {"early_read", REGION_REDUCE, NULL, "element"},
    {"early_flag", REGION_REDUCE, NULL, "round"},
    {"last_block", REGION_REDUCE, NULL, "has count"},
};

#endif
