/* SPDX-License-Identifier: Apache-2.0 */
/* test_case.h - one case on its way through the admission: inputs, outputs of its runs,
 * verdict.
 *
 * The arena and the running belong to check.c; judging happens when no kernel
 * can see this process any more.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_TEST_CASE_H
#define WHET_SPECIALIZER_ADMISSION_TEST_CASE_H

#include "engine/cpu/guarded.h"
#include "specializer/admission/check.h"

/* The most outputs that a region has (q, k, v), and the runs of a case whose outputs are kept: all
 * of check.c's but the repetitions of the first. */
enum { OUTPUTS = 3, RUNS = 4 };
/* Multiply-adds that the oracle may spend on one input of a case. */
static const double work_a_case = 4e7;

/* Outputs of one call. */
struct run {
    int32_t content, size; /* which of the case's two inputs, threads */
    float *out[OUTPUTS];
};

struct test_case {
    const struct planned *plan;
    struct kernel_case *c;
    uint64_t seed;
    struct guarded packed[3];
    int32_t rows[OUTPUTS], cols[OUTPUTS];
    struct run run[RUNS];
    int32_t runs;
    int32_t last;   /* the run whose outputs are still in the arena; -1: none */
    int32_t filled; /* which content the inputs hold; -1: who knows */
};

/* `index` is the case's place in the plan: its inputs follow from it and the request's seed. */
void test_case_open(struct test_case *s, const struct check_request *q, const struct planned *p,
                    int32_t index);
void test_case_close(struct test_case *s);
/* Content 0 is what the plan says, 1 another draw. Captured inputs stay what they are, and so do
 * those that hold that content already. */
void test_case_fill(struct test_case *s, int32_t content);
uint64_t test_case_seed(const struct test_case *s, int32_t content);
/* The outputs now in the arena. */
void test_case_read(struct test_case *s, struct run *run);
void run_drop(struct run *run);
bool same_bits(const struct test_case *s, const struct run *a, const struct run *b, int i);

/* Compares every run kept with eager and the oracle on the same inputs. 0, or -1 with the case and
 * what was wrong. */
int test_case_compare(struct test_case *s, const struct check_request *q,
                      struct check_result *result, struct err *err);
#endif
