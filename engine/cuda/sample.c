/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - parameters of requests to the device's sampler, and its results back.
 *
 * Rows that only want the best token need nothing: the head region finds it. If any row wants more
 * - temperature, penalties, bias, log-probabilities, or scores of a prompt - all rows of the step
 * go through eager_sample, one block each.
 *
 * Penalties concern the distinct tokens of a row's history; they are counted here, because the
 * history is here, and sent as a list with the biases and the banned ids. The one token that a step
 * started ahead has on the device only is counted there. A list that does not fit any more leaves
 * its row to the CPU's sampler on the row's logits: slow, and right; the next step then waits.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

/* Decides which rows need more than the most likely token. */
SAMPLING_NUMBERS_ARE(6);

static bool penalized(const struct sampling *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static bool row_plain(const struct sample_row *r)
{
    const struct sampling *p = r->params;
    return r->target < 0 && p->temperature < 1e-5f && p->top_logprobs < 0 && p->biases == 0 &&
           p->banneds == 0 && !penalized(p);
}

bool sample_plain(const struct step *s)
{
    for (int32_t i = 0; s->sample && i < s->rows; i++)
        if (!row_plain(&s->sample[i]))
            return false;
    return true;
}

/* ---- lists --------------------------------------------------------------------------------- */

struct list {
    struct eager_adjust *at;
    int32_t n, room;
};

static void add(struct list *l, int32_t id, int32_t kind, float value)
{
    if (l->n < l->room)
        l->at[l->n] = (struct eager_adjust){id, kind, value};
    l->n++;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Each distinct token of the history once, with its count in the output. */
static void add_penalties(struct list *l, const struct sample_row *r)
{
    int32_t n = r->history_n, out = 0, outputs = n - r->prompt_n;
    int32_t *all = xmalloc((size_t)(n + 1) * sizeof *all);
    int32_t *made = xmalloc((size_t)(outputs + 1) * sizeof *made);
    memcpy(all, r->history, (size_t)n * sizeof *all);
    memcpy(made, r->history + r->prompt_n, (size_t)outputs * sizeof *made);
    qsort(all, (size_t)n, sizeof *all, by_id);
    qsort(made, (size_t)outputs, sizeof *made, by_id);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && all[i] == all[i - 1])
            continue;
        int32_t times = 0;
        while (out < outputs && made[out] < all[i])
            out++;
        for (; out < outputs && made[out] == all[i]; out++)
            times++;
        add(l, all[i], EAGER_PENALTY, (float)times);
    }
    free(all);
    free(made);
}

static void add_row(struct list *l, const struct sample_row *r)
{
    const struct sampling *p = r->params;
    for (int32_t i = 0; i < p->biases; i++)
        add(l, p->bias[i].id, EAGER_BIAS, p->bias[i].bias);
    if (penalized(p))
        add_penalties(l, r);
    for (int32_t i = 0; i < p->banneds; i++)
        add(l, p->banned[i], EAGER_BAN, 0);
}

/* ---- out and back -------------------------------------------------------------------------- */

enum { ON_CPU = -2 }; /* target: the row's list did not fit */

#define COPY(name, value, least, most) f->sample[i].name = p->name;

/* False if the CPU must draw some of the rows. */
static bool fill(struct inflight *f, const struct step *s, struct list *l)
{
    bool all = true;
    for (int32_t i = 0; i < s->rows; i++) {
        const struct sample_row *r = &s->sample[i];
        const struct sampling *p = r->params;
        int32_t at = l->n;
        if (r->target < 0)
            add_row(l, r);
        bool fits = l->n <= l->room;
        f->sample[i] = (struct eager_sample){.row = i,
                                             .target = r->target,
                                             .unseen = r->unseen - 1,
                                             .top_k = p->top_k,
                                             .tops = p->top_logprobs,
                                             .adjust_at = at,
                                             .adjusts = fits ? l->n - at : 0,
                                             .seed = p->seed,
                                             .index = r->index};
        SAMPLING_NUMBERS(COPY);
        if (!fits) {
            l->n = at;
            f->sample[i].target = ON_CPU;
            all = false;
        }
    }
    return all;
}

int sample_launch(struct backend *b, struct inflight *f, const struct step *s, struct err *e)
{
    struct list l = {f->adjust, 0, b->adjusts};
    struct walk w = {.b = b, .stream = b->stream};
    f->drawn_there = fill(f, s, &l);
    f->samples = 0;
    for (int32_t i = 0; i < s->rows; i++)
        if (f->sample[i].target != ON_CPU)
            f->sample[f->samples++] = f->sample[i];
    if (f->samples == 0)
        return 0;
    if (l.n > 0 && transfer(b, b->adjust, f->adjust, (size_t)l.n * sizeof *b->adjust, true, e))
        return -1;
    if (transfer(b, b->sample, f->sample, (size_t)f->samples * sizeof *b->sample, true, e))
        return -1;
    struct eager_sample_args a = {.sample = b->sample,
                                  .adjust = b->adjust,
                                  .logits = b->logits,
                                  .weight = b->weight,
                                  .out = f->sampled,
                                  .seen = b->seen,
                                  .drawn = b->best,
                                  .vocab = b->model->shape.vocab};
    return launch(&w, PRIM_SAMPLE, (dim3){(unsigned)f->samples, 1, 1}, 1024, 0, &a, e);
}

static bool by_device(const struct inflight *f, int32_t row)
{
    for (int32_t i = 0; i < f->samples; i++)
        if (f->sample[i].row == row)
            return true;
    return false;
}

static void on_cpu(struct backend *b, int32_t row, struct sample_row *r)
{
    int32_t vocab = b->model->shape.vocab;
    float *logits = xmalloc((size_t)vocab * sizeof *logits);
    void *scratch = xmalloc((size_t)sampler_scratch_bytes(vocab));
    if (cudaMemcpy(logits, b->logits + (int64_t)row * vocab, (size_t)vocab * 4,
                   cudaMemcpyDeviceToHost))
        memset(logits, 0xff, (size_t)vocab * 4); /* NaN: no token, which the engine reports */
    sampler_run(logits, vocab, r, scratch);
    free(logits);
    free(scratch);
}

void sample_collect(struct backend *b, const struct inflight *f, const struct step *s)
{
    for (int32_t i = 0; s->sample && i < s->rows; i++) {
        struct sampled *out = &s->sample[i].out;
        const struct eager_sampled *in = &f->sampled[i];
        if (f->plain) {
            memset(out, 0, sizeof *out);
            out->token = f->best[i];
        } else if (by_device(f, i)) {
            out->token = in->token;
            out->logprob = in->logprob;
            out->tops = in->tops;
            memcpy(out->top_id, in->top_id, sizeof out->top_id);
            memcpy(out->top_logprob, in->top_logprob, sizeof out->top_logprob);
        } else {
            on_cpu(b, i, &s->sample[i]);
        }
    }
}
