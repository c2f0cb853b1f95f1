/* head, plainly: all ranks norm the rows that need logits; then a rank computes its own neighbouring
 * part of the vocabulary, one row of weights at a time. */
static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)size;
    return (int64_t)m * HIDDEN * (int64_t)sizeof(float);
}

static void run(const void *args, const struct team *team)
{
    const struct head_args *a = args;
    const int64_t stride = HIDDEN / BLOCK * BLOCK_BYTES(WTYPE);
    float *n = team->scratch;
    for (int t = team->rank; t < a->m; t += team->size)
        norm_row(n + (int64_t)t * HIDDEN, a->x + (int64_t)a->row[t] * HIDDEN, a->norm, HIDDEN,
                 a->eps, 0, HIDDEN);
    team->barrier(team);
    struct share s = share_groups(team, VOCAB, 0);
    for (int r = s.first; r < s.end; r += s.step) {
        const uint8_t *row = (const uint8_t *)a->w.data + r * stride;
        for (int t = 0; t < a->m; t++)
            rows_dot(WTYPE, row, stride, 1, n + (int64_t)t * HIDDEN, HIDDEN, 1, HIDDEN, 0,
                     a->logits + (int64_t)t * VOCAB + r, 1);
    }
}
