/* attn_in, plainly: all ranks norm the tokens together; then a rank computes whole heads of q, k or
 * v, one row of weights at a time, and finishes each (bias, per-head norm, RoPE, store). */
static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)size;
    return (int64_t)m * HIDDEN * (int64_t)sizeof(float);
}

/* The head's HEAD_DIM sums for one token. */
INLINE void sums(const int type, const struct weight *w, int head, const float *n, float *v)
{
    const int64_t stride = HIDDEN / BLOCK * BLOCK_BYTES(type);
    const uint8_t *row = (const uint8_t *)w->data + (int64_t)head * HEAD_DIM * stride;
    for (int i = 0; i < HEAD_DIM; i++)
        rows_dot(type, row + i * stride, stride, 1, n, HIDDEN, 1, HIDDEN, 0, v + i, 1);
}

static void run(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    float *n = team->scratch;
    for (int t = team->rank; t < a->m; t += team->size)
        norm_row(n + (int64_t)t * HIDDEN, a->x + (int64_t)t * HIDDEN, a->norm, HIDDEN, a->eps, 0,
                 HIDDEN);
    team->barrier(team);
    struct share s = share_groups(team, UNITS, 0);
    for (int g = s.first; g < s.end; g += s.step) {
        struct qkv_unit u = qkv_unit(g);
        for (int t = 0; t < a->m; t++) {
            float v[SLOT];
            const float *nt = n + (int64_t)t * HIDDEN;
            if (u.kind == QKV_Q)
                sums(WTYPE, &a->wq, u.head, nt, v);
            else if (u.kind == QKV_K)
                sums(WTYPE_2, &a->wk, u.head, nt, v);
            else
                sums(WTYPE_3, &a->wv, u.head, nt, v);
            qkv_finish(a, u, t, 1, v);
        }
    }
}
