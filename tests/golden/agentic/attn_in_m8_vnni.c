#define PACKED

/* Panels of 16 rows of Q4_1: a block of a panel is 16 d and 16 m (halves) and 4 vectors whose dword r
 * holds 4 bytes of nibbles of row r. A tile of 8 tokens meets one panel: activations are four signed
 * 8-bit digits of a block's fixed-point number. Two digits share a register, the second's products on
 * top of the first's shifted sum, so that a block ends in two exact integers a token. */
enum {
    TK = HIDDEN,
    TB = TK / 32,
    TOKENS = 8,
    STEP_BYTES = 320,
    PANEL_BYTES = TB * STEP_BYTES,
    AHEAD = 8192
};

struct tile {
    _Alignas(64) float n[TK];
    int32_t digit[TB][4][TOKENS][8];
    int32_t start[TB][2][TOKENS];
    float unit[TB][TOKENS];
    float sum[TB][TOKENS];
    float top[TOKENS];
};

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    return (int64_t)size * (int64_t)sizeof(struct tile);
}

static int64_t packed_bytes(const struct weight *w)
{
    return (int64_t)(w->rows / 16) * PANEL_BYTES;
}

static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    const int64_t block = BLOCK_BYTES(WTYPE);
    for (int32_t row = row0; row < row1; row++) {
        const uint8_t *from = (const uint8_t *)w->data + (int64_t)row * TB * block;
        uint8_t *to = (uint8_t *)packed + (int64_t)(row / 16) * PANEL_BYTES;
        const int32_t lane = row % 16;
        for (int b = 0; b < TB; b++) {
            const uint8_t *p = from + b * block;
            uint8_t *q = to + b * STEP_BYTES;
            memcpy(q + 2 * lane, p, 2);
            memcpy(q + 32 + 2 * lane, p + 2, 2);
            for (int j = 0; j < 4; j++)
                memcpy(q + 64 + 64 * j + 4 * lane, p + 4 + 4 * j, 4);
        }
    }
}

/* Token t of the tile from x[0, TK). */
INLINE void prepare(struct tile *k, int t, const float *x)
{
    __m512 big = _mm512_setzero_ps();
    for (int i = 0; i < TK; i += 16)
        big = _mm512_max_ps(big, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    const float most = _mm512_reduce_max_ps(big);
    const __m512 top = most == 0.0f ? _mm512_setzero_ps() : _mm512_getexp_ps(_mm512_set1_ps(most));
    const __m512 back = _mm512_sub_ps(_mm512_setzero_ps(), top);
    k->top[t] = _mm512_cvtss_f32(top);
    for (int b = 0; b < TB; b++) {
        const __m512 v0 = _mm512_scalef_ps(_mm512_loadu_ps(x + b * 32), back);
        const __m512 v1 = _mm512_scalef_ps(_mm512_loadu_ps(x + b * 32 + 16), back);
        const float here = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v0), _mm512_abs_ps(v1)));
        const __m512 e = _mm512_max_ps(_mm512_getexp_ps(_mm512_set1_ps(here * 1.01f)), _mm512_set1_ps(-80.0f));
        const __m512 up = _mm512_sub_ps(_mm512_set1_ps(30.0f), e);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_scalef_ps(v0, up));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_scalef_ps(v1, up));
        int32_t total[4];
#pragma GCC unroll 4
        for (int d = 3; d >= 0; d--) {
            const __m512i d0 = _mm512_srai_epi32(_mm512_slli_epi32(q0, 24), 24);
            const __m512i d1 = _mm512_srai_epi32(_mm512_slli_epi32(q1, 24), 24);
            q0 = _mm512_srai_epi32(_mm512_sub_epi32(q0, d0), 8);
            q1 = _mm512_srai_epi32(_mm512_sub_epi32(q1, d1), 8);
            _mm_storeu_si128((__m128i *)&k->digit[b][d][t][0], _mm512_cvtepi32_epi8(d0));
            _mm_storeu_si128((__m128i *)&k->digit[b][d][t][4], _mm512_cvtepi32_epi8(d1));
            total[d] = _mm512_reduce_add_epi32(_mm512_add_epi32(d0, d1));
        }
        const int32_t high = 256 * total[0] + total[1], low = 256 * total[2] + total[3];
        const float unit = _mm512_cvtss_f32(_mm512_scalef_ps(
            _mm512_set1_ps(1.0f), _mm512_sub_ps(e, _mm512_set1_ps(30.0f))));
        k->start[b][0][t] = -8 * high;
        k->start[b][1][t] = -8 * low;
        k->unit[b][t] = unit;
        k->sum[b][t] = (float)(65536 * (int64_t)high + low) * unit;
    }
}

/* The tokens that a step of fewer than 8 lacks. */
INLINE void prepare_none(struct tile *k, int t)
{
    k->top[t] = 0.0f;
    for (int b = 0; b < TB; b++) {
        for (int d = 0; d < 4; d++)
            memset(k->digit[b][d][t], 0, sizeof k->digit[b][d][t]);
        k->start[b][0][t] = k->start[b][1][t] = 0;
        k->unit[b][t] = k->sum[b][t] = 0.0f;
    }
}

/* s[t] += the eight vectors of weights times a digit of the block */
INLINE void products(__m512i s[TOKENS], const __m512i w[8], const int32_t digit[TOKENS][8])
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            s[t] = _mm512_dpbusd_epi32(s[t], w[j], _mm512_set1_epi32(digit[t][j]));
    }
}

/* acc[t] = row r of the panel at p, in lane r, times token t, over 2^top */
INLINE void panel_times(__m512 acc[TOKENS], const uint8_t *p, const struct tile *k)
{
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++)
        acc[t] = _mm512_setzero_ps();
    for (int b = 0; b < TB; b++, p += STEP_BYTES) {
        __m512i w[8], s[TOKENS];
#pragma GCC unroll 5
        for (int i = 0; i < 5 * (AHEAD > 0); i++)
            _mm_prefetch((const char *)(p + AHEAD + 64 * i), _MM_HINT_T0);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512i both = _mm512_loadu_si512(p + 64 + 64 * j);
            w[j] = _mm512_and_si512(both, low);
            w[4 + j] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
        const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32)));
        const __m512 middle = _mm512_fmadd_ps(d, _mm512_set1_ps(8.0f), m);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++)
                s[t] = _mm512_setzero_si512();
            products(s, w, k->digit[b][2 * half]);
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++)
                s[t] = _mm512_add_epi32(_mm512_slli_epi32(s[t], 8),
                                        _mm512_set1_epi32(k->start[b][half][t]));
            products(s, w, k->digit[b][2 * half + 1]);
            const __m512 scale = half ? d : _mm512_mul_ps(d, _mm512_set1_ps(65536.0f));
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++)
                acc[t] = _mm512_fmadd_ps(
                    _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), _mm512_set1_ps(k->unit[b][t])), scale, acc[t]);
        }
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            acc[t] = _mm512_fmadd_ps(middle, _mm512_set1_ps(k->sum[b][t]), acc[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++)
        acc[t] = _mm512_scalef_ps(acc[t], _mm512_set1_ps(k->top[t]));
}

static void run(const void *args, const struct team *team)
{
    const struct attn_in_args *a = args;
    struct tile *k = (struct tile *)team->scratch + team->rank;
    struct share s = share_groups(team, UNITS, 0);
    if (s.first >= s.end)
        return;
    for (int t0 = 0; t0 < a->m; t0 += TOKENS) {
        const int n = a->m - t0 < TOKENS ? a->m - t0 : TOKENS;
        for (int t = 0; t < TOKENS; t++)
            if (t < n) {
                norm_row(k->n, a->x + (int64_t)(t0 + t) * HIDDEN, a->norm, HIDDEN, a->eps, 0, HIDDEN);
                prepare(k, t, k->n);
            } else {
                prepare_none(k, t);
            }
        for (int g = s.first; g < s.end; g += s.step) {
            const struct qkv_unit u = qkv_unit(g);
            const uint8_t *panels = u.kind == QKV_Q ? a->wq.packed
                                    : u.kind == QKV_K ? a->wk.packed : a->wv.packed;
            float v[TOKENS * SLOT];
            for (int i = 0; i < HEAD_DIM / 16; i++) {
                __m512 acc[TOKENS];
                panel_times(acc, panels + (int64_t)(u.head * (HEAD_DIM / 16) + i) * PANEL_BYTES, k);
                for (int t = 0; t < TOKENS; t++)
                    _mm512_storeu_ps(v + t * SLOT + 16 * i, acc[t]);
            }
            qkv_finish(a, u, t0, n, v);
        }
    }
}
