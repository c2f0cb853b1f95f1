/* SPDX-License-Identifier: Apache-2.0 */
/* witness.c - many inputs, the original's bits, and the distance to the truth.
 *
 * Every case is run with several teams; ranks are held back in half of these runs and the scratch
 * holds something else each time, so a mutant without its barrier or with unset memory has its
 * chance. The comparison is made run by run: some kernels add in an order that depends on the team.
 *
 * A mutant is wrong if in any case its error (rms over all rows, each relative to its row) is more
 * than twice the original's, or its largest more than four times; for inputs of 0 and 1 with whole
 * weights, if it misses an exact result that the original has.
 */
#include "tests/kernels/mutants/witness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/case_random.h"
#include "engine/cpu/oracle.h"
#include "specializer/admission/runner.h"

enum { GROUPS = 2, CASES = GROUPS * RUNNER_CASES_MAX, OUTPUTS = 3, TEAM_MOST = 5 };

static const struct {
    int32_t size;
    uint32_t scratch;
    bool skewed;
} runs[] = {{2, 0xffffffff, false},
            {1, 0x7f000001, false},
            {3, 0x3f8ccccd, true},
            {5, 0xc2f70000, true},
            {2, 0x00000000, true}};
enum { RUNS = sizeof runs / sizeof *runs };

struct look {
    struct kernel_case *c;
    struct guarded packed[3];
    char label[80];
    bool exact;
    int32_t m, rows[OUTPUTS], cols[OUTPUTS];
    float *out[RUNS][OUTPUTS]; /* the original's */
    struct oracle_out truth;
    bool has_truth;
};

struct witness {
    const struct model *model;
    struct check_range range;
    struct look look[CASES];
    int32_t n;
    uint64_t skews;
};

/* ---- inputs --------------------------------------------------------------------------------- */

static struct case_shape draw_shape(const struct check_range *range, struct random *r)
{
    int32_t span = range->m_to - range->m_from + 1;
    struct case_shape s = {.region = range->region, .m = range->m_from + random_below(r, span)};
    s.sequences = 1 + random_below(r, s.m);
    s.context = 1 + random_below(r, range->context > 0 ? range->context : 4 * KV_PAGE);
    if (random_below(r, 3) == 0) /* around a page's border */
        s.context = KV_PAGE * (1 + random_below(r, 3)) - 1 + random_below(r, 3);
    if (s.context < s.m)
        s.context = s.m;
    s.ragged = random_below(r, 2);
    s.permuted_pages = random_below(r, 4) > 0;
    return s;
}

static void add(struct witness *w, struct random *r)
{
    struct look *k = &w->look[w->n];
    struct case_shape s = draw_shape(&w->range, r);
    enum fill fill = w->n % 3 == 0 ? FILL_NORMAL : (enum fill)(w->n % FILL_COUNT);
    bool random_params = w->n % 2 == 0 || s.region == REGION_ATTN;
    if (!random_params && s.region != REGION_HEAD)
        s.layer = random_below(r, w->model->shape.layers);
    k->c = case_random(w->model, &s, fill, random_params, true, random_u64(r) | 1);
    k->m = s.m;
    k->exact = fill == FILL_BITS && random_params &&
               (s.region == REGION_ATTN_OUT || s.region == REGION_MLP_OUT);
    snprintf(k->label, sizeof k->label, "m=%d %s%s, context %d x%d%s", s.m, fill_name(fill),
             random_params ? "" : " real weights", s.context, s.sequences,
             s.ragged ? " ragged" : "");
    w->n++;
}

/* ---- one object ----------------------------------------------------------------------------- */

struct session {
    struct witness *w;
    const char *object;
    struct kernel_case *cases[RUNNER_CASES_MAX];
    int32_t from, n;
    struct guarded scratch;
};

static struct runner *open_runner(struct session *s, struct err *err)
{
    struct runner_options o = {.object = s->object,
                               .cases = s->cases,
                               .n = s->n,
                               .team_max = TEAM_MOST,
                               .scratch = s->scratch.map ? &s->scratch : NULL,
                               .watchdog_s = 0.5};
    return runner_open(&o, err);
}

/* What a call may need at most, and packed weights for every case of the group. */
static int prepare(struct session *s, struct err *err)
{
    struct runner *r = open_runner(s, err);
    if (!r)
        return -1;
    const struct runner_facts facts = *runner_facts(r);
    int64_t most = 0;
    int rc = facts.region == (int32_t)s->w->range.region && facts.m_max >= s->w->range.m_to
                 ? 0
                 : err_set(err, "says that it computes something else");
    for (int32_t m = s->w->range.m_from; rc == 0 && m <= s->w->range.m_to; m++)
        for (int i = 0; rc == 0 && i < RUNS; i++) {
            int64_t bytes = runner_scratch(r, m, runs[i].size, err);
            most = bytes > most ? bytes : most;
            rc = bytes < 0 ? -1 : 0;
        }
    runner_close(r);
    if (rc == 0 && most > 0)
        guarded_open(&s->scratch, (size_t)((most + 63) / 64 * 64), true);
    for (int32_t i = 0; rc == 0 && facts.packs && i < s->n; i++) {
        struct weight *weight[3];
        int n = case_weights(s->cases[i], weight);
        for (int j = 0; j < n; j++)
            if (facts.packed_bytes[j] > 0)
                guarded_open(&s->w->look[s->from + i].packed[j], (size_t)facts.packed_bytes[j],
                             true);
    }
    return rc;
}

static int pack(struct session *s, struct err *err)
{
    struct runner *r = open_runner(s, err);
    int rc = r ? 0 : -1;
    for (int32_t i = 0; rc == 0 && i < s->n; i++) {
        struct guarded *g = s->w->look[s->from + i].packed;
        for (int j = 0; rc == 0 && j < 3; j++)
            if (g[j].map) {
                rc = runner_pack(r, i, j, true, g[j].data, err);
                if (rc == 0 && !guarded_intact(&g[j]))
                    rc = err_set(err, "packed outside its buffer");
            }
        const void *packed[3] = {g[0].data, g[1].data, g[2].data};
        case_set_packed(s->cases[i], packed);
    }
    runner_close(r);
    return rc;
}

static void unpack(struct session *s)
{
    for (int32_t i = 0; i < s->n; i++) {
        case_set_packed(s->cases[i], NULL);
        for (int j = 0; j < 3; j++)
            guarded_close(&s->w->look[s->from + i].packed[j]);
        memset(s->w->look[s->from + i].packed, 0, sizeof s->w->look[0].packed);
    }
    guarded_close(&s->scratch);
    memset(&s->scratch, 0, sizeof s->scratch);
}

/* ---- errors --------------------------------------------------------------------------------- */

static const double unit = 0x1p-24, vanishing = 1e-30;

struct distance {
    double rms, max;
};

static struct distance distance_of(const float *v, const double *truth, int32_t rows, int32_t cols)
{
    struct distance d = {0, 0};
    for (int32_t i = 0; i < rows; i++) {
        double sum = 0, size = 0, top = vanishing, worst = 0;
        for (int32_t j = 0; j < cols; j++) {
            double t = truth[(int64_t)i * cols + j], e = fabs(v[(int64_t)i * cols + j] - t);
            sum += e * e;
            size += t * t;
            top = fmax(top, fabs(t));
            worst = fmax(worst, e);
        }
        d.rms += sum / fmax(size, vanishing * vanishing * cols);
        d.max = fmax(d.max, worst / top);
    }
    d.rms = sqrt(d.rms / rows);
    return d;
}

static enum change judge_output(struct look *k, int run, int i, const float *own, struct err *what)
{
    int64_t n = (int64_t)k->rows[i] * k->cols[i];
    const float *original = k->out[run][i];
    if (memcmp(own, original, (size_t)n * sizeof *own) == 0)
        return CHANGE_NONE;
    for (int64_t j = 0; j < n; j++)
        if (!isfinite(own[j])) {
            err_set(what, "row %d: not written or not finite", (int)(j / k->cols[i]));
            return CHANGE_WRONG;
        }
    if (!k->has_truth) {
        oracle_run(case_region(k->c), case_args(k->c), &k->truth);
        k->has_truth = true;
    }
    const double *truth = k->truth.output[i].value;
    for (int64_t j = 0; k->exact && j < n; j++)
        if (own[j] != truth[j] && original[j] == truth[j]) {
            err_set(what, "%.9g where %.9g is exact", (double)own[j], truth[j]);
            return CHANGE_WRONG;
        }
    struct distance mine = distance_of(own, truth, k->rows[i], k->cols[i]);
    struct distance its = distance_of(original, truth, k->rows[i], k->cols[i]);
    if (mine.rms <= 2 * its.rms + 2 * unit && mine.max <= 4 * its.max + 16 * unit)
        return CHANGE_ROUNDING;
    err_set(what, "rms error %.2g against %.2g, largest %.2g against %.2g", mine.rms, its.rms,
            mine.max, its.max);
    return CHANGE_WRONG;
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* Runs case `i` of the group as runs[run] says; outputs are the caller's to free. */
static int run_case(struct session *s, struct runner *r, int32_t i, int run, float *out[OUTPUTS],
                    struct err *err)
{
    struct look *k = &s->w->look[s->from + i];
    memset(out, 0, OUTPUTS * sizeof *out);
    case_poison(k->c);
    const struct runner_call call = {.at = i,
                                     .m = k->m,
                                     .size = runs[run].size,
                                     .scratch_fill = runs[run].scratch,
                                     .skew = runs[run].skewed ? ++s->w->skews * 977 | 1 : 0};
    if (runner_call(r, &call, err) != 0)
        return -1;
    const char *damage = case_damage(k->c);
    if (damage)
        return err_set(err, "%s", damage);
    for (int o = 0; o < OUTPUTS; o++)
        if (!case_output(k->c, o, &k->rows[o], &k->cols[o], &out[o]))
            out[o] = NULL;
    return 0;
}

static void drop(float *out[OUTPUTS])
{
    for (int o = 0; o < OUTPUTS; o++)
        free(out[o]);
}

/* The group's cases in every run. `keep`: this is the original. Returns what was found at worst. */
static enum change run_group(struct session *s, bool keep, struct err *what)
{
    enum change worst = CHANGE_NONE;
    struct runner *r = open_runner(s, what);
    if (!r)
        return CHANGE_WRONG;
    for (int run = 0; run < RUNS && worst != CHANGE_WRONG; run++)
        for (int32_t i = 0; i < s->n && worst != CHANGE_WRONG; i++) {
            struct look *k = &s->w->look[s->from + i];
            float *own[OUTPUTS];
            if (run_case(s, r, i, run, own, what) != 0)
                worst = CHANGE_WRONG;
            for (int o = 0; o < OUTPUTS && own[o] && worst != CHANGE_WRONG; o++) {
                enum change c = keep ? CHANGE_NONE : judge_output(k, run, o, own[o], what);
                worst = c > worst ? c : worst;
            }
            if (worst == CHANGE_WRONG)
                err_prefix(what, "%s, team of %d", k->label, runs[run].size);
            if (keep && worst != CHANGE_WRONG)
                memcpy(k->out[run], own, sizeof own);
            else
                drop(own);
        }
    runner_close(r);
    return worst;
}

static enum change run_all(struct witness *w, const char *object, bool keep, struct err *what)
{
    enum change worst = CHANGE_NONE;
    for (int32_t from = 0; from < w->n && worst != CHANGE_WRONG; from += RUNNER_CASES_MAX) {
        struct session s = {.w = w, .object = object, .from = from};
        s.n = w->n - from < RUNNER_CASES_MAX ? w->n - from : RUNNER_CASES_MAX;
        for (int32_t i = 0; i < s.n; i++)
            s.cases[i] = w->look[from + i].c;
        enum change c = CHANGE_WRONG;
        if (prepare(&s, what) == 0 && pack(&s, what) == 0)
            c = run_group(&s, keep, what);
        worst = c > worst ? c : worst;
        unpack(&s);
    }
    return worst;
}

struct witness *witness_open(const struct model *model, const struct check_range *range,
                             const char *object, uint64_t seed, struct err *err)
{
    struct witness *w = xcalloc(1, sizeof *w);
    struct random r = {seed * 0x9e3779b97f4a7c15 + 0xa11ce};
    w->model = model;
    w->range = *range;
    while (w->n < CASES)
        add(w, &r);
    if (run_all(w, object, true, err) == CHANGE_WRONG) {
        witness_close(w);
        return NULL;
    }
    return w;
}

enum change witness_look(struct witness *w, const char *object, struct err *what)
{
    what->msg[0] = 0;
    return run_all(w, object, false, what);
}

void witness_close(struct witness *w)
{
    if (!w)
        return;
    for (int32_t i = 0; i < w->n; i++) {
        for (int run = 0; run < RUNS; run++)
            drop(w->look[i].out[run]);
        if (w->look[i].has_truth)
            oracle_free(&w->look[i].truth);
        case_free(w->look[i].c);
    }
    free(w);
}
