/* check_subject.c - inputs that can be restored, outputs that are kept, and what they should be.
 *
 * References are computed after the fact: the arena is filled again with what the kernel was given
 * (filling is repeatable from the seed), eager runs in it, and the oracle computes from the inputs
 * alone. A run whose outputs have the bits of one that was judged needs no second look, which is
 * the common case: teams of all sizes usually agree.
 *
 * The oracle takes about a nanosecond a multiply-add. Where all rows of a case would take too long,
 * it sees some of them (check_rows.c), and the others are compared with eager.
 */
#include "specializer/admission/check_subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/eager.h"
#include "engine/cpu/oracle.h"
#include "specializer/admission/check_rows.h"
#include "specializer/hash.h"

enum { ROWS_MAX = 4096 };
static const double work_of_eager = 4e9; /* beyond it eager, too, sees only the chosen rows */

/* ---- inputs --------------------------------------------------------------------------------- */

static uint64_t content_seed(const struct subject *s, int32_t content)
{
    return hash_mix(s->seed + (uint64_t)content) | 1;
}

/* Second contents are of another kind where that is a surprise, but stay exact for bits. */
static enum fill second_fill(enum fill first)
{
    return first == FILL_BITS || first == FILL_NORMAL ? first : FILL_NORMAL;
}

void subject_fill(struct subject *s, int32_t content)
{
    if (s->plan->capture || s->filled == content)
        return;
    s->filled = content;
    case_refill(s->c, content ? second_fill(s->plan->fill) : s->plan->fill,
                content_seed(s, content));
}

void subject_open(struct subject *s, const struct check_request *q, const struct planned *p,
                  int32_t index)
{
    memset(s, 0, sizeof *s);
    s->plan = p;
    s->last = -1;
    s->seed = q->seed + 2 * (uint64_t)index;
    s->c = p->capture ? case_captured(q->model, p->capture, true)
                      : case_random(q->model, &p->shape, p->fill, p->random_params, true,
                                    content_seed(s, 0));
}

void run_drop(struct run *run)
{
    for (int i = 0; i < OUTPUTS; i++)
        free(run->out[i]);
}

void subject_close(struct subject *s)
{
    case_free(s->c);
    for (int i = 0; i < 3; i++)
        guarded_close(&s->packed[i]);
    for (int32_t r = 0; r < s->runs; r++)
        run_drop(&s->run[r]);
}

bool same_bits(const struct subject *s, const struct run *a, const struct run *b, int i)
{
    return memcmp(a->out[i], b->out[i], (size_t)s->rows[i] * (size_t)s->cols[i] * 4) == 0;
}

void subject_read(struct subject *s, struct run *run)
{
    for (int i = 0; i < OUTPUTS; i++) {
        run->out[i] = NULL;
        if (!case_output(s->c, i, &s->rows[i], &s->cols[i], &run->out[i]))
            s->rows[i] = 0;
    }
}

/* ---- references ----------------------------------------------------------------------------- */

static void alone_barrier(const struct team *team)
{
    (void)team;
}

static void run_eager(enum region r, const void *args, int32_t m)
{
    const struct cpu_kernel *e = eager_cpu(r);
    int64_t bytes = e->scratch_bytes ? e->scratch_bytes(m, 1) : 0;
    struct team alone = {0, 1, alone_barrier, xaligned((size_t)(bytes > 0 ? bytes : 64)), NULL};
    e->run(args, &alone);
    free(alone.scratch);
}

/* What one input of a case should give. */
struct reference {
    int32_t rows, row[ROWS_MAX]; /* the tokens that `truth` has */
    struct oracle_out truth;
    float *eager[OUTPUTS];     /* those rows; malloc'ed */
    float *eager_all[OUTPUTS]; /* every row, or NULL */
};

static float *pick_rows(const float *all, const struct reference *ref, int32_t cols)
{
    float *v = xmalloc((size_t)ref->rows * (size_t)cols * sizeof *v + 1);
    for (int32_t i = 0; i < ref->rows; i++)
        memcpy(v + (int64_t)i * cols, all + (int64_t)ref->row[i] * cols, (size_t)cols * sizeof *v);
    return v;
}

static void reference_open(const struct model *model, struct subject *s, int32_t content,
                           struct reference *ref)
{
    const struct case_shape *shape = &s->plan->shape;
    enum region r = shape->region;
    double work = plan_row_work(model, r, shape->context);
    double rows = fmin(fmax(work_a_case / work, 2), ROWS_MAX);
    memset(ref, 0, sizeof *ref);
    ref->rows = row_set_choose(shape->m, (int32_t)rows, content_seed(s, content), ref->row);
    case_poison(s->c);
    s->filled =
        -1; /* the arena was in the hands of a kernel: what it should give is of new inputs */
    subject_fill(s, content);
    case_set_packed(s->c, NULL);
    struct row_set few;
    row_set_open(&few, model, r, case_args(s->c), ref->row, ref->rows);
    oracle_run(r, &few.args, &ref->truth);
    if (r == REGION_ATTN && work * shape->m > work_of_eager) {
        run_eager(r, &few.args, ref->rows);
        size_t bytes = (size_t)ref->rows * (size_t)s->cols[0] * sizeof(float);
        ref->eager[0] = xmalloc(bytes);
        memcpy(ref->eager[0], few.args.attn.a, bytes);
    } else {
        run_eager(r, case_args(s->c), shape->m);
        for (int i = 0; i < OUTPUTS; i++) {
            int32_t m, cols;
            if (!case_output(s->c, i, &m, &cols, &ref->eager_all[i]))
                continue;
            ref->eager[i] = pick_rows(ref->eager_all[i], ref, cols);
        }
    }
    row_set_close(&few);
}

static void reference_close(struct reference *ref)
{
    oracle_free(&ref->truth);
    for (int i = 0; i < OUTPUTS; i++) {
        free(ref->eager[i]);
        free(ref->eager_all[i]);
    }
}

static bool exact_region(enum region r)
{
    return r == REGION_ATTN_OUT || r == REGION_MLP_OUT || r == REGION_EMBED;
}

static int judge_run(const struct subject *s, const struct run *run, const struct reference *ref,
                     struct rule rule, struct check_result *result, struct err *err)
{
    const struct planned *p = s->plan;
    rule.exact = p->fill == FILL_BITS && p->random_params && exact_region(p->shape.region) &&
                 rule.precision == PRECISION_F32;
    double before = result->judgement.ratio;
    int rc = 0;
    for (int i = 0; rc == 0 && i < ref->truth.outputs; i++) {
        struct outcome all = {s->rows[i], s->cols[i], run->out[i], ref->eager_all[i], NULL};
        float *own = pick_rows(run->out[i], ref, s->cols[i]);
        struct outcome few = {ref->rows, s->cols[i], own, ref->eager[i],
                              ref->truth.output[i].value};
        rc = judge(&result->judgement, &rule, &few, err);
        if (rc == 0 && ref->rows < s->rows[i])
            rc = judge_rest(&result->judgement, &rule, &all, err);
        free(own);
        if (rc != 0 && ref->truth.outputs > 1)
            err_prefix(err, "output %c", "qkv"[i]);
    }
    if (result->judgement.ratio > before)
        snprintf(result->worst, sizeof result->worst, "%s, team of %d", p->label, run->size);
    return rc == 0 ? 0 : err_prefix(err, "%s, team of %d", p->label, run->size);
}

/* Runs whose outputs have the bits of an earlier run with the same input need no second look. */
static bool judged_before(const struct subject *s, int32_t r)
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

int subject_judge(struct subject *s, const struct check_request *q, struct check_result *result,
                  struct err *err)
{
    int rc = 0;
    for (int32_t content = 0; rc == 0 && content < 2; content++) {
        struct reference ref;
        bool open = false;
        for (int32_t r = 0; rc == 0 && r < s->runs; r++) {
            if (s->run[r].content != content || judged_before(s, r))
                continue;
            if (!open)
                reference_open(q->model, s, content, &ref);
            open = true;
            rc = judge_run(s, &s->run[r], &ref, q->rule, result, err);
        }
        if (open)
            reference_close(&ref);
    }
    return rc;
}
