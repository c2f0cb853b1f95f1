/* SPDX-License-Identifier: Apache-2.0 */
/* eager_attn.h - what the two files of eager attention share; compiled as eager_impl.h says. */
#ifndef WHET_ENGINE_CPU_EAGER_ATTN_H
#define WHET_ENGINE_CPU_EAGER_ATTN_H

#include <math.h>

#include "engine/cpu/eager_impl.h"
#include "engine/cpu/vec.h"

/* What attention reads: the pages' elements are floats, or bf16 (`halves`). */
struct keys_values {
    const struct attn_args *a;
    bool halves;
};

/* Bytes of the rows of one kv head in a page, which lie one behind the other. */
static inline int64_t page_row_bytes(const struct keys_values *kv)
{
    return (int64_t)KV_PAGE * kv->a->head_dim * (kv->halves ? 2 : 4);
}

static inline const char *page_rows(const struct keys_values *kv, const void *pages,
                                    const struct span *s, int64_t page, int32_t kvh)
{
    int64_t number = kv->a->page_table[s->pages_at + page];
    return (const char *)pages + (number * kv->a->kv_heads + kvh) * page_row_bytes(kv);
}

/* n floats out of bf16. */
static inline void widen(const char *from, int64_t n, float *to)
{
    const uint8_t *half = (const uint8_t *)from;
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec v = vec_from_bf16(half + 2 * i);
        memcpy(to + i, &v, sizeof v);
    }
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, half + 2 * i, sizeof h);
        uint32_t bits = (uint32_t)h << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* The first `rows` of those rows as floats: where they are, or in `room`, which has space for a
 * page's. Widened once for all heads and tokens that look at them. */
static inline const float *page_floats(const struct keys_values *kv, const void *pages,
                                       const struct span *s, int64_t page, int32_t kvh,
                                       int32_t rows, float *room)
{
    const char *at = page_rows(kv, pages, s, page, kvh);
    if (!kv->halves)
        return (const float *)(const void *)at;
    widen(at, (int64_t)rows * kv->a->head_dim, room);
    return room;
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
void EAGER(attend)(const struct keys_values *kv, const struct span *s, int32_t t0, int32_t tokens,
                   int32_t h0, int32_t h1);
/* A whole step of up to EAGER_NARROW tokens. */
void EAGER(attn_narrow)(const struct keys_values *kv, const struct team *team);

#endif
