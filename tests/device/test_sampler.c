/* SPDX-License-Identifier: Apache-2.0 */
/* test_sampler.c - the device's sampler against the CPU's on the same logits, token for token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/step.h"
#include "tests/device/device_test.h"

enum { ROWS = 32, VOCAB = 50000, HISTORY = 300 };

static int32_t history[ROWS][HISTORY];
static struct logit_bias bias[3] = {{17, 4.0f}, {40000, -100.0f}, {123, 2.5f}};
static int32_t banned[2] = {5, 6};

SAMPLING_NUMBERS_ARE(6);

static void draw_params(struct sampling *p, struct sample_row *r, int32_t row, uint64_t *state)
{
    static const float temperature[] = {0, 0.2f, 0.7f, 1, 1.5f};
    static const float top_p[] = {1, 0.95f, 0.5f, 0.999f, 1e-6f};
    static const int32_t top_k[] = {0, 1, 5, 40, 1000, 60000};
    *p = (struct sampling){.temperature = temperature[rng(state) % 5],
                           .top_p = top_p[rng(state) % 5],
                           .min_p = rng(state) % 3 ? 0 : 0.02f,
                           .top_k = top_k[rng(state) % 6],
                           .repetition_penalty = rng(state) % 2 ? 1 : 1.3f,
                           .presence_penalty = rng(state) % 2 ? 0 : 0.5f,
                           .frequency_penalty = rng(state) % 2 ? 0 : 0.25f,
                           .seed = rng(state),
                           .top_logprobs = (int32_t)(rng(state) % 22) - 1};
    if (rng(state) % 2) {
        p->bias = bias;
        p->biases = 3;
    }
    if (rng(state) % 2) {
        p->banned = banned;
        p->banneds = 2;
    }
    *r = (struct sample_row){.params = p,
                             .index = rng(state) % 1000,
                             .history = history[row],
                             .history_n = HISTORY,
                             .prompt_n = 100,
                             .target = rng(state) % 8 ? -1 : (int32_t)(rng(state) % VOCAB)};
}

static void compare(const struct sampled *got, const struct sampled *want, bool scored, int32_t row,
                    int *different)
{
    *different += got->token != want->token;
    if (!scored)
        return;
    if (got->token == want->token)
        check(fabsf(got->logprob - want->logprob) < 1e-3f ||
                  (isinf(got->logprob) && isinf(want->logprob)),
              false, "row %d: logprob %f, the CPU says %f", row, (double)got->logprob,
              (double)want->logprob);
    check(got->tops == want->tops, false, "row %d: %d best, the CPU has %d", row, got->tops,
          want->tops);
    for (int i = 0; i < want->tops && i < got->tops; i++)
        check(got->top_id[i] == want->top_id[i] &&
                  fabsf(got->top_logprob[i] - want->top_logprob[i]) < 1e-3f,
              false, "row %d: best %d is %d (%f), the CPU says %d (%f)", row, i, got->top_id[i],
              (double)got->top_logprob[i], want->top_id[i], (double)want->top_logprob[i]);
}

static void fill_logits(float *l, uint64_t *state, int kind)
{
    for (int32_t i = 0; i < ROWS * VOCAB; i++)
        l[i] = kind == 0   ? 3 * rng_normal(state)
               : kind == 1 ? (float)(rng(state) % 7) /* many ties */
                           : (rng(state) % 50 ? -INFINITY : rng_normal(state));
    if (kind == 2)
        for (int32_t i = 0; i < VOCAB; i++)
            l[3 * VOCAB + i] = i % 2 ? NAN : -INFINITY; /* a row without a token */
}

static void round_of(struct rig *r, uint64_t *state, int kind, int *different, int *rows)
{
    static float logits[ROWS * VOCAB];
    static struct sampling params[ROWS];
    static struct sample_row gpu[ROWS], cpu[ROWS];
    struct step s = {.m = ROWS, .rows = ROWS, .sample = gpu};
    struct err e = {""};
    void *scratch = xmalloc((size_t)sampler_scratch_bytes(VOCAB));
    fill_logits(logits, state, kind);
    for (int32_t i = 0; i < ROWS; i++) {
        for (int32_t h = 0; h < HISTORY; h++)
            history[i][h] = (int32_t)(rng(state) % 400);
        draw_params(&params[i], &gpu[i], i, state);
        cpu[i] = gpu[i];
    }
    /* Half of the rows are as in a step started ahead: the device alone has the last token. */
    int32_t last[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        last[i] = history[i][HISTORY - 1];
        gpu[i].history_n -= i % 2;
        gpu[i].unseen = i % 2 ? 1 + i : 0;
    }
    struct inflight *f = &r->b->inflight[0];
    cudaMemcpy(r->b->logits, logits, sizeof logits, cudaMemcpyHostToDevice);
    cudaMemcpy(r->b->seen, last, sizeof last, cudaMemcpyHostToDevice);
    f->plain = false;
    int failed = sample_launch(r->b, f, &s, &e) || cudaStreamSynchronize(r->b->stream);
    check(!failed, false, "the sampler runs: %s", e.msg);
    if (!failed)
        sample_collect(r->b, f, &s);
    for (int32_t i = 0; i < ROWS && !failed; i++) {
        sampler_run(logits + (int64_t)i * VOCAB, VOCAB, &cpu[i], scratch);
        compare(&gpu[i].out, &cpu[i].out, params[i].top_logprobs >= 0 || gpu[i].target >= 0, i,
                different);
        ++*rows;
    }
    free(scratch);
}

void test_sampler(void)
{
    struct model_shape s = device_shapes[0].shape;
    s.vocab = VOCAB;
    struct rig r;
    uint64_t state = 1;
    int different = 0, rows = 0;
    struct model *m = model_random(&s, DTYPE_BF16, 3);
    if (rig_open(&r, &whet_backend_cuda, m, 16, 64, ROWS))
        for (int i = 0; i < (brief ? 1 : 24); i++)
            round_of(&r, &state, i % 3, &different, &rows);
    /* A draw on the very boundary between two tokens may fall to either. */
    check(different * 200 <= rows, true, "sampler: %d of %d tokens differ from the CPU's",
          different, rows);
    rig_close(&r);
    model_close(m);
}
