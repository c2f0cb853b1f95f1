/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h - the 16 lanes of lanes.h as vectors of the instruction set being compiled for.
 *
 * GCC's vector extension with the native width (16, 8 or 4 floats), so that one source gives good
 * code on every machine, and the same bits on all that have fused multiply-adds. A `struct lanes`
 * is one set of 16. Only static functions and no vectors in any interface: files that include this
 * are compiled several times with different -march.
 */
#ifndef WHET_ENGINE_CPU_VEC_H
#define WHET_ENGINE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/cpu/lib/lanes.h"

#if defined(__AVX512F__)
enum { VEC = 16 };
#elif defined(__AVX2__)
enum { VEC = 8 };
#else
enum { VEC = 4 };
#endif
enum { PARTS = LANES / VEC };

typedef float vec __attribute__((vector_size(4 * VEC)));
typedef int32_t vec_int __attribute__((vector_size(4 * VEC)));
typedef uint16_t vec_half __attribute__((vector_size(2 * VEC)));
typedef uint8_t vec_byte __attribute__((vector_size(VEC)));
typedef int8_t vec_sbyte __attribute__((vector_size(VEC)));

struct lanes {
    vec p[PARTS];
};

#define VEC_LOAD(type, src)          \
    __extension__({                  \
        type v_;                     \
        memcpy(&v_, src, sizeof v_); \
        v_;                          \
    })

/* a b + c as lane_fma(): with one rounding, but for x86 without the instruction (LANES_APART). */
static inline vec vec_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__x86_64__) && defined(LANES_APART)
    return a * b + c;
#elif defined(__x86_64__)
    /* The bits of the instruction without it, for tests and sanitizers: the product is exact in
     * double; the sum is rounded to odd, which survives the second rounding to float (Boldo and
     * Melquiond 2008). */
    typedef double vec_double __attribute__((vector_size(8 * VEC)));
    typedef int64_t vec_long __attribute__((vector_size(8 * VEC)));
    vec_double p = __builtin_convertvector(a, vec_double) * __builtin_convertvector(b, vec_double);
    vec_double d = __builtin_convertvector(c, vec_double);
    vec_double s = p + d, t = s - p, e = (p - (s - t)) + (d - t);
    vec_long bits = (vec_long)s, even = (bits & 1) - 1, inexact = (e < 0) | (e > 0);
    vec_long finite = (bits & 0x7ff0000000000000) != 0x7ff0000000000000;
    vec_long away = ((e > 0) == (s > 0)) & 1;
    bits += (away * 2 - 1) & inexact & even & finite;
    return __builtin_convertvector((vec_double)bits, vec);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    vec r;
    for (int i = 0; i < VEC; i++)
        r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#endif
}

static inline vec vec_set(float f)
{
    return f - (vec){0};
}

static inline struct lanes lanes_zero(void)
{
    struct lanes z = {0};
    return z;
}

/* acc += w . x, 16 of each */
static inline void lanes_fma(struct lanes *acc, const struct lanes *w, const float *x)
{
    for (int i = 0; i < PARTS; i++)
        acc->p[i] = vec_fma(w->p[i], VEC_LOAD(vec, x + i * VEC), acc->p[i]);
}

/* A vector of the elements of two others that the numbers name. GCC has clang's function for it as
 * of 12. */
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vec_int){__VA_ARGS__})
#endif

static inline struct lanes lanes_load(const float *x)
{
    struct lanes v;
    for (int i = 0; i < PARTS; i++)
        v.p[i] = VEC_LOAD(vec, x + i * VEC);
    return v;
}

/* Vector by vector: gcc copies a struct of several through the stack, eight bytes at a time. */
static inline void lanes_store(float *x, const struct lanes *v)
{
    for (int i = 0; i < PARTS; i++) {
        vec part = v->p[i];
        memcpy(x + i * VEC, &part, sizeof part);
    }
}

/* The fixed tree of lane_fold(): 8, 4, 2, 1. */
static inline float lanes_fold(const struct lanes *v)
{
    vec a = v->p[0];
#if defined(__AVX512F__)
    a += SHUFFLE(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    a += SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    return (a[0] + a[2]) + (a[1] + a[3]);
#elif defined(__AVX2__)
    a += v->p[1];
    a += SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
    return (a[0] + a[2]) + (a[1] + a[3]);
#else
    a = (a + v->p[2]) + (v->p[1] + v->p[3]);
    return (a[0] + a[2]) + (a[1] + a[3]);
#endif
}

/* The same tree for four sets at once, in a third of the operations: after each level two sets
 * share one vector. */
static inline void lanes_fold4(const struct lanes v[4], float out[4])
{
#if defined(__AVX512F__)
    vec t[2], u;
    for (int i = 0; i < 2; i++) {
        vec a = v[2 * i].p[0], b = v[2 * i + 1].p[0];
        t[i] = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    u = SHUFFLE(t[0], t[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
        SHUFFLE(t[0], t[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    u += SHUFFLE(u, u, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    u += SHUFFLE(u, u, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    for (int i = 0; i < 4; i++)
        out[i] = u[4 * i];
#elif defined(__AVX2__)
    vec t[2], u;
    for (int i = 0; i < 2; i++) {
        vec a = v[2 * i].p[0] + v[2 * i].p[1], b = v[2 * i + 1].p[0] + v[2 * i + 1].p[1];
        t[i] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
    u = SHUFFLE(t[0], t[1], 0, 1, 4, 5, 8, 9, 12, 13) +
        SHUFFLE(t[0], t[1], 2, 3, 6, 7, 10, 11, 14, 15);
    for (int i = 0; i < 4; i++)
        out[i] = u[2 * i] + u[2 * i + 1];
#else
    for (int i = 0; i < 4; i++)
        out[i] = lanes_fold(&v[i]);
#endif
}

#if defined(__AVX512F__)
/* The same tree for 16 sets at once: lane i of the result is that of v[i]. */
static inline vec lanes_fold16(const struct lanes v[16])
{
    vec a[8], b[4], c[2], d;
    for (int i = 0; i < 8; i++) /* 8 lanes of v[i], 8 lanes of v[i + 8] */
        a[i] = SHUFFLE(v[i].p[0], v[i + 8].p[0], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22,
                       23) +
               SHUFFLE(v[i].p[0], v[i + 8].p[0], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28,
                       29, 30, 31);
    for (int i = 0; i < 4; i++) /* 4 lanes each of v[i], v[i + 8], v[i + 4], v[i + 12] */
        b[i] = SHUFFLE(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               SHUFFLE(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++) /* 2 lanes each */
        c[i] = SHUFFLE(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               SHUFFLE(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    d = SHUFFLE(c[0], c[1], 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
        SHUFFLE(c[0], c[1], 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
    return SHUFFLE(d, d, 0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
}
#endif

/* acc += a . b for the last n < 16 values of a row. */
static inline void lanes_tail(struct lanes *acc, const float *a, const float *b, int n)
{
    float sum[LANES];
    lanes_store(sum, acc);
    lane_dot_add(sum, a, b, n);
    *acc = lanes_load(sum);
}

/* lane_dot() and lane_rmsnorm(), the same operations in the same order. */
static inline float lanes_dot(const float *a, const float *b, int64_t n)
{
    struct lanes acc = lanes_zero();
    int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        struct lanes w = lanes_load(a + i);
        lanes_fma(&acc, &w, b + i);
    }
    if (whole < n)
        lanes_tail(&acc, a + whole, b + whole, (int)(n - whole));
    return lanes_fold(&acc);
}

static inline float lanes_inverse_rms(const float *x, int64_t n, float eps)
{
    return 1.0f / __builtin_sqrtf(lanes_dot(x, x, n) / (float)n + eps);
}

static inline void lanes_rmsnorm(float *restrict out, const float *restrict x,
                                 const float *restrict gain, int64_t n, float eps)
{
    float r = lanes_inverse_rms(x, n, eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = (x[i] * r) * gain[i];
}

/* VEC numbers of 16 bits as integers. */
static inline vec_int vec_from_u16(const uint8_t *src)
{
#if defined(__SSE2__) && !defined(__AVX2__)
    __m128i half = _mm_loadl_epi64((const __m128i *)(const void *)src);
    return (vec_int)_mm_unpacklo_epi16(half, _mm_setzero_si128());
#else
    return __builtin_convertvector(VEC_LOAD(vec_half, src), vec_int);
#endif
}

/* VEC half-precision numbers. */
static inline vec vec_from_half(const uint8_t *src)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src));
#elif defined(__AVX2__) && defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(src)));
#else
    vec_int n = vec_from_u16(src), sign = (n & 0x8000) << 16;
    vec_int rest = (n & 0x7fff) << 13, special = (n & 0x7c00) == 0x7c00;
    vec_int finite = (vec_int)((vec)rest * 0x1p112f); /* subnormals come out right */
    return (vec)(sign | (special & (rest | 0x7f800000)) | (~special & finite));
#endif
}

static inline vec vec_from_bf16(const uint8_t *src)
{
#if defined(__AVX512F__)
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)src);
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#elif defined(__AVX2__)
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)src);
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
#else
    return (vec)(vec_from_u16(src) << 16);
#endif
}

/* q d + m where q d is exact, so that fused or not the bits are the same. */
static inline vec vec_scale(vec q, vec d, vec m)
{
#if defined(__FMA__) || defined(__aarch64__)
    return vec_fma(q, d, m);
#else
    return q * d + m;
#endif
}

/* VEC bytes as integers. The intrinsics say what gcc 12 does not find by itself below 16 lanes. */
static inline vec_int vec_from_sbytes(const uint8_t *src)
{
#if defined(__AVX512F__)
    return (vec_int)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
#elif defined(__AVX2__)
    return (vec_int)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)src));
#elif defined(__SSE2__)
    __m128i four = _mm_cvtsi32_si128(VEC_LOAD(int32_t, src)), half = _mm_unpacklo_epi8(four, four);
    return (vec_int)_mm_srai_epi32(_mm_unpacklo_epi16(half, half), 24);
#else
    return __builtin_convertvector(VEC_LOAD(vec_sbyte, src), vec_int);
#endif
}

static inline vec_int vec_from_bytes(const uint8_t *src)
{
#if defined(__AVX512F__)
    return (vec_int)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
#elif defined(__AVX2__)
    return (vec_int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)src));
#elif defined(__SSE2__)
    __m128i four = _mm_cvtsi32_si128(VEC_LOAD(int32_t, src)), zero = _mm_setzero_si128();
    return (vec_int)_mm_unpacklo_epi16(_mm_unpacklo_epi8(four, zero), zero);
#else
    return __builtin_convertvector(VEC_LOAD(vec_byte, src), vec_int);
#endif
}

static inline vec vec_float(vec_int n)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps((__m512i)n);
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps((__m256i)n);
#else
    return __builtin_convertvector(n, vec);
#endif
}

/* a where the mask is set, b elsewhere. */
static inline vec vec_select(vec_int mask, vec a, vec b)
{
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* a where it is the larger, else b. */
static inline vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}

/* The largest of them; any of them may be infinite. */
static inline float vec_largest(vec v)
{
#if defined(__AVX512F__)
    v = vec_max(v, SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = vec_max(v, SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
#elif defined(__AVX2__)
    v = vec_max(v, SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
#endif
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}

/* x clamped as lane_exp() does it: NaN becomes the lower bound. */
static inline vec vec_clamp(vec x, vec low, vec high)
{
#if defined(__AVX512F__)
    /* min and max return their second operand for NaN: first the bound, then what is right */
    __m512 c = _mm512_max_ps(_mm512_min_ps((__m512)x, (__m512)high), (__m512)low);
    return (vec)_mm512_mask_mov_ps(c, _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q),
                                   (__m512)low);
#else
    return vec_select(x > low, vec_select(x < high, x, high), low);
#endif
}

/* e^x as lane_exp(), the same operations in the same order. */
static inline vec vec_exp(vec x)
{
    vec low = vec_set(-87.3f), high = vec_set(88.7f), c = vec_clamp(x, low, high);
    vec t = vec_fma(c, vec_set(1.44269504088896341f), vec_set(12582912.0f));
    vec k = t - 12582912.0f;
    vec r = vec_fma(k, vec_set(-0.693359375f), c);
    r = vec_fma(k, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.0f / 720.0f);
    p = vec_fma(p, r, vec_set(1.0f / 120.0f));
    p = vec_fma(p, r, vec_set(1.0f / 24.0f));
    p = vec_fma(p, r, vec_set(1.0f / 6.0f));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1.0f));
    p = vec_fma(p, r, vec_set(1.0f));
#if defined(__AVX512F__)
    /* p is in [0.7, 1.42], so p 2^k rounds as the two factors do: not at all, or once where the
     * result is subnormal, which the lower clamp excludes */
    __m512 e = _mm512_scalef_ps((__m512)p, (__m512)k);
    __mmask16 small = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_LT_OQ);
    e = _mm512_mask_mov_ps(e, small, _mm512_setzero_ps());
    __mmask16 none = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vec)_mm512_mask_mov_ps(e, none, (__m512)x);
#else
    vec_int n = __builtin_convertvector(k, vec_int), h = n >> 1;
    vec e = p * (vec)((h + 127) << 23) * (vec)((n - h + 127) << 23);
    return vec_select(x < low, (vec){0}, vec_select(x == x, e, x));
#endif
}

#endif
