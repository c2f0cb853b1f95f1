/* mlp_in, plainly: all ranks norm the tokens together; then a rank computes its own columns of h,
 * one row of gate and one of up at a time. */
static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)size;
    return (int64_t)m * HIDDEN * (int64_t)sizeof(float);
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    const int64_t gate_stride = HIDDEN / BLOCK * BLOCK_BYTES(WTYPE);
    const int64_t up_stride = HIDDEN / BLOCK * BLOCK_BYTES(WTYPE_2);
    float *n = team->scratch;
    for (int t = team->rank; t < a->m; t += team->size)
        norm_row(n + (int64_t)t * HIDDEN, a->x + (int64_t)t * HIDDEN, a->norm, HIDDEN, a->eps, 0,
                 HIDDEN);
    team->barrier(team);
    struct share s = share_groups(team, FFN, 0);
    for (int r = s.first; r < s.end; r += s.step) {
        const uint8_t *g = (const uint8_t *)a->gate.data + r * gate_stride;
        const uint8_t *u = (const uint8_t *)a->up.data + r * up_stride;
        for (int t = 0; t < a->m; t++) {
            const float *nt = n + (int64_t)t * HIDDEN;
            float gate, up;
            rows_dot(WTYPE, g, gate_stride, 1, nt, HIDDEN, 1, HIDDEN, 0, &gate, 1);
            rows_dot(WTYPE_2, u, up_stride, 1, nt, HIDDEN, 1, HIDDEN, 0, &up, 1);
            a->h[(int64_t)t * FFN + r] = lane_silu_mul(gate, up);
        }
    }
}
