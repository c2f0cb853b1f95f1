/* attn, plainly: a work item is one head of one token. Scores page by page into scratch, softmax,
 * then the weighted sum of the values. */
enum { POSITIONS_MOST = 16384 };

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    return (int64_t)size * POSITIONS_MOST * (int64_t)sizeof(float);
}

/* Positions [16 first, 16 end) of `context`, at most POSITIONS_MOST at a time: their part of the
 * softmax is merged into out (values), *most and *sum. */
INLINE void part(const struct attn_args *a, const struct span *s, const float *q, int kv_head,
                 int context, int first, int end, float *score, float *out, float *most, float *sum)
{
    vf high = vf_set(*most);
    for (int p = first; p < end; p++) {
        vf dots = page_scores(q, page_rows(a, a->k_pages, s, p, kv_head));
        dots = keep_lanes(vf_mul(dots, vf_set(a->scale)), context - 16 * p, -__builtin_inff());
        vf_store(score + 16 * (p - first), dots);
        high = vf_max(high, dots);
    }
    const float now = vf_largest(high);
    const float before = *sum > 0.0f ? lane_exp(*most - now) : 0.0f;
    vf total = vf_zero();
    for (int d = 0; d < HEAD_DIM; d++)
        out[d] *= before;
    for (int p = first; p < end; p++) {
        const kv_element *v = page_rows(a, a->v_pages, s, p, kv_head);
        vf e = vf_exp(vf_sub(vf_load(score + 16 * (p - first)), vf_set(now)));
        vf_store(score + 16 * (p - first), e);
        total = vf_add(total, e);
        for (int j = 0; j < 16 && 16 * p + j < context; j++)
            for (int d = 0; d < HEAD_DIM; d += 16)
                vf_store(out + d, vf_fma(vf_set(score[16 * (p - first) + j]),
                                         kv_load(v + j * HEAD_DIM + d), vf_load(out + d)));
    }
    *sum = *sum * before + vf_fold(total);
    *most = now;
}

static void run(const void *args, const struct team *team)
{
    const struct attn_args *a = args;
    float *score = (float *)team->scratch + (int64_t)team->rank * POSITIONS_MOST;
    int item = 0;
    for (int i = 0; i < a->spans; i++) {
        const struct span *s = &a->span[i];
        for (int t = 0; t < s->count; t++)
            for (int h = 0; h < HEADS; h++, item++) {
                if (item % team->size != team->rank)
                    continue;
                const int context = s->context - s->count + t + 1, pages = (context + 15) / 16;
                const int64_t at = ((int64_t)(s->first + t) * HEADS + h) * HEAD_DIM;
                float most = -__builtin_inff(), sum = 0.0f, *out = a->a + at;
                for (int d = 0; d < HEAD_DIM; d++)
                    out[d] = 0.0f;
                for (int p = 0; p < pages; p += POSITIONS_MOST / 16) {
                    int end = p + POSITIONS_MOST / 16 < pages ? p + POSITIONS_MOST / 16 : pages;
                    part(a, s, a->q + at, h / GROUP, context, p, end, score, out, &most, &sum);
                }
                for (int d = 0; d < HEAD_DIM; d++)
                    out[d] *= 1.0f / sum;
            }
    }
}
