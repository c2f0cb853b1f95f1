/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn_pairs.c - attention of few tokens over keys and values in bf16, widened in registers.
 *
 * 32 bits of memory hold a pair of neighbouring elements, and each is one operation away from being
 * a float: a shift gives that with the even number, a mask that with the odd one. So one load and
 * two operations widen two vectors, without the shuffles of widening in order, and nothing is
 * written to be read again. Elements come out in another order, evens and odds apart: q is brought
 * into it once, sums over dimensions are folded in the tree of lane_fold() from there, and values
 * stay in it until all are summed. The bits are those of the canonical order.
 */
#include "engine/cpu/eager_attn_narrow.h"

#if defined(__AVX2__)

#define UNROLLED _Pragma("GCC unroll 16")

static inline vec even_of(vec_int pairs)
{
    return (vec)(pairs << 16);
}

static inline vec odd_of(vec_int pairs)
{
    return (vec)(pairs & -65536);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* A vector holds 16 elements of a key; with AVX-512, of each of two neighbours. */
enum { KEYS = VEC / 8 };

static inline vec_int pairs_of_keys(const char *k, int64_t row)
{
#if defined(__AVX512F__)
    __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)k));
    __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)(k + row));
    return (vec_int)_mm512_inserti64x4(first, second, 1);
#else
    (void)row;
    return VEC_LOAD(vec_int, k);
#endif
}

/* Eight of q, for each of them. */
static inline vec for_keys(const float *q)
{
#if defined(__AVX512F__)
    return (vec)_mm512_broadcast_f64x4(_mm256_castps_pd(_mm256_loadu_ps(q)));
#else
    return VEC_LOAD(vec, q);
#endif
}

/* Sets of 16: those with even numbers, then those with odd ones. */
void EAGER(pairs_of)(const float *q, int64_t head_dim, float *to)
{
    for (int64_t d = 0; d < head_dim; d++)
        to[d / LANES * LANES + d % 2 * 8 + d % LANES / 2] = q[d];
}

/* p[j] = scale * lane_fold() of the 16 sums of key j, 8 of which are in even[j / KEYS] and 8 in
 * odd[j / KEYS]: lane l is added to l + 8, l + 4, l + 2 among those of its kind, and evens to odds
 * last. */
static inline void fold(const vec even[4], const vec odd[4], float scale, float *p)
{
    vec a[4], b[2], c;
#if defined(__AVX512F__)
    for (int i = 0; i < 4; i++) /* of each of two keys: 4 evens, 4 odds */
        a[i] = SHUFFLE(even[i], odd[i], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               SHUFFLE(even[i], odd[i], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        b[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28,
                       29) +
               SHUFFLE(a[2 * i], a[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15,
                       30, 31);
    /* evens of keys 0, 2, 4, 6, their odds, evens of keys 1, 3, 5, 7, their odds */
    c = SHUFFLE(b[0], b[1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
        SHUFFLE(b[0], b[1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
    c += SHUFFLE(c, c, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    c = SHUFFLE(c, c, 0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    for (int i = 0; i < 4; i++) /* 4 evens, 4 odds */
        a[i] = SHUFFLE(even[i], odd[i], 0, 1, 2, 3, 8, 9, 10, 11) +
               SHUFFLE(even[i], odd[i], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++) /* of two keys: 2 evens of each, 2 odds of each */
        b[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               SHUFFLE(a[2 * i], a[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    /* evens of the four keys, their odds */
    c = SHUFFLE(b[0], b[1], 0, 2, 8, 10, 4, 6, 12, 14) +
        SHUFFLE(b[0], b[1], 1, 3, 9, 11, 5, 7, 13, 15);
    c += SHUFFLE(c, c, 4, 5, 6, 7, 0, 1, 2, 3);
#endif
    c *= scale;
    memcpy(p, &c, PAIRS_KEYS * sizeof *p);
}

/* A head is `sets` whole sets of 16. */
static inline __attribute__((always_inline)) void scores(const float *q, const char *k,
                                                         const int64_t sets, float scale,
                                                         struct stream *next, float *p)
{
    const int64_t row = sets * LANES * 2;
    for (int j = 0; j < KV_PAGE; j += PAIRS_KEYS, k += PAIRS_KEYS * row) {
        vec even[4] = {{0}}, odd[4] = {{0}};
        _Pragma("GCC unroll 8") for (int64_t s = 0; s < sets; s++)
        {
            vec q_even = for_keys(q + s * LANES), q_odd = for_keys(q + s * LANES + 8);
            ask(next);
            UNROLLED
            for (int i = 0; i < 4; i++) {
                vec_int pairs = pairs_of_keys(k + i * KEYS * row + s * LANES * 2, row);
                even[i] = vec_fma(q_even, even_of(pairs), even[i]);
                odd[i] = vec_fma(q_odd, odd_of(pairs), odd[i]);
            }
        }
        fold(even, odd, scale, p + j);
    }
}

/* Usual sizes as constants. */
void EAGER(pairs_scores)(const float *q, const char *k, int64_t head_dim, float scale,
                         struct stream *next, float *p)
{
    if (head_dim == 64)
        scores(q, k, 4, scale, next, p);
    else if (head_dim == 128)
        scores(q, k, 8, scale, next, p);
    else
        scores(q, k, head_dim / LANES, scale, next, p);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Blocks of so many dimensions are evens, then odds while they are summed; the half of one that
 * AVX-512 leaves of an odd number of sets is in order. */
enum { BLOCK = 2 * VEC, BLOCKS = SETS * LANES / BLOCK };

/* Accumulators of two blocks of three heads, a weight, a mask and a widened block are all registers
 * of AVX2. This makes the compiler load a weight where it is used, and not before, for which it
 * would put accumulators into memory. */
#define NO_SOONER(pointer) __asm__ volatile("" : "+r"(pointer))

/* out += sum_j p[j] v_j for `heads` heads and `blocks` blocks. */
static inline __attribute__((always_inline)) void values(const float *p, int64_t ldp, const char *v,
                                                         int32_t hd, int32_t keys, const int heads,
                                                         const int blocks, struct stream *next,
                                                         float *out)
{
    vec even[HEADS][BLOCKS], odd[HEADS][BLOCKS];
    UNROLLED
    for (int g = 0; g < heads; g++) {
        UNROLLED
        for (int b = 0; b < blocks; b++) {
            even[g][b] = VEC_LOAD(vec, out + g * hd + b * BLOCK);
            odd[g][b] = VEC_LOAD(vec, out + g * hd + b * BLOCK + VEC);
        }
    }
    for (int32_t j = 0; j < keys; j++, v += 2 * (int64_t)hd) {
        ask(next);
        UNROLLED
        for (int b = 0; b < blocks; b++) {
            vec_int pairs = VEC_LOAD(vec_int, v + b * BLOCK * 2);
            vec v_even = even_of(pairs), v_odd = odd_of(pairs);
            const float *at = p + j;
            UNROLLED
            for (int g = 0; g < heads; g++) {
                NO_SOONER(at);
                vec weight = vec_set(at[g * ldp]);
                even[g][b] = vec_fma(weight, v_even, even[g][b]);
                odd[g][b] = vec_fma(weight, v_odd, odd[g][b]);
            }
        }
    }
    UNROLLED
    for (int g = 0; g < heads; g++) {
        UNROLLED
        for (int b = 0; b < blocks; b++) {
            memcpy(out + g * hd + b * BLOCK, &even[g][b], sizeof(vec));
            memcpy(out + g * hd + b * BLOCK + VEC, &odd[g][b], sizeof(vec));
        }
    }
}

static inline __attribute__((always_inline)) void
values_heads(const float *p, int64_t ldp, const char *v, int32_t hd, int32_t keys, int32_t heads,
             const int blocks, struct stream *next, float *out)
{
    if (heads == HEADS)
        values(p, ldp, v, hd, keys, HEADS, blocks, next, out);
    else if (heads == HEADS - 1)
        values(p, ldp, v, hd, keys, HEADS - 1, blocks, next, out);
    else if (heads == 2)
        values(p, ldp, v, hd, keys, 2, blocks, next, out);
    else
        values(p, ldp, v, hd, keys, 1, blocks, next, out);
}

void EAGER(pairs_values)(const float *p, int64_t ldp, const char *v, int32_t hd, int32_t keys,
                         int32_t heads, struct stream *next, float *out)
{
    int32_t d = 0;
    for (; d + BLOCKS * BLOCK <= hd; d += BLOCKS * BLOCK)
        values_heads(p, ldp, v + 2 * d, hd, keys, heads, BLOCKS, next, out + d);
    for (; d + BLOCK <= hd; d += BLOCK)
        values_heads(p, ldp, v + 2 * d, hd, keys, heads, 1, next, out + d);
    for (int32_t g = 0; d < hd && g < heads; g++) {
        vec sum = VEC_LOAD(vec, out + g * hd + d);
        for (int32_t j = 0; j < keys; j++) {
            ask(next);
            vec value = vec_from_bf16((const uint8_t *)v + 2 * ((int64_t)j * hd + d));
            sum = vec_fma(vec_set(p[g * ldp + j]), value, sum);
        }
        memcpy(out + g * hd + d, &sum, sizeof sum);
    }
}

void EAGER(pairs_back)(float *out, int64_t head_dim)
{
    for (; head_dim >= BLOCK; head_dim -= BLOCK, out += BLOCK) {
        float block[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            block[i] = out[i % 2 * VEC + i / 2];
        memcpy(out, block, sizeof block);
    }
}

#endif
