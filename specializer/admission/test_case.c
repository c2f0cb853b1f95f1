/* SPDX-License-Identifier: Apache-2.0 */
/* test_case.c - inputs that can be restored, outputs that are kept and judged.
 *
 * Judging comes after the fact, when no kernel can see this process any more (reference.c says what
 * the outputs should be). A run whose outputs have the bits of one that was judged needs no second
 * look, which is the common case: teams of all sizes usually agree.
 */
#include "specializer/admission/test_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/admission/reference.h"
#include "specializer/candidate/hash.h"

/* ---- inputs --------------------------------------------------------------------------------- */

uint64_t test_case_seed(const struct test_case *s, int32_t content)
{
    return hash_mix(s->seed + (uint64_t)content) | 1;
}

/* Second contents are of another kind where that is a surprise, but stay exact for bits. */
static enum fill second_fill(enum fill first)
{
    return first == FILL_BITS || first == FILL_NORMAL ? first : FILL_NORMAL;
}

void test_case_fill(struct test_case *s, int32_t content)
{
    if (s->plan->capture || s->filled == content)
        return;
    s->filled = content;
    case_refill(s->c, content ? second_fill(s->plan->fill) : s->plan->fill,
                test_case_seed(s, content));
}

void test_case_open(struct test_case *s, const struct check_request *q, const struct planned *p,
                    int32_t index)
{
    memset(s, 0, sizeof *s);
    s->plan = p;
    s->last = -1;
    s->seed = q->seed + 2 * (uint64_t)index;
    s->c = p->capture ? case_captured(q->model, p->capture, true)
                      : case_random(q->model, &p->shape, p->fill, p->random_params, true,
                                    test_case_seed(s, 0));
}

void run_drop(struct run *run)
{
    for (int i = 0; i < OUTPUTS; i++)
        free(run->out[i]);
}

void test_case_close(struct test_case *s)
{
    case_free(s->c);
    for (int i = 0; i < 3; i++)
        guarded_close(&s->packed[i]);
    for (int32_t r = 0; r < s->runs; r++)
        run_drop(&s->run[r]);
}

bool same_bits(const struct test_case *s, const struct run *a, const struct run *b, int i)
{
    return memcmp(a->out[i], b->out[i], (size_t)s->rows[i] * (size_t)s->cols[i] * 4) == 0;
}

void test_case_read(struct test_case *s, struct run *run)
{
    for (int i = 0; i < OUTPUTS; i++) {
        run->out[i] = NULL;
        if (!case_output(s->c, i, &s->rows[i], &s->cols[i], &run->out[i]))
            s->rows[i] = 0;
    }
}

/* ---- judging -------------------------------------------------------------------------------- */

static bool exact_region(enum region r)
{
    return r == REGION_ATTN_OUT || r == REGION_MLP_OUT || r == REGION_EMBED;
}

static int compare_run(const struct test_case *s, const struct run *run,
                       const struct reference *ref, struct rule rule, struct check_result *result,
                       struct err *err)
{
    const struct planned *p = s->plan;
    rule.exact = p->fill == FILL_BITS && p->random_params && exact_region(p->shape.region) &&
                 rule.precision == PRECISION_F32;
    double before = result->comparison.ratio;
    int rc = 0;
    for (int i = 0; rc == 0 && i < ref->truth.outputs; i++) {
        struct outcome all = {s->rows[i], s->cols[i], run->out[i], ref->eager_all[i], NULL};
        float *own = reference_rows(ref, run->out[i], s->cols[i]);
        struct outcome few = {ref->rows, s->cols[i], own, ref->eager[i],
                              ref->truth.output[i].value};
        rc = compare(&result->comparison, &rule, &few, err);
        if (rc == 0 && ref->rows < s->rows[i])
            rc = compare_rest(&result->comparison, &rule, &all, err);
        free(own);
        if (rc != 0 && ref->truth.outputs > 1)
            err_prefix(err, "output %c", "qkv"[i]);
    }
    if (result->comparison.ratio > before)
        snprintf(result->worst, sizeof result->worst, "%s, team of %d", p->label, run->size);
    if (rc == 0)
        return 0;
    snprintf(result->wrong, sizeof result->wrong, "%s, team of %d", p->label, run->size);
    return err_prefix(err, "%s", result->wrong);
}

/* Runs whose outputs have the bits of an earlier run with the same input need no second look. */
static bool compared_before(const struct test_case *s, int32_t r)
{
    for (int32_t j = 0; j < r; j++) {
        bool same = s->run[j].content == s->run[r].content;
        for (int i = 0; same && i < OUTPUTS; i++)
            same = !s->run[r].out[i] || same_bits(s, &s->run[j], &s->run[r], i);
        if (same)
            return true;
    }
    return false;
}

int test_case_compare(struct test_case *s, const struct check_request *q,
                      struct check_result *result, struct err *err)
{
    int rc = 0;
    for (int32_t content = 0; rc == 0 && content < 2; content++) {
        struct reference ref;
        bool open = false;
        for (int32_t r = 0; rc == 0 && r < s->runs; r++) {
            if (s->run[r].content != content || compared_before(s, r))
                continue;
            if (!open)
                reference_open(q, s, content, &ref);
            open = true;
            rc = compare_run(s, &s->run[r], &ref, q->rule, result, err);
        }
        if (open)
            reference_close(&ref);
    }
    return rc;
}
