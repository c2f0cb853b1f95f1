#define PACKED

/* mlp_in on panels of 16 rows: a block of a panel is 16 d, 16 m (halves), and 4 vectors whose dword r
 * holds 4 bytes of nibbles of row r. A unit is 4 far panels of gate and the same 4 of up: 8 streams.
 * Activations are 4 balanced 8-bit digits with an exponent for each block; integer sums are exact. */
enum {
    Q4_BLOCKS = HIDDEN / BLOCK,
    Q4_BYTES = 320,
    Q4_PANEL = Q4_BLOCKS * Q4_BYTES,
    Q4_UNITS = FFN / 64, /* the panels of a unit are this many panels apart */
    Q4_AHEAD = 2560
};

struct q4_token {
    _Alignas(64) float n[HIDDEN];
    int32_t digit[Q4_BLOCKS][4][8];
    int32_t init[Q4_BLOCKS][4];
    float xs[Q4_BLOCKS];
    float xsum[Q4_BLOCKS];
    float top;
};

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return (int64_t)m * size * (int64_t)sizeof(struct q4_token);
}

static int64_t packed_bytes(const struct weight *w)
{
    return (int64_t)(w->rows / 16) * Q4_PANEL;
}

static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    const int64_t block = BLOCK_BYTES(WTYPE);
    for (int32_t row = row0; row < row1; row++) {
        const uint8_t *from = (const uint8_t *)w->data + (int64_t)row * Q4_BLOCKS * block;
        uint8_t *to = (uint8_t *)packed + (int64_t)(row / 16) * Q4_PANEL;
        const int32_t lane = row % 16;
        for (int b = 0; b < Q4_BLOCKS; b++) {
            const uint8_t *p = from + b * block;
            uint8_t *q = to + b * Q4_BYTES;
            memcpy(q + 2 * lane, p, 2);
            memcpy(q + 32 + 2 * lane, p + 2, 2);
            for (int j = 0; j < 4; j++)
                memcpy(q + 64 + 64 * j + 4 * lane, p + 4 + 4 * j, 4);
        }
    }
}

INLINE void q4_prepare(struct q4_token *k)
{
    __m512 big = _mm512_setzero_ps();
    for (int i = 0; i < HIDDEN; i += 16)
        big = _mm512_max_ps(big, _mm512_abs_ps(_mm512_loadu_ps(k->n + i)));
    const float most = _mm512_reduce_max_ps(big);
    const __m512 top = most == 0.0f ? _mm512_setzero_ps() : _mm512_getexp_ps(_mm512_set1_ps(most));
    k->top = _mm512_cvtss_f32(top);
    const __m512 least = _mm512_sub_ps(top, _mm512_set1_ps(90.0f));
    for (int b = 0; b < Q4_BLOCKS; b++) {
        const __m512 v0 = _mm512_loadu_ps(k->n + b * 32);
        const __m512 v1 = _mm512_loadu_ps(k->n + b * 32 + 16);
        const float here = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v0), _mm512_abs_ps(v1)));
        const __m512 e = _mm512_max_ps(_mm512_getexp_ps(_mm512_set1_ps(here)), least);
        const __m512 up = _mm512_sub_ps(_mm512_set1_ps(29.0f), e);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_scalef_ps(v0, up));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_scalef_ps(v1, up));
        int64_t sum = 0;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i d0 = _mm512_srai_epi32(_mm512_slli_epi32(q0, 24), 24);
            const __m512i d1 = _mm512_srai_epi32(_mm512_slli_epi32(q1, 24), 24);
            q0 = _mm512_srai_epi32(_mm512_sub_epi32(q0, d0), 8);
            q1 = _mm512_srai_epi32(_mm512_sub_epi32(q1, d1), 8);
            _mm_storeu_si128((__m128i *)&k->digit[b][i][0], _mm512_cvtepi32_epi8(d0));
            _mm_storeu_si128((__m128i *)&k->digit[b][i][4], _mm512_cvtepi32_epi8(d1));
            const int32_t total = _mm512_reduce_add_epi32(_mm512_add_epi32(d0, d1));
            k->init[b][i] = -8 * total;
            sum += (int64_t)total * ((int64_t)1 << (8 * i));
        }
        const float xs = _mm512_cvtss_f32(_mm512_scalef_ps(
            _mm512_set1_ps(1.0f), _mm512_sub_ps(_mm512_sub_ps(e, top), _mm512_set1_ps(29.0f))));
        k->xs[b] = xs;
        k->xsum[b] = (float)sum * xs;
    }
}

/* acc += the block at p of one panel times block b of the token */
INLINE __m512 q4_block(__m512 acc, const uint8_t *p, const struct q4_token *k, int b)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i a0 = _mm512_set1_epi32(k->init[b][0]);
    __m512i a1 = _mm512_set1_epi32(k->init[b][1]);
    __m512i a2 = _mm512_set1_epi32(k->init[b][2]);
    __m512i a3 = _mm512_set1_epi32(k->init[b][3]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i w = _mm512_loadu_si512(p + 64 + 64 * j);
        const __m512i w0 = _mm512_and_si512(w, low);
        const __m512i w1 = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        a0 = _mm512_dpbusd_epi32(a0, w0, _mm512_set1_epi32(k->digit[b][0][j]));
        a1 = _mm512_dpbusd_epi32(a1, w0, _mm512_set1_epi32(k->digit[b][1][j]));
        a2 = _mm512_dpbusd_epi32(a2, w0, _mm512_set1_epi32(k->digit[b][2][j]));
        a3 = _mm512_dpbusd_epi32(a3, w0, _mm512_set1_epi32(k->digit[b][3][j]));
        a0 = _mm512_dpbusd_epi32(a0, w1, _mm512_set1_epi32(k->digit[b][0][4 + j]));
        a1 = _mm512_dpbusd_epi32(a1, w1, _mm512_set1_epi32(k->digit[b][1][4 + j]));
        a2 = _mm512_dpbusd_epi32(a2, w1, _mm512_set1_epi32(k->digit[b][2][4 + j]));
        a3 = _mm512_dpbusd_epi32(a3, w1, _mm512_set1_epi32(k->digit[b][3][4 + j]));
    }
    const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
    const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32)));
    const __m512 hi = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(a3, 8), a2));
    const __m512 lo = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(a1, 8), a0));
    const __m512 f = _mm512_fmadd_ps(hi, _mm512_set1_ps(65536.0f), lo);
    const __m512 middle = _mm512_fmadd_ps(d, _mm512_set1_ps(8.0f), m);
    acc = _mm512_fmadd_ps(middle, _mm512_set1_ps(k->xsum[b]), acc);
    return _mm512_fmadd_ps(f, _mm512_mul_ps(d, _mm512_set1_ps(k->xs[b])), acc);
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    const uint8_t *gate = a->gate.packed;
    const uint8_t *up = a->up.packed;
    struct share s = share_groups(team, Q4_UNITS, 0);
    if (s.first >= s.end)
        return;
    for (int c = 0; c < Q4_AHEAD; c += 64)
        for (int i = 0; i < 4; i++) {
            const int64_t at = (int64_t)(s.first + i * Q4_UNITS) * Q4_PANEL + c;
            _mm_prefetch((const char *)(gate + at), _MM_HINT_T0);
            _mm_prefetch((const char *)(up + at), _MM_HINT_T0);
        }
    struct q4_token *mine = (struct q4_token *)team->scratch + (int64_t)team->rank * a->m;
    for (int t = 0; t < a->m; t++) {
        norm_row(mine[t].n, a->x + (int64_t)t * HIDDEN, a->norm, HIDDEN, a->eps, 0, HIDDEN);
        q4_prepare(mine + t);
    }
    for (int g = s.first; g < s.end; g += s.step) {
        const uint8_t *at[8];
        for (int i = 0; i < 4; i++) {
            at[2 * i] = gate + (int64_t)(g + i * Q4_UNITS) * Q4_PANEL;
            at[2 * i + 1] = up + (int64_t)(g + i * Q4_UNITS) * Q4_PANEL;
        }
        for (int t = 0; t < a->m; t++) {
            const struct q4_token *k = mine + t;
            __m512 acc[8];
            for (int i = 0; i < 8; i++)
                acc[i] = _mm512_setzero_ps();
            for (int b = 0; b < Q4_BLOCKS; b++) {
#pragma GCC unroll 1
                for (int i = 0; i < 8; i++) {
                    const uint8_t *p = at[i] + b * Q4_BYTES;
                    _mm_prefetch((const char *)(p + Q4_AHEAD), _MM_HINT_T0);
                    _mm_prefetch((const char *)(p + Q4_AHEAD + 64), _MM_HINT_T0);
                    _mm_prefetch((const char *)(p + Q4_AHEAD + 128), _MM_HINT_T0);
                    _mm_prefetch((const char *)(p + Q4_AHEAD + 192), _MM_HINT_T0);
                    _mm_prefetch((const char *)(p + Q4_AHEAD + 256), _MM_HINT_T0);
                    acc[i] = q4_block(acc[i], p, k, b);
                }
            }
            const __m512 top = _mm512_set1_ps(k->top);
            for (int i = 0; i < 4; i++) {
                float y[2][16];
                _mm512_storeu_ps(y[0], _mm512_scalef_ps(acc[2 * i], top));
                _mm512_storeu_ps(y[1], _mm512_scalef_ps(acc[2 * i + 1], top));
                vf_store(a->h + (int64_t)t * FFN + (int64_t)(g + i * Q4_UNITS) * 16,
                         vf_silu_mul(vf_load(y[0]), vf_load(y[1])));
            }
        }
    }
}
