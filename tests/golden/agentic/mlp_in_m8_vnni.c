#define PACKED

/* Panels of 16 rows of Q4_1: a block of a panel is 16 d and 16 m (halves) and 4 vectors whose dword r
 * holds 4 bytes of nibbles of row r. A tile of 8 tokens meets one panel: activations are three signed
 * 8-bit digits of a block's fixed-point number; a digit's products are added on top of the shifted sum
 * of those before, so that one register a token ends with the exact integer, converted once. A block
 * with an outlier (16 times the row's rms) has a fourth digit, multiplied by itself. */
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
    int32_t digit[TB][3][TOKENS][8];
    int32_t fine[TB][TOKENS][8];
    int32_t start[TB][TOKENS];
    int32_t fine_start[TB][TOKENS];
    float unit[TB][TOKENS];
    float sum[TB][TOKENS];
    float top[TOKENS];
    uint32_t deep[TB];
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
    __m512 big = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    for (int i = 0; i < TK; i += 16)
        big = _mm512_max_ps(big, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    const float most = _mm512_reduce_max_ps(big);
    const __m512 top = most == 0.0f ? _mm512_setzero_ps() : _mm512_getexp_ps(_mm512_set1_ps(most));
    const __m512 back = _mm512_sub_ps(_mm512_setzero_ps(), top);
    for (int i = 0; i < TK; i += 16) {
        const __m512 v = _mm512_scalef_ps(_mm512_loadu_ps(x + i), back);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float far = _mm512_reduce_add_ps(squares) * (TK < 576 ? 4.0f / 9 : 256.0f / TK);
    k->top[t] = _mm512_cvtss_f32(top);
    for (int b = 0; b < TB; b++) {
        const __m512 v0 = _mm512_scalef_ps(_mm512_loadu_ps(x + b * 32), back);
        const __m512 v1 = _mm512_scalef_ps(_mm512_loadu_ps(x + b * 32 + 16), back);
        const float here = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v0), _mm512_abs_ps(v1)));
        const int deep = here * here > far;
        const __m512 e = _mm512_max_ps(_mm512_getexp_ps(_mm512_set1_ps(here * 1.01f)), _mm512_set1_ps(-80.0f));
        const __m512 up = _mm512_sub_ps(_mm512_set1_ps(deep ? 30.0f : 22.0f), e);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_scalef_ps(v0, up));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_scalef_ps(v1, up));
        int32_t fine = 0;
        if (deep) {
            const __m512i d0 = _mm512_srai_epi32(_mm512_slli_epi32(q0, 24), 24);
            const __m512i d1 = _mm512_srai_epi32(_mm512_slli_epi32(q1, 24), 24);
            q0 = _mm512_srai_epi32(_mm512_sub_epi32(q0, d0), 8);
            q1 = _mm512_srai_epi32(_mm512_sub_epi32(q1, d1), 8);
            _mm_storeu_si128((__m128i *)&k->fine[b][t][0], _mm512_cvtepi32_epi8(d0));
            _mm_storeu_si128((__m128i *)&k->fine[b][t][4], _mm512_cvtepi32_epi8(d1));
            fine = _mm512_reduce_add_epi32(_mm512_add_epi32(d0, d1));
        } else {
            memset(k->fine[b][t], 0, sizeof k->fine[b][t]);
        }
        const int32_t whole = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
#pragma GCC unroll 3
        for (int d = 2; d >= 0; d--) {
            const __m512i d0 = _mm512_srai_epi32(_mm512_slli_epi32(q0, 24), 24);
            const __m512i d1 = _mm512_srai_epi32(_mm512_slli_epi32(q1, 24), 24);
            q0 = _mm512_srai_epi32(_mm512_sub_epi32(q0, d0), 8);
            q1 = _mm512_srai_epi32(_mm512_sub_epi32(q1, d1), 8);
            _mm_storeu_si128((__m128i *)&k->digit[b][d][t][0], _mm512_cvtepi32_epi8(d0));
            _mm_storeu_si128((__m128i *)&k->digit[b][d][t][4], _mm512_cvtepi32_epi8(d1));
        }
        const float unit = _mm512_cvtss_f32(_mm512_scalef_ps(
            _mm512_set1_ps(1.0f), _mm512_sub_ps(e, _mm512_set1_ps(22.0f))));
        k->start[b][t] = (int32_t)(0u - 8u * (uint32_t)whole);
        k->fine_start[b][t] = -8 * fine;
        k->unit[b][t] = unit;
        k->sum[b][t] = ((float)whole + (float)fine * (1.0f / 256)) * unit;
        k->deep[b] = (t ? k->deep[b] : 0) | (uint32_t)deep << t;
    }
}

/* The tokens that a step of fewer than 8 lacks. */
INLINE void prepare_none(struct tile *k, int t)
{
    k->top[t] = 0.0f;
    for (int b = 0; b < TB; b++) {
        for (int d = 0; d < 3; d++)
            memset(k->digit[b][d][t], 0, sizeof k->digit[b][d][t]);
        memset(k->fine[b][t], 0, sizeof k->fine[b][t]);
        k->start[b][t] = k->fine_start[b][t] = 0;
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
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            s[t] = _mm512_setzero_si512();
        products(s, w, k->digit[b][0]);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            s[t] = _mm512_slli_epi32(s[t], 8);
        products(s, w, k->digit[b][1]);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            s[t] = _mm512_add_epi32(_mm512_slli_epi32(s[t], 8), _mm512_set1_epi32(k->start[b][t]));
        products(s, w, k->digit[b][2]);
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
        const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32)));
        const __m512 middle = _mm512_fmadd_ps(d, _mm512_set1_ps(8.0f), m);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++) {
            const __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), _mm512_set1_ps(k->unit[b][t]));
            acc[t] = _mm512_fmadd_ps(middle, _mm512_set1_ps(k->sum[b][t]), acc[t]);
            acc[t] = _mm512_fmadd_ps(f, d, acc[t]);
        }
        if (k->deep[b]) {
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++)
                s[t] = _mm512_set1_epi32(k->fine_start[b][t]);
            products(s, w, k->fine[b]);
            const __m512 small = _mm512_mul_ps(d, _mm512_set1_ps(1.0f / 256));
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++)
                acc[t] = _mm512_fmadd_ps(
                    _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), _mm512_set1_ps(k->unit[b][t])), small, acc[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++)
        acc[t] = _mm512_scalef_ps(acc[t], _mm512_set1_ps(k->top[t]));
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    const uint8_t *gates = a->gate.packed, *ups = a->up.packed;
    struct tile *k = (struct tile *)team->scratch + team->rank;
    struct share s = share_groups(team, FFN / 16, 0);
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
            __m512 gate[TOKENS], up[TOKENS];
            panel_times(gate, gates + (int64_t)g * PANEL_BYTES, k);
            panel_times(up, ups + (int64_t)g * PANEL_BYTES, k);
            for (int t = 0; t < n; t++)
                vf_store(a->h + (int64_t)(t0 + t) * FFN + 16 * g, vf_silu_mul(gate[t], up[t]));
        }
    }
}
