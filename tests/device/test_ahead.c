/* SPDX-License-Identifier: Apache-2.0 */
/* test_ahead.c - steps started while the one before them runs draw what they draw one by one.
 *
 * The same sequences are decoded twice from the same prompts: with each step waited for, its tokens
 * read and fed to the next; and with each step started before the one ahead of it is waited for, so
 * that tokens go from step to step on the device only. Greedy rows, drawn rows with seeds, cuts and
 * penalties (which count the token that the host has not seen), and both mixed in a batch. Ids must
 * be equal, every one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "tests/device/device_test.h"

enum { MOST = 8, PROMPT = 20, MADE = 48, LENGTH = PROMPT + MADE, PAGES_EACH = 8 };

struct sequences {
    int32_t n;
    int32_t token[MOST][LENGTH];
    struct sampling params[MOST];
};

/* Positions [from, to) of sequence i, of which `known` are known: the last may be a row of the step
 * under way, where sequence i has row i. */
static void feed(struct made_step *b, const struct sequences *q, int32_t i, int32_t from,
                 int32_t to, int32_t known)
{
    struct step *s = &b->step;
    b->span[s->spans++] = (struct span){s->m, to - from, to, s->pages};
    for (int32_t p = 0; p < PAGES_EACH; p++)
        b->table[s->pages++] = p * q->n + i; /* pages of a sequence lie apart */
    for (int32_t p = from; p < to; p++, s->m++) {
        b->tokens[s->m] = p < known ? q->token[i][p] : STEP_TOKEN_OF_ROW(i);
        b->position[s->m] = p;
        b->kv_at[s->m] = ((p / KV_PAGE) * q->n + i) * KV_PAGE + p % KV_PAGE;
    }
    b->row[s->rows] = s->m - 1;
    b->sample[s->rows++] = (struct sample_row){.params = &q->params[i],
                                               .index = (uint64_t)(to - PROMPT),
                                               .history = q->token[i],
                                               .history_n = known < to ? known : to,
                                               .prompt_n = PROMPT,
                                               .unseen = known < to ? s->m : 0,
                                               .target = -1};
    s->context = to > s->context ? to : s->context;
}

static void build(struct made_step *b, const struct sequences *q, int32_t n, int32_t known)
{
    step_begin(b);
    for (int32_t i = 0; i < q->n; i++)
        feed(b, q, i, n == PROMPT ? 0 : n - 1, n, known);
}

static void take(struct sequences *q, const struct made_step *b, int32_t n)
{
    for (int32_t i = 0; i < q->n; i++)
        q->token[i][n] = b->sample[i].out.token;
}

static bool one_by_one(struct rig *r, struct sequences *q, struct err *e)
{
    static struct made_step b;
    for (int32_t n = PROMPT; n < LENGTH; n++) {
        build(&b, q, n, n);
        if (r->ops->step(r->b, &b.step, NULL, e))
            return false;
        take(q, &b, n);
    }
    return true;
}

static bool ahead(struct rig *r, struct sequences *q, struct err *e)
{
    static struct made_step b[2];
    for (int32_t n = PROMPT; n <= LENGTH; n++) {
        struct made_step *now = &b[n % 2], *before = &b[(n + 1) % 2];
        if (n < LENGTH)
            build(now, q, n, n == PROMPT ? n : n - 1);
        if (n < LENGTH && r->ops->step_start(r->b, &now->step, NULL, e) != 0)
            return false;
        if (n > PROMPT) {
            if (r->ops->step_wait(r->b, &before->step, e))
                return false;
            take(q, before, n - 1);
        }
    }
    return true;
}

static void set_params(struct sampling *p, int32_t i, int kind)
{
    *p = (struct sampling){SAMPLING_NEUTRAL, .top_logprobs = -1};
    if (kind == 0 || (kind == 2 && i % 2))
        return;
    p->temperature = i % 4 == 3 ? 0 : 0.9f;
    p->seed = (uint64_t)i * 77 + 5;
    p->top_k = i % 3 ? 0 : 40;
    p->top_p = i % 3 == 1 ? 0.9f : 1;
    p->repetition_penalty = i % 2 ? 1 : 1.4f;
    p->presence_penalty = i % 4 == 1 ? 0.7f : 0;
    p->frequency_penalty = i % 4 >= 2 ? 0.5f : 0;
    p->top_logprobs = i % 5 == 4 ? 3 : -1;
}

static void compare(struct rig *r, const char *name, int32_t batch, int kind)
{
    static struct sequences a, b;
    struct err e = {""};
    uint64_t state = (uint64_t)batch * 10 + (uint64_t)kind;
    a.n = batch;
    for (int32_t i = 0; i < batch; i++) {
        set_params(&a.params[i], i, kind);
        for (int32_t p = 0; p < PROMPT; p++)
            a.token[i][p] = (int32_t)(rng(&state) % (uint64_t)r->model->shape.vocab);
    }
    b = a;
    int64_t t0 = clock_ns();
    bool ran = one_by_one(r, &a, &e);
    int64_t t1 = clock_ns();
    ran = ran && ahead(r, &b, &e);
    int64_t t2 = clock_ns();
    check(ran, false, "%s: batch %d, kind %d: %s", name, batch, kind, e.msg);
    int32_t different = 0;
    for (int32_t i = 0; i < batch && ran; i++)
        for (int32_t p = PROMPT; p < LENGTH; p++)
            different += a.token[i][p] != b.token[i][p];
    check(
        different == 0, true,
        "%s: batch %d, kind %d: %d of %d tokens differ when started ahead; %.1f us a step, one by "
        "one %.1f",
        name, batch, kind, different, batch * MADE, (double)(t2 - t1) * 1e-3 / MADE,
        (double)(t1 - t0) * 1e-3 / MADE);
}

void test_ahead(void)
{
    for (int i = 0; i < device_shape_count; i++) {
        struct model *m = model_random(&device_shapes[i].shape, DTYPE_BF16, 9);
        struct rig r;
        if (rig_open(&r, &whet_backend_cuda, m, MOST * PAGES_EACH, STEP_TOKENS, MOST))
            for (int kind = 0; kind < 3; kind++)
                for (int32_t batch = 1; batch <= MOST; batch *= 2)
                    compare(&r, device_shapes[i].name, batch, kind);
        rig_close(&r);
        model_close(m);
    }
}
