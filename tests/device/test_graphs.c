/* SPDX-License-Identifier: Apache-2.0 */
/* test_graphs.c - steps as graphs do what they do uncaptured.
 *
 * Decodes beside a prompt: sequences with a token each lie in front of a run of another one, with
 * the template of attention that is in the decodes' slot and with eager's. A step's logits must
 * have the same bits every time it runs, uncaptured at first and as a graph later, and those of the
 * template be eager's but for rounding. So do more decodes than a narrow step has, alone and beside
 * a prompt.
 *
 * A cell with more kernels than it has room for graphs of: each of many templates by chance, with
 * clusters and without, comes into a slot again and again, each time by a graph that may have been
 * made of another's. Its logits must have the same bits each time, and be eager's but for rounding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"
#include "tests/device/device_test.h"

enum { CONTEXT = 480, DECODES = 112, PAGES_EACH = (CONTEXT + KV_PAGE - 1) / KV_PAGE, TIMES = 12 };
enum { KERNELS = 8, ROUNDS = 3 };

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};
static float *logits[3];

/* ---- steps --------------------------------------------------------------------------------- */

/* Positions [from, to) of a sequence, and a row for the last of them. */
static void add(struct made_step *b, int32_t sequence, int32_t from, int32_t to, int32_t vocab)
{
    struct step *s = &b->step;
    b->span[s->spans++] = (struct span){s->m, to - from, to, s->pages};
    for (int32_t p = 0; p < PAGES_EACH; p++)
        b->table[s->pages++] = p * (DECODES + 1) + sequence; /* pages of a sequence lie apart */
    for (int32_t p = from; p < to; p++, s->m++) {
        b->tokens[s->m] = (p * 7919 + sequence * 104729 + 1) % vocab;
        b->position[s->m] = p;
        b->kv_at[s->m] = (p / KV_PAGE * (DECODES + 1) + sequence) * KV_PAGE + p % KV_PAGE;
    }
    b->row[s->rows] = s->m - 1;
    b->sample[s->rows++] = (struct sample_row){.params = &greedy, .target = -1};
    s->context = to > s->context ? to : s->context;
}

/* m sequences with a token each, none at the same position. */
static void decodes(struct made_step *b, int32_t m, int32_t vocab)
{
    step_begin(b);
    for (int32_t i = 0; i < m; i++)
        add(b, i, CONTEXT - 1 - i, CONTEXT - i, vocab);
}

/* How many logits it has. */
static int64_t numbers(const struct rig *r, const struct made_step *b)
{
    return (int64_t)b->step.rows * r->model->shape.vocab;
}

static void fetch(const struct rig *r, const struct made_step *b, float *to)
{
    cudaMemcpy(to, r->b->logits, (size_t)numbers(r, b) * 4, cudaMemcpyDeviceToHost);
}

static bool same_bits(const struct rig *r, const struct made_step *b, const float *x,
                      const float *y)
{
    return memcmp(x, y, (size_t)numbers(r, b) * 4) == 0;
}

/* Runs it; its logits. */
static bool run(struct rig *r, struct made_step *b, float *to)
{
    struct err e = {""};
    int failed = r->ops->step(r->b, &b->step, NULL, &e);
    check(!failed, false, "step of %d tokens: %s", b->step.m, e.msg);
    if (!failed && to)
        fetch(r, b, to);
    return !failed;
}

static const struct inflight *latest(const struct rig *r)
{
    return &r->b->inflight[!r->b->parity];
}

/* ---- decodes beside a prompt ----------------------------------------------------------------- */

/* The step's logits, which must be the same TIMES times; microseconds of the fastest, or -1. */
static double repeat(struct rig *r, struct made_step *b, const char *what, float *to)
{
    double least = -1;
    int other = 0, graphs = 0, first = -1, times = brief ? TIMES / 2 : TIMES;
    for (int i = 0; i < times; i++) {
        int64_t t0 = clock_ns();
        if (!run(r, b, NULL))
            return -1;
        double us = (double)(clock_ns() - t0) * 1e-3;
        least = least < 0 || us < least ? us : least;
        graphs += latest(r)->graph;
        fetch(r, b, i ? logits[2] : to);
        if (i && !same_bits(r, b, to, logits[2]) && other++ == 0)
            first = i;
        usleep(i < TIMES / 2 ? 2000 : 0); /* while a graph is made */
    }
    check(other == 0, false, "%s: %d of %d times with other bits, first the %dth; %d as graphs",
          what, other, times, first, graphs);
    check(graphs > 0 || b->step.m <= NARROW, false, "%s: never as a graph", what);
    return least;
}

/* m decodes and a run of another sequence, with kernel k in the decodes' slot and with eager's. */
static void beside(struct rig *r, const char *name, const struct kernel *k, int32_t m,
                   int32_t length)
{
    static struct made_step b;
    struct slot *slot = dispatch_slot(r->d, REGION_ATTN, 0, m, CONTEXT);
    char what[80];
    decodes(&b, m, r->model->shape.vocab);
    add(&b, m, 0, length, r->model->shape.vocab);
    dispatch_publish(r->d, slot, k);
    snprintf(what, sizeof what, "%s %d decodes beside %d of a prompt", name, m, length);
    double with = repeat(r, &b, what, logits[0]);
    const struct kernel_choice *c = &latest(r)->choice;
    check(c->lead == m && c->kernel[REGION_ATTN] == k, false, "%s are %s's, not %d", what, k->name,
          c->lead);
    dispatch_publish(r->d, slot, slot->eager);
    strcat(what, ", eager");
    double eager = repeat(r, &b, what, logits[1]);
    double d = logits_difference(logits[0], logits[1], numbers(r, &b));
    check(d < 0.03, true, "%s %d decodes beside %d of a prompt: %.1f us, eager %.1f, logits %.2e",
          name, m, length, with, eager, d);
}

static void mixed(struct rig *r, const char *name)
{
    static const int32_t batches[] = {1, 2, 5, 8, 32, 48}, lengths[] = {7, 80, 320};
    for (size_t n = brief; n < sizeof batches / sizeof *batches; n += brief ? 3 : 1) {
        const struct kernel *k = load_start(r, REGION_ATTN, walk_padded(batches[n]));
        for (size_t l = 0; k && l < sizeof lengths / sizeof *lengths - brief; l++)
            beside(r, name, k, batches[n], lengths[l]);
    }
}

/* ---- more decodes than a narrow step has ----------------------------------------------------- */

static void hundred(struct rig *r, const char *name)
{
    static const char *const ids[] = {"attn_mma", "attn_even"};
    enum { M = 100 };
    struct slot *slot = dispatch_slot(r->d, REGION_ATTN, 0, M, CONTEXT);
    static struct made_step b;
    uint32_t seed = 11;
    char what[80];
    for (int i = 0; i < 2; i++) {
        const struct kernel *k = load_any(r, ids[i], walk_padded(M), &seed);
        if (!k)
            continue;
        decodes(&b, M, r->model->shape.vocab);
        dispatch_publish(r->d, slot, k);
        snprintf(what, sizeof what, "%s %d decodes, %s", name, M, ids[i]);
        double with = repeat(r, &b, what, logits[0]);
        const struct kernel_choice *c = &latest(r)->choice;
        check(c->decode && c->kernel[REGION_ATTN] == k, false, "%s are %s's", what, k->name);
        dispatch_publish(r->d, slot, slot->eager);
        double eager = repeat(r, &b, "the same, eager", logits[1]);
        double d = logits_difference(logits[0], logits[1], numbers(r, &b));
        check(d < 0.03, true, "%s: %.1f us, eager %.1f, logits %.2e", what, with, eager, d);
        beside(r, name, k, M, 80);
    }
}

/* ---- more kernels than graphs ---------------------------------------------------------------- */

/* Runs the step until it is a graph with k in the slot; logits of that. */
static bool as_graph(struct rig *r, struct made_step *b, const struct kernel *k, float *to)
{
    for (int i = 0; i < 400; i++) {
        bool there = i > 0 && graph_known(r->b, &latest(r)->choice);
        if (!run(r, b, to))
            return false;
        if (there && latest(r)->graph && latest(r)->choice.kernel[k->region] == k)
            return true; /* now and then a step is uncaptured, to time its regions */
        usleep(there ? 0 : 1000);
    }
    return false;
}

static void many(struct rig *r, const char *name, int32_t m)
{
    static struct made_step b;
    static const char *const ids[] = {"attn_decode", "attn_mma"};
    struct slot *slot = dispatch_slot(r->d, REGION_ATTN, 0, m, CONTEXT);
    const struct kernel *kernel[KERNELS];
    float *first[KERNELS] = {NULL};
    uint32_t seed = 7 * (uint32_t)m;
    int sizes = 0;
    decodes(&b, m, r->model->shape.vocab);
    as_graph(r, &b, slot->eager, logits[1]);
    for (int i = 0; i < KERNELS; i++) {
        kernel[i] = load_any(r, ids[i % 2], m, &seed);
        if (kernel[i])
            sizes |= 1 << ((const struct loaded *)kernel[i]->backend)->info.launch[0].cluster;
    }
    check((sizes & (sizes - 1)) != 0, false, "%s m %d: kernels with clusters of one size", name, m);
    for (int n = 0; n < KERNELS * ROUNDS; n++) {
        int i = n % KERNELS;
        if (!kernel[i])
            continue;
        dispatch_publish(r->d, slot, kernel[i]);
        bool graph = as_graph(r, &b, kernel[i], logits[0]);
        check(graph, false, "%s m %d %s: never as a graph", name, m, kernel[i]->name);
        double d = logits_difference(logits[0], logits[1], numbers(r, &b));
        if (!first[i]) {
            first[i] = xmalloc((size_t)numbers(r, &b) * 4);
            fetch(r, &b, first[i]);
        }
        bool same = same_bits(r, &b, first[i], logits[0]);
        check(d < 0.03 && same, n < KERNELS, "%s m %d round %d %s: logits %.2e%s", name, m,
              n / KERNELS, kernel[i]->name, d, same ? "" : ", other bits than in the first");
    }
    dispatch_publish(r->d, slot, slot->eager);
    for (int i = 0; i < KERNELS; i++)
        free(first[i]);
}

/* Of each known model its first layers. */
void test_graphs(void)
{
    for (size_t i = 0; i < REAL_SHAPES; i++) {
        static struct made_step b;
        const char *name = real_shapes[i].name;
        struct model_shape shape = real_shapes[i].shape;
        struct rig r;
        if (!strstr(name, part_of))
            continue;
        shape.layers = brief ? 2 : 6;
        struct model *m = model_random(&shape, DTYPE_BF16, 5);
        for (int k = 0; k < 3; k++)
            logits[k] = xmalloc((DECODES + 1) * (size_t)shape.vocab * 4);
        bool open =
            rig_open_with(&r, m, (DECODES + 1) * PAGES_EACH, STEP_TOKENS, STEP_ROWS, 1 << 20);
        for (int32_t s = 0; open && s < DECODES; s++) {
            step_begin(&b);
            add(&b, s, 0, CONTEXT, shape.vocab);
            run(&r, &b, NULL);
        }
        if (open)
            mixed(&r, name);
        if (open)
            hundred(&r, name);
        if (open && !brief) /* `points` runs each template under a tool */
            many(&r, name, i == 0 ? 8 : 1);
        rig_close(&r);
        model_close(m);
        for (int k = 0; k < 3; k++)
            free(logits[k]);
    }
}
