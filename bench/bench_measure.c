/* SPDX-License-Identifier: Apache-2.0 */
/* bench_measure.c - times steps of the backend, one kernel set after the other.
 *
 * The machine is shared and drifts by a factor of two within an hour, so absolute times mean little
 * and ratios only count when both sides met the same weather: a pair runs the eager set and then
 * the specialized one, each for about SAMPLE_S, and the gain is the median of the pairs' ratios.
 * Region times come from the slots' own counters over the same steps.
 *
 * Decode steps run as the engine runs them: where the backend can, each is started while the one
 * before it runs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_private.h"
#include "config/clock.h"

#define SAMPLE_S 0.08
#define WARM_UP_S 0.05 /* and at least two: graphs are captured, a device gets up to speed */
#define GRAPH_S 1.0    /* no longer than that, if a graph of the set's kernels does not come */

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};

/* Arrays of one step; grown to the largest work. */
struct feed {
    struct step step;
    int32_t *tokens, *position, *kv_at, *row, *page_table;
    struct span *span;
    struct sample_row *sample;
};

static void feed_open(struct feed *f, const struct bench *b, int32_t tokens, int32_t sequences)
{
    size_t m = (size_t)tokens, n = (size_t)sequences, pages = n * (size_t)b->pages_each;
    memset(f, 0, sizeof *f);
    f->tokens = xcalloc(m, sizeof *f->tokens);
    f->position = xcalloc(m, sizeof *f->position);
    f->kv_at = xcalloc(m, sizeof *f->kv_at);
    f->row = xcalloc(n, sizeof *f->row);
    f->page_table = xcalloc(pages, sizeof *f->page_table);
    f->span = xcalloc(n, sizeof *f->span);
    f->sample = xcalloc(n, sizeof *f->sample);
    for (size_t i = 0; i < pages; i++)
        f->page_table[i] = (int32_t)i;
    f->step.tokens = f->tokens;
    f->step.position = f->position;
    f->step.kv_at = f->kv_at;
    f->step.row = f->row;
    f->step.page_table = f->page_table;
    f->step.pages = (int32_t)pages;
    f->step.span = f->span;
    f->step.sample = f->sample;
}

static void feed_close(struct feed *f)
{
    void *owned[] = {f->tokens, f->position, f->kv_at, f->row, f->page_table, f->span, f->sample};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* Tokens [from, from + count) of sequences [first, first + sequences); the last rows want logits
 * if `logits`. */
static void feed_set(struct feed *f, const struct bench *b, int32_t first, int32_t sequences,
                     int32_t from, int32_t count, bool logits)
{
    struct step *s = &f->step;
    s->m = 0;
    s->spans = sequences;
    s->context = from + count;
    s->rows = logits ? sequences : 0;
    for (int32_t i = 0; i < sequences; i++) {
        int32_t pages_at = (first + i) * b->pages_each;
        f->span[i] = (struct span){s->m, count, from + count, pages_at};
        for (int32_t p = from; p < from + count; p++, s->m++) {
            f->tokens[s->m] = (int32_t)((uint32_t)(p * 7919 + (first + i) * 104729 + 1) %
                                        (uint32_t)b->model->shape.vocab);
            f->position[s->m] = p;
            f->kv_at[s->m] = (pages_at + p / KV_PAGE) * KV_PAGE + p % KV_PAGE;
        }
        f->row[i] = s->m - 1;
        f->sample[i] = (struct sample_row){.params = &greedy, .target = -1};
    }
}

static int run_step(struct bench *b, struct feed *f, struct err *e)
{
    return b->ops->step(b->backend, &f->step, NULL, e);
}

static int run_prompt(struct bench *b, struct feed *f, int32_t sequence, int32_t tokens,
                      int32_t chunk, struct err *e)
{
    for (int32_t at = 0; at < tokens; at += chunk) {
        int32_t n = tokens - at < chunk ? tokens - at : chunk;
        feed_set(f, b, sequence, 1, at, n, at + n == tokens);
        if (run_step(b, f, e))
            return -1;
    }
    return 0;
}

/* `times` decode steps, each started before the one ahead of it is waited for. f: two feeds. */
static int run_ahead(struct bench *b, struct feed *f, const struct work *w, int times,
                     struct err *e)
{
    for (int i = 0; i < times; i++) {
        feed_set(&f[i % 2], b, 0, w->sequences, w->context - 1, 1, true);
        if (b->ops->step_start(b->backend, &f[i % 2].step, NULL, e) < 0 ||
            (i > 0 && b->ops->step_wait(b->backend, &f[(i + 1) % 2].step, e)))
            return -1;
    }
    return b->ops->step_wait(b->backend, &f[(times + 1) % 2].step, e);
}

static int run_works(struct bench *b, struct feed *f, const struct work *w, int times,
                     struct err *e)
{
    if (!w->chunk && b->ops->step_start)
        return run_ahead(b, f, w, times, e);
    int failed = 0;
    for (int i = 0; i < times && !failed; i++) {
        if (!w->chunk)
            feed_set(f, b, 0, w->sequences, w->context - 1, 1, true);
        failed = w->chunk ? run_prompt(b, f, 0, w->context, w->chunk, e) : run_step(b, f, e);
    }
    return failed;
}

int bench_fill(struct bench *b, int32_t sequences, int32_t context, struct err *e)
{
    struct feed f;
    int failed = 0;
    feed_open(&f, b, b->chunk, sequences);
    b->ops->set_dispatch(b->backend, b->table[b->sets - 1]);
    for (int32_t i = 0; i < sequences && !failed; i++)
        failed = run_prompt(b, &f, i, context, b->chunk, e);
    feed_close(&f);
    return failed;
}

/* ---- statistics ----------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile of n values; sorts them. */
static double quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
    return v[(int)lround(q * (n - 1))];
}

/* ---- measuring ------------------------------------------------------------------------------ */

static void region_ns(const struct bench *b, enum set set, uint64_t ns[REGION_NODES],
                      uint64_t launches[REGION_NODES])
{
    memset(ns, 0, sizeof *ns * REGION_NODES);
    memset(launches, 0, sizeof *launches * REGION_NODES);
    for (int i = 0; i < dispatch_slots(b->table[set]); i++) {
        struct slot *s = dispatch_slot_at(b->table[set], i);
        ns[s->region] += atomic_load(&s->counters.ns);
        launches[s->region] += atomic_load(&s->counters.launches);
    }
}

/* One sample of one set: `times` works, seconds of one. */
static int sample(struct bench *b, struct feed *f, const struct work *w, enum set set, int times,
                  double *seconds, double region_s[REGION_NODES], int64_t launches[REGION_NODES],
                  struct err *e)
{
    uint64_t ns0[REGION_NODES], ns1[REGION_NODES], launches0[REGION_NODES], launches1[REGION_NODES];
    b->ops->set_dispatch(b->backend, b->table[set]);
    region_ns(b, set, ns0, launches0);
    int64_t t0 = clock_ns();
    if (run_works(b, f, w, times, e))
        return -1;
    *seconds = (double)(clock_ns() - t0) * 1e-9 / times;
    region_ns(b, set, ns1, launches1);
    for (int r = 0; r < REGION_NODES; r++) {
        region_s[r] = (double)(ns1[r] - ns0[r]) * 1e-9 / times;
        launches[r] = (int64_t)(launches1[r] - launches0[r]) / times;
    }
    return 0;
}

/* The set's steps will run otherwise: with its own kernels, or as a graph. */
static bool unlike(const struct step_report *r)
{
    return r->stood_in || r->uncaptured;
}

/* Seconds of one work, warm. */
static int warm_up(struct bench *b, struct feed *f, const struct work *w, enum set set, double *one,
                   struct err *e)
{
    double regions[REGION_NODES], passed = 0;
    int64_t launches[REGION_NODES];
    struct step_report report = {false};
    int failed = 0;
    f[0].step.report = &report;
    for (int i = 0; !failed && (i < 2 || passed < (unlike(&report) ? GRAPH_S : WARM_UP_S)); i++) {
        failed = sample(b, f, w, set, 1, one, regions, launches, e);
        passed += *one;
    }
    f[0].step.report = NULL;
    return failed;
}

int bench_once(struct bench *b, const struct work *w, enum set set, struct err *e)
{
    double one, regions[REGION_NODES];
    int64_t launches[REGION_NODES];
    struct feed f[2];
    for (int i = 0; i < 2; i++)
        feed_open(&f[i], b, w->chunk ? w->chunk : w->sequences, w->sequences);
    int failed = sample(b, f, w, set, 1, &one, regions, launches, e);
    for (int i = 0; i < 2; i++)
        feed_close(&f[i]);
    return failed;
}

static void add_cost(struct region_cost *sum, const struct region_cost *c)
{
    sum->weight_bytes += c->weight_bytes;
    sum->weights += c->weights;
    sum->activation_bytes += c->activation_bytes;
    sum->kv_bytes += c->kv_bytes;
    sum->flops += c->flops;
}

/* A step of a work, and where its costs are added. */
struct costing {
    const struct bench *b;
    struct result *out;
    int32_t m, sequences, context, rows;
};

static int add_node(void *ctx, const struct plan_node *n, struct err *e)
{
    const struct costing *k = ctx;
    const struct machine *machine = k->b->ops->machine(k->b->backend);
    struct region_cost c =
        plan_cost(k->b->model, n->region, n->layer, k->m, k->sequences, k->context, k->rows);
    struct region_time *t = &k->out->region[n->region];
    (void)e;
    add_cost(&t->cost, &c);
    t->roofline_s += roofline_s(machine, &c);
    k->out->roofline_s += roofline_s(machine, &c);
    k->out->bytes += machine_bytes(machine, &c);
    return 0;
}

/* What one work must cost: every node of the plan in every step of it; and a fused region what its
 * parts must. */
static void add_costs(const struct bench *b, const struct work *w, struct result *out)
{
    int32_t chunk = w->chunk ? w->chunk : w->context;
    for (int32_t at = 0; at < w->context; at += chunk) {
        int32_t n = w->context - at < chunk ? w->context - at : chunk;
        struct costing k = {.b = b, .out = out, .sequences = w->sequences, .context = at + n};
        k.m = w->chunk ? n : w->sequences;
        k.rows = w->chunk ? at + n == w->context : w->sequences;
        plan_walk(b->plan, k.rows, 0, add_node, &k, NULL);
    }
    for (int r = REGION_COUNT; r < REGION_LOCAL; r++)
        for (int i = 0; i < region_info((enum region)r)->parts; i++) {
            const struct region_time *part = &out->region[region_info((enum region)r)->part[i]];
            add_cost(&out->region[r].cost, &part->cost);
            out->region[r].roofline_s += part->roofline_s;
        }
}

struct samples {
    double s[SETS][PAIRS_MAX], region_s[REGION_NODES][SETS][PAIRS_MAX];
};

static void settle(const struct bench *b, double s[SETS][PAIRS_MAX],
                   double region_s[REGION_NODES][SETS][PAIRS_MAX], struct result *out)
{
    double ratio[PAIRS_MAX];
    for (int p = 0; p < b->pairs; p++)
        ratio[p] = b->sets == SETS ? s[SET_EAGER][p] / s[SET_SPECIALIZED][p] : 1;
    out->gain = quantile(ratio, b->pairs, 0.5);
    out->gain_low = quantile(ratio, b->pairs, 0.1);
    out->gain_high = quantile(ratio, b->pairs, 0.9);
    for (int set = 0; set < b->sets; set++) {
        out->s[set] = quantile(s[set], b->pairs, 0.5);
        out->spread[set] =
            (quantile(s[set], b->pairs, 0.9) - quantile(s[set], b->pairs, 0.1)) / out->s[set];
        for (int r = 0; r < REGION_NODES; r++)
            out->region[r].s[set] = quantile(region_s[r][set], b->pairs, 0.5);
    }
}

/* One pair: every set once, in turn. */
static int measure_pair(struct bench *b, struct feed *f, const struct work *w, int p, int times,
                        struct samples *s, struct result *out, struct err *e)
{
    for (int set = 0; set < b->sets; set++) {
        double regions[REGION_NODES];
        int64_t launches[REGION_NODES];
        if (sample(b, f, w, (enum set)set, times, &s->s[set][p], regions, launches, e))
            return -1;
        for (int r = 0; r < REGION_NODES; r++) {
            s->region_s[r][set][p] = regions[r];
            out->region[r].launches[set] = launches[r];
        }
    }
    return 0;
}

int bench_measure(struct bench *b, const struct work *w, struct result *out, struct err *e)
{
    static struct samples s;
    double one = 1;
    struct feed f[2];
    int failed = 0;
    memset(out, 0, sizeof *out);
    out->work = *w;
    out->tokens = w->chunk ? w->context : w->sequences;
    add_costs(b, w, out);
    for (int i = 0; i < 2; i++)
        feed_open(&f[i], b, w->chunk ? w->chunk : w->sequences, w->sequences);
    for (int set = 0; set < b->sets && !failed; set++)
        failed = warm_up(b, f, w, (enum set)set, &one, e);
    for (int p = 0; p < b->pairs && !failed; p++)
        failed = measure_pair(b, f, w, p, 1 + (int)(SAMPLE_S / one), &s, out, e);
    for (int i = 0; i < 2; i++)
        feed_close(&f[i]);
    if (!failed)
        settle(b, s.s, s.region_s, out);
    return failed;
}
