/* sampler.c - logits in, one token out.
 *
 * A vocabulary has 50k to 150k entries and this runs once a token, so every pass over all of them
 * is a plain loop over 16 lanes that compilers turn into vector code, and the exponentials are a
 * polynomial in such a loop. Whatever needs an order (top-k, top-p, min-p) first narrows the
 * field with a threshold that provably keeps every survivor, and sorts only that.
 *
 * Order of candidates everywhere: higher logit first, lower id first among equals. The draw walks
 * candidates in that order (in id order when nothing was cut), so a token is a pure function of
 * logits, parameters, seed and index.
 *
 * Weights are exp((logit - largest) / temperature); sums of them are taken in double over blocks,
 * so that a cut at top_p = 0.999 means what it says on a vocabulary of 150k.
 */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16, BLOCK = 1024 };

/* Below this temperature every weight but the largest is 0 anyway. */
#define GREEDY_BELOW 1e-5f

/* ---- random numbers ------------------------------------------------------------------------ */

void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0;
        uint64_t b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void philox(uint64_t seed, uint64_t index, uint32_t lane, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), lane, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox_block(counter, key, out);
}

/* Uniform in [0, 1) with 53 bits. */
static double uniform(uint64_t seed, uint64_t index)
{
    uint32_t w[4];
    philox(seed, index, 0, w);
    return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
}

/* ---- passes over the vocabulary ------------------------------------------------------------ */

static float largest(const float *logits, int32_t n)
{
    float lane[LANES];
    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
    for (; i < n; i++)
        lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
    for (int j = 1; j < LANES; j++)
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/* Lowest id whose logit is `value`. */
static int32_t first_at(const float *logits, int32_t n, float value)
{
    int32_t i = 0;
    while (i < n - 1 && logits[i] != value)
        i++;
    return i;
}

/* e^x for x <= 0: 2^n * p(r), r in [-0.5, 0.5]; within 3 units in the last place. Below -87 the
 * true value is under the smallest normal float and 0 is returned. */
static inline float exp_neg(float x)
{
    float t = x > -87.0f ? x : -87.0f; /* also turns NaN into -87 */
    float y = t * 1.44269504f;
    int32_t n = (int32_t)(y - 0.5f); /* y <= 0: truncation rounds to nearest */
    float r = (t - (float)n * 0.693359375f) + (float)n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union {
        int32_t i;
        float f;
    } scale = {.i = (n + 127) << 23};
    return x > -87.0f ? p * scale.f : 0.0f;
}

/* weight[i] = exp((logits[i] - top) / temperature); returns their sum. weight may be NULL. */
static double weigh(const float *logits, int32_t n, float top, float temperature, float *weight)
{
    float block[BLOCK], inv = 1.0f / temperature;
    double sum = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        int32_t len = n - at < BLOCK ? n - at : BLOCK;
        float *w = weight ? weight + at : block, lane[LANES] = {0};
        for (int32_t i = 0; i < len; i++)
            w[i] = exp_neg((logits[at + i] - top) * inv);
        int32_t i = 0;
        for (; i + LANES <= len; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += w[i + j];
        for (; i < len; i++)
            lane[0] += w[i];
        for (int j = 0; j < LANES; j++)
            sum += lane[j];
    }
    return sum;
}

/* ---- bias, penalties, log-probabilities ---------------------------------------------------- */

/* `count` [vocab] is scratch: only the entries of tokens in the history are touched. */
static void penalize(float *logits, int32_t vocab, const struct sample_row *row, int32_t *count)
{
    const struct sampling *s = row->params;
    if (s->repetition_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0)
        return;
    const int32_t *h = row->history;
    for (int32_t i = 0; i < row->history_n; i++)
        if (h[i] >= 0 && h[i] < vocab)
            count[h[i]] = 0;
    for (int32_t i = row->prompt_n; i < row->history_n; i++)
        if (h[i] >= 0 && h[i] < vocab)
            count[h[i]]++;
    for (int32_t i = 0; i < row->history_n; i++) {
        if (h[i] < 0 || h[i] >= vocab || count[h[i]] < 0)
            continue;
        float *l = &logits[h[i]];
        *l = *l > 0 ? *l / s->repetition_penalty : *l * s->repetition_penalty;
        if (count[h[i]] > 0)
            *l -= s->presence_penalty + s->frequency_penalty * (float)count[h[i]];
        count[h[i]] = -1; /* once a token */
    }
}

static void adjust(float *logits, int32_t vocab, const struct sample_row *row, void *scratch)
{
    const struct sampling *s = row->params;
    for (int32_t i = 0; i < s->biases; i++)
        if (s->bias[i].id >= 0 && s->bias[i].id < vocab)
            logits[s->bias[i].id] += s->bias[i].bias;
    penalize(logits, vocab, row, scratch);
    for (int32_t i = 0; i < s->banneds; i++)
        if (s->banned[i] >= 0 && s->banned[i] < vocab)
            logits[s->banned[i]] = -INFINITY;
}

/* The n best, by insertion: after the first few hundred entries hardly any passes the test. */
static void best(const float *logits, int32_t vocab, int32_t n, struct sampled *out)
{
    int32_t have = 0;
    n = n < SAMPLER_TOP_MAX ? n : SAMPLER_TOP_MAX;
    for (int32_t i = 0; i < vocab; i++) {
        float l = logits[i];
        if (!(l > -INFINITY) || (have == n && l <= out->top_logprob[n - 1]))
            continue;
        int32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && l > out->top_logprob[at - 1]; at--) {
            out->top_logprob[at] = out->top_logprob[at - 1];
            out->top_id[at] = out->top_id[at - 1];
        }
        out->top_logprob[at] = l;
        out->top_id[at] = i;
    }
    out->tops = have;
}

/* ---- cuts ---------------------------------------------------------------------------------- */

struct candidate {
    float weight;
    int32_t id;
};

static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool below(const struct candidate *a, const struct candidate *b)
{
    return a->weight < b->weight || (a->weight == b->weight && a->id > b->id);
}

static void sift_down(struct candidate *heap, int32_t n, int32_t i)
{
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && below(&heap[child + 1], &heap[child]))
            child++;
        if (!below(&heap[child], &heap[i]))
            return;
        struct candidate t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
    }
}

/* The k candidates of largest weight: a heap with the smallest on top, one comparison an entry. */
static int32_t keep_top_k(const float *weight, int32_t vocab, int32_t k, struct candidate *c)
{
    for (int32_t i = 0; i < k; i++)
        c[i] = (struct candidate){weight[i], i};
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        sift_down(c, k, i);
    for (int32_t i = k; i < vocab; i++)
        if (weight[i] > c[0].weight) {
            c[0] = (struct candidate){weight[i], i};
            sift_down(c, k, 0);
        }
    return k;
}

static int32_t keep_above(const float *weight, int32_t vocab, float floor, struct candidate *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < vocab; i++)
        if (weight[i] >= floor && weight[i] > 0)
            c[n++] = (struct candidate){weight[i], i};
    return n;
}

static double total_of(const struct candidate *c, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* Everything that can survive top_p: all entries above a floor, lowered until what is above it
 * holds top_p of the mass. The survivors are the largest ones, so none is below that floor. */
static int32_t keep_mass(const float *weight, int32_t vocab, double mass, struct candidate *c)
{
    for (float floor = 0x1p-6f; floor > 0x1p-40f; floor *= 0x1p-6f) {
        int32_t n = keep_above(weight, vocab, floor, c);
        if (total_of(c, n) >= mass)
            return n;
    }
    return keep_above(weight, vocab, 0, c);
}

/* Draws among candidates in their order; the last one catches rounding. */
static int32_t draw(const struct candidate *c, int32_t n, double u)
{
    double left = u * total_of(c, n);
    int32_t i = 0;
    while (i < n - 1 && (left -= c[i].weight) >= 0)
        i++;
    return c[i].id;
}

/* Draws among all entries in id order. */
static int32_t draw_all(const float *weight, int32_t vocab, double total, double u)
{
    double left = u * total;
    int32_t last = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (weight[i] <= 0)
            continue;
        last = i;
        left -= weight[i];
        if (left < 0)
            break;
    }
    return last;
}

/* scratch: candidates [vocab]; the weights overwrite the logits. */
static int32_t choose(float *logits, int32_t vocab, float top, const struct sample_row *row,
                      struct candidate *c)
{
    const struct sampling *s = row->params;
    double u = uniform(s->seed, row->index);
    double total = weigh(logits, vocab, top, s->temperature, logits);
    bool cut_k = s->top_k > 0 && s->top_k < vocab, cut_p = s->top_p<1, cut_min = s->min_p> 0;
    if (!cut_k && !cut_p && !cut_min)
        return draw_all(logits, vocab, total, u);

    int32_t n;
    if (cut_k)
        n = keep_top_k(logits, vocab, s->top_k, c);
    else if (cut_p)
        n = keep_mass(logits, vocab, total * s->top_p, c);
    else
        n = keep_above(logits, vocab, s->min_p, c);
    qsort(c, (size_t)n, sizeof *c, by_weight);
    if (cut_k)
        total = total_of(c, n);
    if (cut_p) {
        double left = total * s->top_p;
        int32_t kept = 0;
        while (kept < n && (kept == 0 || left > 0))
            left -= c[kept++].weight;
        n = kept;
    }
    /* The largest weight is 1, so min_p is a floor on the weights themselves. */
    while (n > 1 && (c[n - 1].weight < s->min_p || c[n - 1].weight <= 0))
        n--;
    return draw(c, n, u);
}

/* ---- one row ------------------------------------------------------------------------------- */

int64_t sampler_scratch_bytes(int32_t vocab)
{
    return (int64_t)vocab * (int64_t)sizeof(struct candidate);
}

/* Logarithm of the probability of a logit; an infinite largest logit has all of it. */
static float log_probability(double logit, float top, double log_sum)
{
    if (isinf(top))
        return logit == top && top > 0 ? 0 : -INFINITY;
    return (float)(logit - log_sum);
}

void sampler_run(float *logits, int32_t vocab, struct sample_row *row, void *scratch)
{
    const struct sampling *s = row->params;
    struct sampled *out = &row->out;
    bool fixed = row->target >= 0;
    memset(out, 0, sizeof *out);
    out->token = row->target;
    if (!fixed)
        adjust(logits, vocab, row, scratch);
    float top = largest(logits, vocab);
    double log_sum = 0;
    bool scored = fixed || s->top_logprobs >= 0;
    if (scored) {
        log_sum = (double)top + log(weigh(logits, vocab, top, 1, NULL));
        if (s->top_logprobs > 0)
            best(logits, vocab, s->top_logprobs, out);
        for (int32_t i = 0; i < out->tops; i++)
            out->top_logprob[i] = log_probability(out->top_logprob[i], top, log_sum);
    }
    double logit;
    if (fixed) {
        logit = logits[out->token];
    } else if (top == -INFINITY) {
        out->token = -1;
        logit = top;
    } else if (s->temperature < GREEDY_BELOW || isinf(top)) {
        out->token = first_at(logits, vocab, top);
        logit = top;
    } else {
        out->token = choose(logits, vocab, top, row, scratch);
        /* The weights have replaced the logits, so the chosen one's is worked out backwards. */
        logit = top + log(logits[out->token]) * s->temperature;
    }
    if (scored)
        out->logprob = log_probability(logit, top, log_sum);
}
