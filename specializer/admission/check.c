/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - the admission: cases, runs, then references.
 *
 * Cases go through in groups. For each group a fresh runner (runner.c) is forked, and its kernel
 * meets the group's cases in four passes, so that every call follows one with other data:
 *
 *   0  all cases, real team size, scratch full of NaN         -> outputs kept
 *   1  the same pointers with other contents, a team of 2     -> a cache keyed by address shows
 *   2  the first contents 3 to 7 times more, other scratch, ranks delayed -> the bits of pass 0
 *   3  teams of 1 and 3                                        -> splits that do not divide
 *
 * Before every call outputs are NaN; after every call walls, bands, foreign KV positions and inputs
 * are looked at; before a case's arena is poisoned again its outputs must still be those that were
 * read after the call. Only when the group's runner is dead does this process compute what eager
 * and the oracle make of the same inputs (test_case.c), and compare (comparator.c) every output
 * kept. So at no time is an answer in memory that a kernel could reach.
 */
#include "specializer/admission/check.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/admission/check_reduce.h"
#include "specializer/admission/room.h"
#include "specializer/admission/runner.h"
#include "specializer/admission/test_case.h"
#include "specializer/candidate/hash.h"

enum { GROUP = 6, PASSES = 4, CASE_RUNS = 11, LONG_CASE_RUNS = 5 };
static const double work_in_all =
    6e8; /* multiply-adds of the oracle, after the first eight cases */
static const double work_of_long_run = 1e7;
static const int64_t memory_of_group = 256 << 20;

struct check {
    struct check_request own; /* *q without references if the runners are not sealed */
    const struct check_request *q;
    struct check_result *result;
    struct planned plan[PLAN_MAX];
    int32_t plans;
    struct test_case test_case[GROUP];
    struct kernel_case *cases[GROUP];
    int32_t n;
    struct runner_facts facts;
    struct guarded scratch;
    struct runner *runner;
    uint64_t skews;
};

/* ---- what the object says of itself --------------------------------------------------------- */

static int check_facts(struct check *k, struct err *err)
{
    const struct check_range *range = &k->q->range;
    if (k->facts.region != (int32_t)range->region)
        return err_set(err, "computes region %d and is meant for %d", k->facts.region,
                       (int)range->region);
    if (k->facts.m_max < range->m_to)
        return err_set(err, "takes %d tokens at most where the slot has %d", k->facts.m_max,
                       range->m_to);
    return 0;
}

/* The runs of a case in order: the pass that each belongs to, and its team (0: the real size). */
static const struct {
    int8_t pass, team;
} case_run[CASE_RUNS] = {{0, 0}, {1, 2}, {2, 0}, {2, 0}, {2, 0}, {2, 0},
                         {2, 0}, {2, 0}, {2, 0}, {3, 1}, {3, 3}};
enum { LARGEST_OF_THESE = 3 };

static int32_t team_real(const struct check *k)
{
    return k->q->threads < RUNNER_TEAM_MAX ? k->q->threads : RUNNER_TEAM_MAX;
}

static int32_t team_of(const struct check *k, int run)
{
    return case_run[run].team ? case_run[run].team : team_real(k);
}

static int32_t team_most(const struct check *k)
{
    return team_real(k) > LARGEST_OF_THESE ? team_real(k) : LARGEST_OF_THESE;
}

static double watchdog(const struct check *k)
{
    const struct check_range *r = &k->q->range;
    return 1 + plan_row_work(k->q->model, r->region, r->context) * r->m_to * 2e-9;
}

static struct runner *open_runner(struct check *k, struct err *err)
{
    struct runner_options o = {.object = k->q->object,
                               .cases = k->cases,
                               .n = k->n,
                               .team_max = team_most(k),
                               .must_seal = k->q->must_seal,
                               .scratch = k->scratch.map ? &k->scratch : NULL,
                               .watchdog_s = watchdog(k)};
    return runner_open(&o, err);
}

static void open_case(struct check *k, int32_t index)
{
    test_case_open(&k->test_case[k->n], k->q, &k->plan[index], index);
    k->cases[k->n] = k->test_case[k->n].c;
    k->n++;
}

static void close_cases(struct check *k)
{
    while (k->n > 0)
        test_case_close(&k->test_case[--k->n]);
}

static int64_t packed_bytes(const struct check *k)
{
    return k->facts.packed_bytes[0] + k->facts.packed_bytes[1] + k->facts.packed_bytes[2];
}

/* That there is memory for packed weights of one case and scratch, before any of it is taken.
 * Layers of the slot have weights of the same formats and shapes, so a text whose copies of all of
 * them are more than the server may keep would never be loaded. */
static int check_room(const struct check *k, int64_t scratch, struct err *err)
{
    const struct check_range *r = &k->q->range;
    int32_t layers = class_layers(r->formats, r->region, k->q->model->shape.layers);
    int64_t packed = packed_bytes(k);
    if (k->q->must_seal && packed * layers > k->q->pack_most)
        return err_set(err,
                       "asks for %.1f MiB of packed weights in %d layers; specializer.pack_mib "
                       "allows %.1f MiB",
                       (double)packed * layers / 1048576, layers,
                       (double)k->q->pack_most / 1048576);
    return room_for("", packed + scratch, k->q->must_seal, err);
}

/* A first runner: facts, and the most scratch that any planned call can need. The case that it is
 * shown is the first of the first group. */
static int learn_facts(struct check *k, struct err *err)
{
    open_case(k, 0);
    int64_t most = 0;
    struct runner *r = open_runner(k, err);
    int rc = r ? 0 : -1;
    if (r) {
        k->facts = *runner_facts(r);
        k->result->sealed = runner_sealed(r);
        rc = check_facts(k, err);
    }
    for (int32_t i = 0; rc == 0 && i < k->plans; i++) {
        for (int t = 0; rc == 0 && t < CASE_RUNS; t++) {
            int64_t bytes = runner_scratch(r, k->plan[i].shape.m, team_of(k, t), err);
            most = bytes > most ? bytes : most;
            rc = bytes < 0 ? -1 : 0;
        }
    }
    runner_close(r);
    if (rc == 0)
        rc = check_room(k, most, err);
    if (rc == 0 && most > 0)
        guarded_open(&k->scratch, (size_t)((most + 63) / 64 * 64), true);
    return rc;
}

/* ---- packed weights ------------------------------------------------------------------------- */

/* Packs weight `j` of a test case in two parts and in one, as the backend will: the same bytes. */
static int pack_weight(struct check *k, struct runner *r, int32_t at, int j, struct err *err)
{
    struct guarded *to = &k->test_case[at].packed[j];
    uint64_t sum[2];
    for (int whole = 0; whole < 2; whole++) {
        guarded_poison(to);
        if (runner_pack(r, at, j, whole, to->data, err) != 0)
            return -1;
        if (!guarded_intact(to))
            return err_set(err, "pack wrote outside packed_bytes");
        sum[whole] = guarded_checksum(to);
    }
    return sum[0] == sum[1] ? 0
                            : err_set(err,
                                      "pack of weight %d in one call gives other bytes "
                                      "than in two",
                                      j);
}

/* A runner of its own packs the weights of the group; then they become read-only. */
static int pack_group(struct check *k, struct err *err)
{
    if (!k->facts.packs)
        return 0;
    for (int32_t i = 0; i < k->n; i++) {
        struct weight *w[3];
        int n = case_weights(k->cases[i], w);
        for (int j = 0; j < n; j++)
            if (k->facts.packed_bytes[j] > 0)
                guarded_open(&k->test_case[i].packed[j], (size_t)k->facts.packed_bytes[j], true);
    }
    struct runner *r = open_runner(k, err);
    int rc = r ? 0 : -1;
    for (int32_t i = 0; i < k->n; i++) {
        struct test_case *s = &k->test_case[i];
        const void *packed[3] = {NULL, NULL, NULL};
        for (int j = 0; j < 3; j++) {
            if (rc == 0 && s->packed[j].map)
                rc = pack_weight(k, r, i, j, err);
            packed[j] = s->packed[j].data;
            guarded_readonly(&s->packed[j], true);
        }
        case_set_packed(s->c, packed);
    }
    runner_close(r);
    return rc;
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* Outputs that were read once must still be there: nobody may write to them later. */
static int check_survival(struct test_case *s, struct err *err)
{
    if (s->last < 0)
        return 0;
    struct run now = {0};
    int rc = 0;
    test_case_read(s, &now);
    for (int i = 0; i < OUTPUTS; i++) {
        if (rc == 0 && now.out[i] && !same_bits(s, &s->run[s->last], &now, i))
            rc = err_set(err, "a later call changed its outputs");
        free(now.out[i]);
    }
    s->last = -1;
    return rc;
}

static int one_run(struct check *k, int32_t at, int32_t content, const struct runner_call *call,
                   struct run *run, struct err *err)
{
    struct test_case *s = &k->test_case[at];
    if (check_survival(s, err) != 0)
        return -1;
    case_poison(s->c);
    test_case_fill(s, content);
    k->result->runs++;
    if (runner_call(k->runner, call, err) != 0)
        return -1;
    const char *damage = case_damage(s->c);
    if (damage)
        return err_set(err, "%s", damage);
    *run = (struct run){.content = content, .size = call->size};
    test_case_read(s, run);
    return 0;
}

/* A run whose outputs are kept and judged later. */
static int kept_run(struct check *k, int32_t at, int32_t content, const struct runner_call *call,
                    struct err *err)
{
    struct test_case *s = &k->test_case[at];
    assert(s->runs < RUNS);
    if (one_run(k, at, content, call, &s->run[s->runs], err) != 0)
        return -1;
    s->last = s->runs++;
    return 0;
}

/* The first run once more: the same bits are expected, so nothing new is kept. */
static int repeated_run(struct check *k, int32_t at, const struct runner_call *call,
                        struct err *err)
{
    struct test_case *s = &k->test_case[at];
    struct run run;
    int rc = one_run(k, at, 0, call, &run, err);
    if (rc != 0)
        return -1;
    for (int i = 0; rc == 0 && i < OUTPUTS; i++)
        if (run.out[i] && !same_bits(s, &s->run[0], &run, i))
            rc = err_set(err, "the same inputs gave other bits (a race, stale scratch, or state "
                              "kept between calls)");
    s->last = 0;
    run_drop(&run);
    return rc;
}

/* Runs every case of the group once, as pass `pass` does it. */
static int one_pass(struct check *k, int pass, int32_t size, struct err *err)
{
    static const uint32_t scratch[PASSES] = {0xffffffff, 0x7149f2ca, 0x3f800000, 0x80000001};
    for (int32_t i = 0; i < k->n; i++) {
        const struct planned *p = k->test_case[i].plan;
        struct runner_call call = {.at = i,
                                   .m = p->shape.m,
                                   .size = size,
                                   .scratch_fill = scratch[pass],
                                   .skew = pass < 2 ? 0 : hash_mix(++k->skews + k->q->seed) | 1};
        int rc = pass == 2 ? repeated_run(k, i, &call, err)
                           : kept_run(k, i, pass == 1 && !p->capture, &call, err);
        if (rc != 0)
            return err_prefix(err, "%s, team of %d", p->label, size);
    }
    return 0;
}

/* A long run meets delays and other ranks often enough in three repetitions. */
static bool long_runs(const struct check *k)
{
    const struct check_range *r = &k->q->range;
    return plan_row_work(k->q->model, r->region, r->context) * r->m_to > work_of_long_run;
}

static int run_group(struct check *k, struct err *err)
{
    k->runner = open_runner(k, err);
    int rc = k->runner ? 0 : -1;
    for (int i = 0; rc == 0 && i < CASE_RUNS; i++)
        if (i < LONG_CASE_RUNS || case_run[i].pass != 2 || !long_runs(k))
            rc = one_pass(k, case_run[i].pass, team_of(k, i), err);
    for (int32_t i = 0; rc == 0 && i < k->n; i++)
        rc = check_survival(&k->test_case[i], err);
    runner_close(k->runner);
    k->runner = NULL;
    return rc;
}

/* ---- the admission -------------------------------------------------------------------------- */

/* Bytes that a case of this shape needs, about, with outputs kept for each run and its packed
 * weights. */
static int64_t memory_of(const struct check *k, const struct planned *p)
{
    const struct model_shape *s = &k->q->model->shape;
    int64_t row = s->hidden + s->ffn + 2 * (int64_t)s->heads * s->head_dim;
    if (p->shape.region == REGION_HEAD)
        row += s->vocab;
    int64_t kv = (int64_t)p->shape.sequences * p->shape.context * s->kv_heads * s->head_dim * 2;
    return (row * p->shape.m * (CASE_RUNS + 2) + kv) * 4 + packed_bytes(k);
}

/* Takes the next cases, one at least, as many as fit the group beside the scratch. The first one of
 * all is open. */
static void group_open(struct check *k, int32_t from)
{
    int64_t memory = (int64_t)k->scratch.bytes;
    for (int32_t i = from; i < from + GROUP && i < k->plans; i++) {
        memory += memory_of(k, &k->plan[i]);
        if (i > from && memory > memory_of_group)
            break;
        if (i - from >= k->n)
            open_case(k, i);
    }
}

/* The cases from the plan's `from`-th on; says how many those were. */
static int check_group(struct check *k, int32_t from, int32_t *cases, struct err *err)
{
    group_open(k, from);
    *cases = k->n;
    int rc = pack_group(k, err);
    if (rc == 0)
        rc = run_group(k, err);
    for (int32_t i = 0; rc == 0 && i < k->n; i++)
        rc = test_case_compare(&k->test_case[i], k->q, k->result, err);
    k->result->cases += k->n;
    close_cases(k);
    return rc;
}

/* Drops what the oracle has no time for: after the first eight cases, a budget for all together. */
static void trim_plan(struct check *k)
{
    double spent = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < k->plans; i++) {
        const struct case_shape *s = &k->plan[i].shape;
        double row = plan_row_work(k->q->model, s->region, s->context);
        spent += 2 * fmin(row * s->m, fmax(work_a_case, 2 * row));
        if (kept < 8 || spent < work_in_all)
            k->plan[kept++] = k->plan[i];
    }
    k->plans = kept;
}

int check_kernel(const struct check_request *q, struct check_result *result, struct err *err)
{
    if (q->range.region == REGION_REDUCE)
        return check_reduce(q, result, err);
    struct check *k = xcalloc(1, sizeof *k);
    k->own = *q;
    k->q = &k->own;
    k->result = result;
    memset(result, 0, sizeof *result);
    comparison_start(&result->comparison);
    k->plans = check_plan(q->model, &q->range, q->captured, q->captures, q->full, q->risk, k->plan);
    trim_plan(k);
    int rc = learn_facts(k, err);
    if (!result->sealed) /* the kernel could have reached them */
        k->own.references = NULL;
    for (int32_t at = 0, n = 0; rc == 0 && at < k->plans; at += n)
        rc = check_group(k, at, &n, err);
    close_cases(k);
    guarded_close(&k->scratch);
    free(k);
    return rc;
}
