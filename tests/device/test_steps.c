/* SPDX-License-Identifier: Apache-2.0 */
/* test_steps.c - whole steps on the device against the CPU backend, and against themselves.
 *
 * The CPU computes in float on the same bf16 weights. What the device adds - activations and KV in
 * bf16 - moves a logit by about 1 % of the logits' deviation; bounds are a few times that. Decoding
 * token by token, prompts in one piece or in chunks, any batch and any page layout must agree.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/memory.h"
#include "kernels/bricks.h"
#include "tests/device/device_test.h"

enum { PAGES = 1024 };

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};
static const struct sampling tops = {SAMPLING_NEUTRAL, .top_logprobs = 20};

/* A sequence in a layout: page i of it is (first + i * stride) % PAGES. */
struct text {
    int32_t seed, first, stride;
};

static int32_t token_of(const struct text *t, int32_t i, int32_t vocab)
{
    uint64_t state = (uint64_t)t->seed << 32 | (uint64_t)(uint32_t)i;
    return (int32_t)(rng(&state) % (uint64_t)vocab);
}

static int32_t page_of(const struct text *t, int32_t i)
{
    return (t->first + i * t->stride) % PAGES;
}

/* Positions [from, to) of a sequence; the last wants logits. */
static void feed(struct made_step *b, const struct text *t, int32_t from, int32_t to, int32_t vocab,
                 const struct sampling *params)
{
    struct step *s = &b->step;
    b->span[s->spans++] = (struct span){s->m, to - from, to, s->pages};
    for (int32_t p = 0; p < (to + KV_PAGE - 1) / KV_PAGE; p++)
        b->table[s->pages++] = page_of(t, p);
    for (int32_t p = from; p < to; p++, s->m++) {
        b->tokens[s->m] = token_of(t, p, vocab);
        b->position[s->m] = p;
        b->kv_at[s->m] = page_of(t, p / KV_PAGE) * KV_PAGE + p % KV_PAGE;
    }
    b->row[s->rows] = s->m - 1;
    b->sample[s->rows++] = (struct sample_row){.params = params, .target = -1};
    s->context = to > s->context ? to : s->context;
}

static bool step(struct rig *r, struct made_step *b)
{
    struct err e = {""};
    int failed = r->ops->step(r->b, &b->step, NULL, &e);
    check(!failed, false, "%s: a step of %d tokens: %s", r->ops->name, b->step.m, e.msg);
    return !failed;
}

static bool prompt(struct rig *r, const struct text *t, int32_t to, int32_t chunk,
                   struct made_step *last)
{
    for (int32_t at = 0; at < to; at += chunk) {
        step_begin(last);
        feed(last, t, at, at + chunk < to ? at + chunk : to, r->model->shape.vocab, &tops);
        if (!step(r, last))
            return false;
    }
    return true;
}

static float *device_logits(struct rig *r, int32_t rows)
{
    size_t n = (size_t)rows * (size_t)r->model->shape.vocab;
    float *l = xmalloc(n * sizeof *l);
    cudaError_t code = cudaMemcpy(l, r->b->logits, n * sizeof *l, cudaMemcpyDeviceToHost);
    check(!code, false, "logits: %s", cudaGetErrorString(code));
    return l;
}

static double log_sum(const float *l, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)l[i]);
    return log(sum);
}

/* RMS of the difference of log-probabilities of the CPU's 20 best. */
static double against_cpu(const struct sampled *cpu, const float *logits, int32_t vocab)
{
    double error = 0, lse = log_sum(logits, vocab);
    for (int i = 0; i < cpu->tops; i++) {
        double d = (double)logits[cpu->top_id[i]] - lse - (double)cpu->top_logprob[i];
        error += d * d;
    }
    return cpu->tops ? sqrt(error / cpu->tops) : HUGE_VAL;
}

/* ---- the tests ----------------------------------------------------------------------------- */

static void steps_equal_the_cpus(struct rig *gpu, struct rig *cpu, const char *name)
{
    static const int32_t contexts[] = {1, 2, 15, 16, 17, 31, 64, 65, 100, 257, 511, 1024, 4096};
    static struct made_step a, b;
    int32_t vocab = gpu->model->shape.vocab;
    double worst = 0;
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        int32_t n = contexts[i];
        if (brief && n > 100)
            break;
        struct text t = {(int32_t)i, (int32_t)(37 * i), 1 + 2 * (int32_t)(i % 3)};
        if (!prompt(gpu, &t, n, STEP_TOKENS, &a) || !prompt(cpu, &t, n, STEP_TOKENS, &b))
            continue;
        float *l = device_logits(gpu, 1);
        double rms = against_cpu(&b.sample[0].out, l, vocab);
        worst = fmax(worst, rms);
        check(rms < 0.06, false, "%s: prompt of %d: logprobs differ by %.3f rms", name, n, rms);
        free(l);
        step_begin(&a);
        step_begin(&b);
        feed(&a, &t, n, n + 1, vocab, &greedy);
        feed(&b, &t, n, n + 1, vocab, &tops);
        if (!step(gpu, &a) || !step(cpu, &b))
            continue;
        l = device_logits(gpu, 1);
        rms = against_cpu(&b.sample[0].out, l, vocab);
        worst = fmax(worst, rms);
        check(rms < 0.06, false, "%s: decode at %d: logprobs differ by %.3f rms", name, n + 1, rms);
        int32_t best = 0;
        for (int32_t v = 1; v < vocab; v++)
            best = l[v] > l[best] ? v : best;
        check(a.sample[0].out.token == best, false, "%s: greedy is %d, the logits say %d", name,
              a.sample[0].out.token, best);
        free(l);
    }
    check(true, true, "%s: steps against the CPU: worst %.4f rms of logprobs", name, worst);
}

static void decode_equals_prefill(struct rig *gpu, const char *name)
{
    static struct made_step a;
    static const int32_t chunks[] = {512, 100, 64, 17, 1};
    int32_t vocab = gpu->model->shape.vocab, n = brief ? 40 : 150;
    float *first = NULL;
    double worst = 0;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct text t = {5, (int32_t)(100 * i), 3};
        if (!prompt(gpu, &t, n, chunks[i], &a))
            continue;
        float *l = device_logits(gpu, 1);
        if (first) {
            double d = logits_difference(l, first, vocab);
            worst = fmax(worst, d);
            check(d < 0.03, false, "%s: chunks of %d differ from one piece by %.4f", name,
                  chunks[i], d);
        }
        if (first)
            free(l);
        else
            first = l;
    }
    free(first);
    check(true, true, "%s: chunked and token by token against one piece: worst %.4f", name, worst);
}

/* `n` sequences of different lengths decoded together, against each alone. */
static void batches_equal_single_sequences(struct rig *gpu, const char *name)
{
    static struct made_step a;
    static const int32_t sizes[] = {2, 3, 4, 5, 8, 11, 16, 24, 32, 47, 64};
    int32_t vocab = gpu->model->shape.vocab;
    double worst = 0;
    float *alone[NARROW];
    for (int32_t i = 0; i < NARROW; i++) {
        struct text t = {100 + i, i * 16, 1};
        int32_t n = 1 + i * 7 % 240;
        alone[i] = NULL;
        if (brief && i >= 5)
            continue;
        if (!prompt(gpu, &t, n, STEP_TOKENS, &a))
            continue;
        step_begin(&a);
        feed(&a, &t, n, n + 1, vocab, &greedy);
        if (step(gpu, &a))
            alone[i] = device_logits(gpu, 1);
    }
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes && !(brief && sizes[k] > 5); k++) {
        step_begin(&a);
        for (int32_t i = 0; i < sizes[k]; i++) {
            struct text t = {100 + i, i * 16, 1};
            feed(&a, &t, 1 + i * 7 % 240, 2 + i * 7 % 240, vocab, &greedy);
        }
        if (!step(gpu, &a))
            continue;
        float *l = device_logits(gpu, sizes[k]);
        for (int32_t i = 0; i < sizes[k]; i++) {
            double d =
                alone[i] ? logits_difference(l + (int64_t)i * vocab, alone[i], vocab) : HUGE_VAL;
            worst = fmax(worst, d);
            check(d < 0.03, false, "%s: sequence %d of %d differs from itself alone by %.4f", name,
                  i, sizes[k], d);
        }
        free(l);
    }
    for (int32_t i = 0; i < NARROW; i++)
        free(alone[i]);
    check(true, true, "%s: batches against single sequences: worst %.4f", name, worst);
}

/* Decodes and chunks of prompts in one step. */
static void mixed_steps_equal_separate_ones(struct rig *gpu, const char *name)
{
    static struct made_step a;
    int32_t vocab = gpu->model->shape.vocab;
    struct text t[3] = {{7, 0, 1}, {8, 64, 1}, {9, 128, 3}};
    float *want[3];
    const int32_t from[3] = {40, 33, 100}, to[3] = {41, 133, 120};
    for (int i = 0; i < 3; i++) {
        bool ok = prompt(gpu, &t[i], from[i], STEP_TOKENS, &a);
        step_begin(&a);
        feed(&a, &t[i], from[i], to[i], vocab, &greedy);
        want[i] = ok && step(gpu, &a) ? device_logits(gpu, 1) : NULL;
    }
    step_begin(&a);
    for (int i = 0; i < 3; i++)
        feed(&a, &t[i], from[i], to[i], vocab, &greedy);
    float *got = step(gpu, &a) ? device_logits(gpu, 3) : NULL;
    for (int i = 0; i < 3; i++) {
        double d =
            got && want[i] ? logits_difference(got + (int64_t)i * vocab, want[i], vocab) : HUGE_VAL;
        check(d < 0.03, true, "%s: mixed step, sequence %d: differs by %.4f", name, i, d);
        free(want[i]);
    }
    free(got);
}

static void bad_steps_are_refused(struct rig *gpu, const char *name)
{
    static struct made_step a;
    struct text t = {1, 0, 1};
    struct err e = {""};
    step_begin(&a);
    feed(&a, &t, 0, 4, gpu->model->shape.vocab, &greedy);
    a.tokens[2] = gpu->model->shape.vocab;
    check(gpu->ops->step(gpu->b, &a.step, NULL, &e) == -1 && strstr(e.msg, "token"), false,
          "%s: a token beyond the vocabulary is refused", name);
    a.tokens[2] = 0;
    a.kv_at[1] = PAGES * KV_PAGE;
    check(gpu->ops->step(gpu->b, &a.step, NULL, &e) == -1 && strstr(e.msg, "page"), false,
          "%s: a position beyond the cache is refused", name);
    a.kv_at[1] = 1;
    check(step(gpu, &a), false, "%s: and the next step runs", name);
}

/* `copies`: steps of many tokens read bf16 beside weights in their own format. */
static void steps_with(const char *name, struct model *m, bool copies)
{
    m->own_formats = true;
    m->bf16_copies = m->e4m3_products = copies;
    struct rig gpu, cpu = {0};
    if (rig_open(&gpu, &whet_backend_cuda, m, PAGES, STEP_TOKENS, STEP_ROWS) &&
        rig_open(&cpu, &backend_cpu, m, PAGES, STEP_TOKENS, STEP_ROWS)) {
        steps_equal_the_cpus(&gpu, &cpu, name);
        decode_equals_prefill(&gpu, name);
        batches_equal_single_sequences(&gpu, name);
        mixed_steps_equal_separate_ones(&gpu, name);
        bad_steps_are_refused(&gpu, name);
    }
    rig_close(&gpu);
    rig_close(&cpu);
    model_close(m);
}

void test_steps_of(const struct shape_row *row, enum dtype type)
{
    steps_with(row->name, model_random(&row->shape, type, 11), false);
    if (brick_bytes((int)type))
        steps_with(row->name, model_random(&row->shape, type, 11), true);
}

void test_steps_mixed(const struct shape_row *row, enum dtype type, enum dtype more)
{
    for (int copies = 0; copies < 2; copies++)
        steps_with(row->name, model_random_mixed(&row->shape, type, more, 11), copies);
}

void test_steps(void)
{
    for (int i = 0; i < device_shape_count; i++)
        if (strstr(device_shapes[i].name, part_of))
            test_steps_of(&device_shapes[i], DTYPE_BF16);
}
