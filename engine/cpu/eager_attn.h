/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn.h - what the two files of eager attention share; compiled as eager_impl.h says. */
#ifndef WHET_ENGINE_CPU_EAGER_ATTN_H
#define WHET_ENGINE_CPU_EAGER_ATTN_H

#include <math.h>

#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

/* Rows of one kv head in one page. */
static inline const float *page_rows(const struct attn_args *a, const void *pages,
                                     const struct span *s, int64_t page, int32_t kvh)
{
    int64_t number = a->page_table[s->pages_at + page];
    return (const float *)pages + (number * a->kv_heads + kvh) * KV_PAGE * a->head_dim;
}

/* The largest of n; -inf of none. */
static inline float maximum(const float *p, int32_t n)
{
    vec most = vec_set(-INFINITY);
    int32_t j = 0;
    for (; j + VEC <= n; j += VEC) {
        vec v = VEC_LOAD(vec, p + j);
        most = vec_max(v, most);
    }
    float top = vec_largest(most);
    for (; j < n; j++)
        top = p[j] > top ? p[j] : top;
    return top;
}

/* p[j] = e^(p[j] - top); returns the sum, position j in lane j % 16 */
static inline float exponentials(float *p, int32_t n, float top)
{
    float sum[LANES];
    struct lanes acc = lanes_zero();
    int32_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        for (int i = 0; i < PARTS; i++) {
            vec e = vec_exp(VEC_LOAD(vec, p + j + i * VEC) - top);
            memcpy(p + j + i * VEC, &e, sizeof e);
            acc.p[i] += e;
        }
    }
    lanes_store(sum, &acc);
    for (int32_t l = 0; j < n; j++, l++) {
        p[j] = lane_exp(p[j] - top);
        sum[l] += p[j];
    }
    return lane_fold(sum);
}

/* eager_attn_narrow.c: tokens [t0, t0 + tokens) of a span, heads [h0, h1), in the canonical order.
 * Uses the inner arena. */
void EAGER(attend)(const struct attn_args *a, const struct span *s, int32_t t0, int32_t tokens,
                   int32_t h0, int32_t h1);
/* A whole step of up to EAGER_NARROW tokens. */
void EAGER(attn_narrow)(const struct attn_args *a, const struct team *team);

#endif
