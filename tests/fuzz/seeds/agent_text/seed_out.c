/* attn_out and mlp_out, plainly: y = in W^T + x, one row of weights at a time; a rank has its own
 * neighbouring rows. */
static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

static void run(const void *args, const struct team *team)
{
    const struct out_args *a = args;
    const int64_t stride = K / BLOCK * BLOCK_BYTES(WTYPE);
    struct share s = share_groups(team, HIDDEN, 0);
    for (int r = s.first; r < s.end; r += s.step) {
        const uint8_t *row = (const uint8_t *)a->w.data + r * stride;
        for (int t = 0; t < a->m; t++) {
            float dot;
            rows_dot(WTYPE, row, stride, 1, a->in + (int64_t)t * K, K, 1, K, 0, &dot, 1);
            a->y[(int64_t)t * HIDDEN + r] = dot + a->x[(int64_t)t * HIDDEN + r];
        }
    }
}
