/* SPDX-License-Identifier: Apache-2.0 */
/* test_templates.c - the templates at the points they start from, in whole steps of real shapes:
 * logits against the eager step, and time of a step with each: waited for one by one, and with all
 * of them in as the engine runs steps, each started while the one before it runs, next to the graph
 * alone, replayed.
 *
 * Every template is compiled by NVRTC as the specializer would, loaded, and put into its slots.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "tests/device/device_test.h"

enum { CONTEXT = 512, MOST = 64, PAGES_EACH = CONTEXT / KV_PAGE, TIMES = 40 };

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};

/* ---- steps --------------------------------------------------------------------------------- */

struct batch {
    struct step step;
    int32_t tokens[CONTEXT], position[CONTEXT], kv_at[CONTEXT], row[MOST];
    int32_t table[MOST * PAGES_EACH];
    struct span span[MOST];
    struct sample_row sample[MOST];
};

/* Positions [from, to) of a sequence, and a row for the last of them. */
static void add(struct batch *b, int32_t sequence, int32_t from, int32_t to, int32_t vocab)
{
    struct step *s = &b->step;
    b->span[s->spans++] = (struct span){s->m, to - from, to, s->pages};
    for (int32_t p = 0; p < PAGES_EACH; p++)
        b->table[s->pages++] = sequence * PAGES_EACH + p;
    for (int32_t p = from; p < to; p++, s->m++) {
        b->tokens[s->m] = (p * 7919 + sequence * 104729 + 1) % vocab;
        b->position[s->m] = p;
        b->kv_at[s->m] = sequence * CONTEXT + p;
    }
    b->row[s->rows] = s->m - 1;
    b->sample[s->rows++] = (struct sample_row){.params = &greedy, .target = -1};
    s->context = to > s->context ? to : s->context;
}

/* Positions [from, to) of sequences [first, first + n). */
static void make(struct batch *b, int32_t first, int32_t n, int32_t from, int32_t to, int32_t vocab)
{
    struct step *s = &b->step;
    memset(b, 0, sizeof *b);
    *s = (struct step){.tokens = b->tokens,
                       .position = b->position,
                       .kv_at = b->kv_at,
                       .span = b->span,
                       .page_table = b->table,
                       .row = b->row,
                       .sample = b->sample};
    for (int32_t i = 0; i < n; i++)
        add(b, first + i, from, to, vocab);
}

static bool step(struct rig *r, struct batch *b)
{
    struct err e = {""};
    int failed = r->ops->step(r->b, &b->step, NULL, &e);
    check(!failed, false, "step of %d tokens: %s", b->step.m, e.msg);
    return !failed;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and longest microseconds of a step; its logits. */
static double timed(struct rig *r, struct batch *b, float *logits, double *longest)
{
    double us[TIMES];
    *longest = 0;
    for (int i = 0; i < 20 + TIMES; i++) {
        int64_t t0 = clock_ns();
        if (!step(r, b))
            return -1;
        double one = (double)(clock_ns() - t0) * 1e-3;
        *longest = one > *longest ? one : *longest;
        if (i >= 20)
            us[i - 20] = one;
    }
    qsort(us, TIMES, sizeof *us, by_value);
    cudaMemcpy(logits, r->b->logits, (size_t)b->step.rows * (size_t)r->model->shape.vocab * 4,
               cudaMemcpyDeviceToHost);
    return us[TIMES / 2];
}

/* Microseconds of a step when each is started before the one ahead of it is waited for. */
static double timed_ahead(struct rig *r, const struct batch *b)
{
    static struct batch two[2];
    struct err e = {""};
    int64_t t0 = 0;
    two[0] = two[1] = *b;
    for (int i = 0; i < 20 + 2 * TIMES; i++) {
        struct step *now = &two[i % 2].step, *before = &two[(i + 1) % 2].step;
        if (i == 20)
            t0 = clock_ns();
        now->sample = two[i % 2].sample;
        if (r->ops->step_start(r->b, now, NULL, &e) < 0 ||
            (i > 0 && r->ops->step_wait(r->b, before, &e))) {
            check(false, false, "steps started ahead: %s", e.msg);
            return -1;
        }
    }
    r->ops->step_wait(r->b, &two[1].step, &e);
    return (double)(clock_ns() - t0) * 1e-3 / (2 * TIMES);
}

/* Microseconds of the newest graph of a batch of m, replayed over what the last step left, and how
 * many of them the host is busy launching it. */
static double timed_graph(struct rig *r, int32_t m, double *host_us)
{
    struct cell *cell = &r->b->cell[m_bucket_of(m)][context_bucket_of(CONTEXT)];
    struct variant *v = NULL;
    cudaEvent_t from, to;
    float ms = 0;
    for (int i = 0; i < VARIANTS; i++)
        if (cell->variant[i].exec && (!v || cell->variant[i].last_used > v->last_used))
            v = &cell->variant[i];
    if (!v || cudaEventCreate(&from) || cudaEventCreate(&to))
        return -1;
    cudaEventRecord(from, r->b->stream);
    int64_t t0 = clock_ns();
    for (int i = 0; i < TIMES; i++)
        cudaGraphLaunch(v->exec, r->b->stream);
    *host_us = (double)(clock_ns() - t0) * 1e-3 / TIMES;
    cudaEventRecord(to, r->b->stream);
    cudaEventSynchronize(to);
    r->b->told = -1; /* the parity on the device is not known */
    cudaEventElapsedTime(&ms, from, to);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return (double)ms * 1e3 / TIMES;
}

static double bound_us(const struct rig *r, int32_t m, double bandwidth)
{
    double bytes = 0;
    for (int32_t i = 0; i < r->b->plan->nodes; i++) {
        const struct plan_node *n = &r->b->plan->node[i];
        struct region_cost c = plan_cost(r->model, n->region, n->layer, m, m, CONTEXT, m);
        c.activation_bytes = 0;
        bytes += machine_bytes(&r->b->machine, &c);
    }
    return bytes / bandwidth * 1e6;
}

static void batch_of(struct rig *r, struct starts *starts, const char *name, int32_t m)
{
    static struct batch b;
    int64_t n = (int64_t)m * r->model->shape.vocab;
    float *eager = xmalloc((size_t)n * 4), *other = xmalloc((size_t)n * 4);
    make(&b, 0, m, CONTEXT - 1, CONTEXT, r->model->shape.vocab);
    double longest, unused, before = timed(r, &b, eager, &longest), after;
    for (int i = 0; i < dispatch_slots(r->d); i++) {
        struct slot *slot = dispatch_slot_at(r->d, i);
        bool runs = dispatch_slot(r->d, slot->region, slot_layer(slot), m, CONTEXT) == slot;
        const struct kernel *k = runs ? starts_load(starts, r, i) : NULL;
        if (!k)
            continue;
        dispatch_publish(r->d, slot, k);
        timed(r, &b, other, &longest); /* the swap is in here */
        double us = timed(r, &b, other, &unused), d = logits_difference(other, eager, n);
        check(d < 0.03, true,
              "%s batch %d: %-15s in: %7.1f us (eager step %7.1f, longest while swapped %7.1f), "
              "logits %.2e  %s",
              name, m, slot->name, us, before, longest, d, k->name);
    }
    timed(r, &b, other, &unused);
    double host = 0, alone = timed(r, &b, other, &unused), graph = timed_graph(r, m, &host);
    after = timed_ahead(r, &b);
    printf(
        "     %s batch %d context %d: eager %.0f tok/s, templates %.0f tok/s, %.1f us (waited "
        "for %.1f, graph alone %.1f, host %.1f), %.1f %% of 4.3 TB/s, %.1f %% of the read peak\n",
        name, m, CONTEXT, m * 1e6 / before, m * 1e6 / after, after, alone, graph, host,
        100 * bound_us(r, m, 4.3e12) / after,
        100 * bound_us(r, m, r->b->machine.read_bandwidth) / after);
    fflush(stdout);
    free(eager);
    free(other);
}

/* All batches of a model, which is closed. */
static void batches_of(struct model *m, const char *name)
{
    enum { BATCHES = 5 };
    static const int32_t batches[BATCHES] = {1, 2, 8, 32, 64};
    static struct batch b;
    struct rig r;
    bool open = rig_open_with(&r, m, MOST * PAGES_EACH, CONTEXT, MOST, 20LL << 30);
    struct starts *starts = open ? starts_begin(&r, batches, BATCHES, CONTEXT) : NULL;
    for (int32_t k = 0; open && k < MOST; k++) {
        make(&b, k, 1, 0, CONTEXT - 1, m->shape.vocab);
        step(&r, &b);
    }
    for (int k = 0; open && k < BATCHES; k++)
        batch_of(&r, starts, name, batches[k]);
    if (open)
        starts_end(starts);
    rig_close(&r);
    model_close(m);
}

void test_templates(void)
{
    for (size_t i = 0; i < REAL_SHAPES; i++)
        if (strstr(real_shapes[i].name, part_of))
            batches_of(model_random(&real_shapes[i].shape, DTYPE_BF16, 5), real_shapes[i].name);
    if (strstr("q4_k+q6_k", part_of)) {
        struct model *m = model_random_mixed(&real_shapes[0].shape, DTYPE_Q4_K, DTYPE_Q6_K, 5);
        m->own_formats = true;
        batches_of(m, "llama-3.2-1b:q4_k+q6_k");
    }
}
