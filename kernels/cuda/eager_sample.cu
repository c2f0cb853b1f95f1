/* SPDX-License-Identifier: Apache-2.0 */
/* eager_sample.cu - from a row of logits to a token, as engine/sampler.c defines it.
 *
 * One block a row. The order of operations, of candidates (higher weight first, lower id among
 * equals) and of random numbers is the CPU sampler's, and so are the weights, bit for bit: the
 * same polynomial for the exponential, without contraction. Sums are of fixed-point numbers, so
 * that they do not depend on the order in which threads add; they agree with the CPU's sums in
 * double to about 1e-13, so a draw differs only when it falls on such a boundary.
 *
 * Cuts are found by radix selection over the bits of the weights (non-negative floats sort like
 * their bits): four passes over the row for top-k, by count, and for top-p, by mass. What a cut
 * leaves is said by the smallest weight kept and, among equals, the highest id kept.
 *
 * A thread owns a contiguous stretch of ids, so that walks in order of id (the draw, ties) are a
 * scan over threads and then one thread's walk.
 */
#include "cuda/lib/device.cuh"
#include "eager.h"

enum { THREADS = 1024, DIGITS = 256 };
#define ONE ((double)(1ull << 44)) /* fixed-point weight 1 */

typedef unsigned long long fixed;

struct shared {
    fixed bin[DIGITS];
    fixed scan[33];
    float f[33];
    int id;
    unsigned prefix;
    fixed left;
};

/* ---- the block as one ---------------------------------------------------------------------- */

__device__ fixed sum_fixed(fixed v, struct shared *s)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(WARP_ALL, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->scan[threadIdx.x / 32] = v;
    __syncthreads();
    fixed sum = 0;
    for (int i = 0; i < THREADS / 32; i++)
        sum += s->scan[i];
    return sum;
}

/* Sum of the v of all threads before this one. */
__device__ fixed sum_before(fixed v, struct shared *s)
{
    int lane = threadIdx.x % 32;
    fixed inclusive = v;
    for (int o = 1; o < 32; o <<= 1) {
        fixed other = __shfl_up_sync(WARP_ALL, inclusive, o);
        inclusive += lane >= o ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        s->scan[threadIdx.x / 32] = inclusive;
    __syncthreads();
    fixed sum = inclusive - v;
    for (int i = 0; i < (int)threadIdx.x / 32; i++)
        sum += s->scan[i];
    return sum;
}

__device__ float max_float(float v, struct shared *s)
{
    for (int o = 16; o > 0; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(WARP_ALL, v, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->f[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        v = fmaxf(v, s->f[i]);
    return v;
}

/* The lowest id that any thread names, or vocab. */
__device__ int min_id(int id, struct shared *s)
{
    __syncthreads();
    if (threadIdx.x == 0)
        s->id = 0x7fffffff;
    __syncthreads();
    atomicMin(&s->id, id);
    __syncthreads();
    return s->id;
}

/* ---- weights ------------------------------------------------------------------------------- */

/* e^x for x <= 0, with the CPU sampler's operations in its order. */
__device__ __forceinline__ float exp_neg(float x)
{
    if (!(x > -87.0f))
        return 0;
    int n = (int)__fsub_rn(__fmul_rn(x, 1.44269504f), 0.5f);
    float r = __fadd_rn(__fsub_rn(x, __fmul_rn((float)n, 0.693359375f)),
                        __fmul_rn((float)n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    return __fmul_rn(p, __int_as_float((n + 127) << 23));
}

__device__ __forceinline__ fixed to_fixed(float weight)
{
    return (fixed)((double)weight * ONE);
}

/* weight = exp((logit - top) / temperature) of this thread's stretch; returns its sum. */
__device__ fixed weigh(const float *logits, float *weight, int from, int to, float top,
                       float temperature)
{
    float inv = 1.0f / temperature;
    fixed sum = 0;
    for (int i = from; i < to; i++) {
        float w = exp_neg(__fmul_rn(__fsub_rn(logits[i], top), inv));
        if (weight)
            weight[i] = w;
        sum += to_fixed(w);
    }
    return sum;
}

/* ---- selection ----------------------------------------------------------------------------- */

__device__ __forceinline__ unsigned sortable(float v)
{
    unsigned bits = __float_as_uint(v);
    if (!(v > -INFINITY))
        return 0;
    bits = bits == 0x80000000u ? 0 : bits;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

enum key { KEY_WEIGHT, KEY_LOGIT };

__device__ __forceinline__ unsigned key_of(const float *v, int i, enum key kind)
{
    return kind == KEY_WEIGHT ? __float_as_uint(v[i]) : sortable(v[i]);
}

/* The key at which the entries up to it, in falling order, first reach `want` (a count, or the mass
 * of their weights), and in s->left what those of equal key must still contribute. */
__device__ unsigned select_key(const float *v, int from, int to, enum key kind, bool mass,
                               fixed want, struct shared *s)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        s->prefix = 0;
        s->left = want;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGITS; i += THREADS)
            s->bin[i] = 0;
        __syncthreads();
        unsigned prefix = s->prefix, mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (int i = from; i < to; i++) {
            unsigned k = key_of(v, i, kind);
            if (k && ((k ^ prefix) & mask) == 0)
                atomicAdd(&s->bin[k >> shift & 255], mass ? to_fixed(v[i]) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = DIGITS - 1;
            while (digit > 0 && s->bin[digit] < s->left)
                s->left -= s->bin[digit--];
            s->prefix |= (unsigned)digit << shift;
        }
        __syncthreads();
    }
    return s->prefix;
}

/* Id of entry number `n` (from 1) among those with key `k`, by rising id; vocab if fewer. */
__device__ int nth_equal(const float *v, int from, int to, int vocab, enum key kind, unsigned k,
                         fixed n, struct shared *s)
{
    fixed mine = 0;
    int found = 0x7fffffff;
    for (int i = from; i < to; i++)
        mine += key_of(v, i, kind) == k;
    fixed before = sum_before(mine, s);
    for (int i = from; i < to && before < n; i++)
        if (key_of(v, i, kind) == k && ++before == n)
            found = i;
    found = min_id(found, s);
    return found == 0x7fffffff ? vocab : found;
}

/* Zeroes the weights after (k, id) in order. */
__device__ void cut_after(float *weight, int from, int to, unsigned k, int id)
{
    for (int i = from; i < to; i++) {
        unsigned w = __float_as_uint(weight[i]);
        if (w < k || (w == k && i > id))
            weight[i] = 0;
    }
    __syncthreads();
}

__device__ void cut_top_k(float *w, int from, int to, int vocab, int k, struct shared *s)
{
    fixed some = 0; /* fewer than k above zero: nothing to cut */
    for (int i = from; i < to; i++)
        some += w[i] > 0;
    if (sum_fixed(some, s) <= (fixed)k)
        return;
    unsigned key = select_key(w, from, to, KEY_WEIGHT, false, (fixed)k, s);
    int id = nth_equal(w, from, to, vocab, KEY_WEIGHT, key, s->left, s);
    cut_after(w, from, to, key, id);
}

__device__ void cut_top_p(float *w, int from, int to, int vocab, float p, struct shared *s)
{
    fixed sum = 0;
    for (int i = from; i < to; i++)
        sum += to_fixed(w[i]);
    sum = sum_fixed(sum, s);
    fixed want = (fixed)((double)sum * p);
    unsigned key = select_key(w, from, to, KEY_WEIGHT, true, want > 0 ? want : 1, s);
    fixed each = to_fixed(__uint_as_float(key)), left = s->left;
    fixed n = each > 0 ? (left + each - 1) / each : 1;
    int id = nth_equal(w, from, to, vocab, KEY_WEIGHT, key, n > 0 ? n : 1, s);
    cut_after(w, from, to, key, id);
}

/* ---- the draw ------------------------------------------------------------------------------ */

/* Philox 4x32-10; the first two words of (seed, index), as a number in [0, 1) with 53 bits. */
__device__ double uniform(fixed seed, fixed index)
{
    unsigned c0 = (unsigned)index, c1 = (unsigned)(index >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned a = __umulhi(0xd2511f53u, c0), b = __umulhi(0xcd9e8d57u, c2);
        unsigned la = 0xd2511f53u * c0, lb = 0xcd9e8d57u * c2;
        c0 = b ^ c1 ^ k0;
        c1 = lb;
        c2 = a ^ c3 ^ k1;
        c3 = la;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (double)(((fixed)c0 << 32 | c1) >> 11) * 0x1p-53;
}

__device__ int draw(const float *w, int from, int to, double u, struct shared *s)
{
    fixed mine = 0;
    for (int i = from; i < to; i++)
        mine += to_fixed(w[i]);
    fixed total = sum_fixed(mine, s), before = sum_before(mine, s);
    fixed point = (fixed)(u * (double)total);
    int found = 0x7fffffff;
    for (int i = from; i < to && before <= point && found == 0x7fffffff; i++) {
        before += to_fixed(w[i]);
        if (before > point)
            found = i;
    }
    return min_id(found, s);
}

/* ---- one row ------------------------------------------------------------------------------- */

/* A token of the history, drawn `times` times: rounded as the CPU's sampler rounds. */
__device__ void penalize(float *l, const struct eager_sample *r, float times)
{
    float cost =
        times > 0 ? __fadd_rn(r->presence_penalty, __fmul_rn(r->frequency_penalty, times)) : 0;
    *l =
        __fsub_rn(*l > 0 ? *l / r->repetition_penalty : __fmul_rn(*l, r->repetition_penalty), cost);
}

/* `unseen`: one more token that was drawn, or -1; it may be in the list or not. */
__device__ void adjust(float *logits, const struct eager_sample *r, const struct eager_adjust *list,
                       int unseen, int vocab)
{
    __shared__ int listed;
    if (threadIdx.x == 0)
        listed = unseen < 0;
    __syncthreads();
    for (int kind = EAGER_BIAS; kind <= EAGER_BAN; kind++) {
        for (int i = threadIdx.x; i < r->adjusts; i += THREADS) {
            const struct eager_adjust *a = &list[r->adjust_at + i];
            if (a->kind != kind || a->id < 0 || a->id >= vocab)
                continue;
            float *l = &logits[a->id];
            if (kind == EAGER_BIAS)
                atomicAdd(l, a->value);
            else if (kind == EAGER_BAN)
                *l = -INFINITY;
            else
                penalize(l, r, a->value + (a->id == unseen));
            if (kind == EAGER_PENALTY && a->id == unseen)
                listed = 1;
        }
        __syncthreads();
        if (kind == EAGER_PENALTY && threadIdx.x == 0 && !listed)
            penalize(&logits[unseen], r, 1);
        __syncthreads();
    }
}

/* The n best logits with their log-probabilities, best first. */
__device__ void best(const float *logits, int from, int to, int vocab, int n, float top,
                     double log_sum, struct eager_sampled *out, struct shared *s)
{
    __shared__ uint64_t kept[EAGER_TOPS];
    __shared__ int have;
    fixed some = 0;
    for (int i = from; i < to; i++)
        some += sortable(logits[i]) > 0;
    some = sum_fixed(some, s);
    n = n < EAGER_TOPS ? n : EAGER_TOPS;
    n = some < (fixed)n ? (int)some : n;
    if (threadIdx.x == 0)
        have = 0;
    unsigned key = n > 0 ? select_key(logits, from, to, KEY_LOGIT, false, (fixed)n, s) : ~0u;
    int id = n > 0 ? nth_equal(logits, from, to, vocab, KEY_LOGIT, key, s->left, s) : -1;
    for (int i = from; i < to; i++) {
        unsigned k = sortable(logits[i]);
        if (n > 0 && (k > key || (k == key && i <= id)))
            kept[atomicAdd(&have, 1)] = (uint64_t)k << 32 | (0xffffffffu - (unsigned)i);
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        uint64_t mine = kept[threadIdx.x];
        int place = 0;
        for (int i = 0; i < n; i++)
            place += kept[i] > mine;
        int token = (int)(0xffffffffu - (unsigned)mine);
        float l = logits[token];
        out->top_id[place] = token;
        out->top_logprob[place] =
            isinf(top) ? (l == top && top > 0 ? 0 : -INFINITY) : (float)((double)l - log_sum);
    }
    if (threadIdx.x == 0)
        out->tops = n;
    __syncthreads();
}

SAMPLING_NUMBERS_ARE(6);

KERNEL __launch_bounds__(THREADS) eager_sample(const __grid_constant__ struct eager_sample_args a)
{
    __shared__ struct shared s;
    after_previous();
    const struct eager_sample *r = &a.sample[blockIdx.x];
    int vocab = a.vocab, each = (vocab + THREADS - 1) / THREADS;
    int from = min((int)threadIdx.x * each, vocab), to = min(from + each, vocab);
    float *logits = a.logits + (size_t)r->row * vocab;
    float *weight = a.weight + (size_t)blockIdx.x * vocab;
    struct eager_sampled *out = &a.out[r->row];
    bool fixed_token = r->target >= 0, scored = fixed_token || r->tops >= 0;
    bool penalties =
        r->repetition_penalty != 1 || r->presence_penalty != 0 || r->frequency_penalty != 0;
    if (!fixed_token)
        adjust(logits, r, a.adjust, penalties && r->unseen >= 0 ? a.seen[r->unseen] : -1, vocab);
    float top = -INFINITY;
    for (int i = from; i < to; i++)
        top = logits[i] > top ? logits[i] : top;
    top = max_float(top, &s);
    double log_sum = 0;
    if (threadIdx.x == 0)
        out->tops = 0;
    if (scored) {
        fixed sum = sum_fixed(weigh(logits, 0, from, to, top, 1), &s);
        log_sum = (double)top + log((double)sum / ONE);
        if (r->tops > 0)
            best(logits, from, to, vocab, r->tops, top, log_sum, out, &s);
    }
    int token = r->target;
    if (!fixed_token && top == -INFINITY) {
        token = -1;
    } else if (!fixed_token && (r->temperature < 1e-5f || isinf(top))) {
        int mine = 0x7fffffff;
        for (int i = from; i < to && mine == 0x7fffffff; i++)
            if (logits[i] == top)
                mine = i;
        token = min_id(mine, &s);
    } else if (!fixed_token) {
        weigh(logits, weight, from, to, top, r->temperature);
        __syncthreads();
        if (r->top_k > 0 && r->top_k < vocab)
            cut_top_k(weight, from, to, vocab, r->top_k, &s);
        if (r->top_p < 1)
            cut_top_p(weight, from, to, vocab, r->top_p, &s);
        if (r->min_p > 0)
            cut_after(weight, from, to, __float_as_uint(r->min_p), vocab);
        token = draw(weight, from, to, uniform(r->seed, r->index), &s);
    }
    if (threadIdx.x > 0)
        return;
    float logit = token >= 0 ? logits[token] : -INFINITY;
    out->token = token;
    a.drawn[r->row] = token;
    if (scored)
        out->logprob = isinf(top) ? (logit == top && top > 0 ? 0 : -INFINITY)
                                  : (float)((double)logit - log_sum);
}
