/* A work item is a token and a kv head with all query heads that share it: each page of keys and of values
 * is read once for GROUP heads. While a page of keys is multiplied the next one, and the values of this
 * one, are asked for, so that memory never waits for the softmax; the last values ask for the next item. */
enum { CHUNK = 16 }; /* pages whose scores are kept at a time; longer contexts are merged */

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

INLINE void ask_for(const float *rows)
{
#pragma GCC unroll 8
    for (int i = 0; i < KV_PAGE * HEAD_DIM; i += 16)
        _mm_prefetch((const char *)(rows + i), _MM_HINT_T0);
}

/* score[h]: lane j is q_h . k_j for the 16 keys of a page */
INLINE void scores(vf score[GROUP], const float *q, const float *k)
{
    vf sum[GROUP][16];
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
        vf part[GROUP][8];
#pragma GCC unroll 4
        for (int h = 0; h < GROUP; h++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                part[h][j] = vf_zero();
        }
#pragma GCC unroll 8
        for (int d = 0; d < DIMS; d++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const vf key = vf_load(k + (half + j) * HEAD_DIM + 16 * d);
#pragma GCC unroll 4
                for (int h = 0; h < GROUP; h++)
                    part[h][j] = vf_fma(vf_load(q + h * HEAD_DIM + 16 * d), key, part[h][j]);
            }
        }
#pragma GCC unroll 4
        for (int h = 0; h < GROUP; h++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                sum[h][half + j] = part[h][j];
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < GROUP; h++)
        score[h] = vf_fold16(sum[h]);
}

INLINE void item(const struct attn_args *a, const struct span *s, const float *q, float *out, int head,
                 int context, const float *next)
{
    _Alignas(64) float score[GROUP][16 * CHUNK];
    const int pages = (context + 15) / 16;
    float most[GROUP], sum[GROUP];
    vf value[GROUP][DIMS];
#pragma GCC unroll 4
    for (int h = 0; h < GROUP; h++) {
        most[h] = -__builtin_inff();
        sum[h] = 0.0f;
#pragma GCC unroll 8
        for (int d = 0; d < DIMS; d++)
            value[h][d] = vf_zero();
    }
    for (int first = 0; first < pages; first += CHUNK) {
        const int end = first + CHUNK < pages ? first + CHUNK : pages;
        vf high[GROUP];
        for (int h = 0; h < GROUP; h++)
            high[h] = vf_set(most[h]);
        for (int p = first; p < end; p++) {
            vf now[GROUP];
            if (p + 1 < end)
                ask_for(page_rows(a, a->k_pages, s, p + 1, head));
            ask_for(page_rows(a, a->v_pages, s, p, head));
            scores(now, q, page_rows(a, a->k_pages, s, p, head));
#pragma GCC unroll 4
            for (int h = 0; h < GROUP; h++) {
                const vf dots = keep_lanes(vf_mul(now[h], vf_set(a->scale)), context - 16 * p,
                                           -__builtin_inff());
                vf_store(score[h] + 16 * (p - first), dots);
                high[h] = vf_max(high[h], dots);
            }
        }
        ask_for(end < pages ? page_rows(a, a->k_pages, s, end, head) : next);
#pragma GCC unroll 4
        for (int h = 0; h < GROUP; h++) {
            const float now = vf_largest(high[h]);
            const float before = sum[h] > 0.0f ? lane_exp(most[h] - now) : 0.0f;
            vf total = vf_zero();
            for (int p = 0; p < 16 * (end - first); p += 16) {
                const vf e = vf_exp(vf_sub(vf_load(score[h] + p), vf_set(now)));
                vf_store(score[h] + p, e);
                total = vf_add(total, e);
            }
#pragma GCC unroll 8
            for (int d = 0; d < DIMS; d++)
                value[h][d] = vf_mul(value[h][d], vf_set(before));
            sum[h] = sum[h] * before + vf_fold(total);
            most[h] = now;
        }
        for (int p = first; p < end; p++) {
            const float *v = page_rows(a, a->v_pages, s, p, head);
            const int n = context - 16 * p < 16 ? context - 16 * p : 16;
            for (int j = 0; j < n; j++, v += HEAD_DIM) {
#pragma GCC unroll 8
                for (int d = 0; d < DIMS; d++) {
                    const vf row = vf_load(v + 16 * d);
#pragma GCC unroll 4
                    for (int h = 0; h < GROUP; h++)
                        value[h][d] = vf_fma(vf_set(score[h][16 * (p - first) + j]), row, value[h][d]);
                }
            }
        }
    }
    for (int h = 0; h < GROUP; h++)
        for (int d = 0; d < DIMS; d++)
            vf_store(out + h * HEAD_DIM + 16 * d, vf_mul(value[h][d], vf_set(1.0f / sum[h])));
}

static void run(const void *args, const struct team *team)
{
    const struct attn_args *a = args;
    int at = 0;
    for (int i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        for (int t = 0; t < s->count; t++)
            for (int head = 0; head < KV_HEADS; head++, at++) {
                if (at % team->size != team->rank)
                    continue;
                const int context = s->context - s->count + t + 1;
                const int64_t from = ((int64_t)(s->first + t) * HEADS + head * GROUP) * HEAD_DIM;
                const int next = head + team->size < KV_HEADS ? head + team->size : head;
                item(a, s, a->q + from, a->a + from, head, context,
                     page_rows(a, a->k_pages, s, 0, next));
            }
    }
}
