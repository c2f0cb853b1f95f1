#define PACKED

/* mlp_in on panels of 16 rows of Q4_1: a block of a panel is 16 d, 16 m (halves), and 4 vectors whose
 * dword r holds 4 bytes of nibbles of row r. Activations are three signed 8-bit digits of a block's
 * fixed-point number, a block with an outlier has a fourth. vpmaddubsw adds two products of a nibble
 * and a digit in 16 bits, and those of a whole block, 8 x 2 x 15 x 128, still fit: they become integers
 * of 32 bits only then, and floats once a block. */
enum {
    Q4_BLOCKS = HIDDEN / BLOCK,
    Q4_BYTES = 320,
    Q4_PANEL = Q4_BLOCKS * Q4_BYTES,
    Q4_OUTLIER = 10, /* times the mean size of a row's other values */
    Q4_AHEAD = 2560
};

struct q4_token {
    _Alignas(64) float n[HIDDEN];
    int8_t digit[Q4_BLOCKS][4][BLOCK]; /* least significant first */
    int32_t less[Q4_BLOCKS][4];        /* 8 times a digit's sum: quants are centred */
    float unit[Q4_BLOCKS];             /* of digit 1 */
    float sum[Q4_BLOCKS];
    int32_t deep[Q4_BLOCKS]; /* digit 0 counts */
    float scale[2];          /* whose product brings the row's largest value back */
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

INLINE float q4_pow2(int e)
{
    return bits_float((uint32_t)(e + 127) << 23);
}

/* floor(log2 f) of a positive float, subnormal ones too. */
INLINE int q4_exponent(float f)
{
    const int e = (int)(float_bits(f) >> 23 & 255) - 127;
    return e > -127 ? e : (int)(float_bits(f * 18446744073709551616.0f) >> 23 & 255) - 127 - 64;
}

INLINE vf q4_size(vf v)
{
    return vf_max(v, vf_sub(vf_zero(), v));
}

/* The sum of 8 numbers. */
INLINE int32_t q4_total(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* Digits of block b from x[0, 32), which are at most 2 in size; larger ones than `most` are outliers. */
INLINE void q4_digits(struct q4_token *k, int b, const float *x, float most)
{
    const float here = vf_largest(vf_max(q4_size(vf_load(x)), q4_size(vf_load(x + 16))));
    const float top = here * 1.01f;
    const int e = top > 1e-24f ? q4_exponent(top) : -80;
    const __m256 up = _mm256_set1_ps(q4_pow2(30 - e));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), up));
    k->deep[b] = here > most;
    k->unit[b] = q4_pow2(e - 22);
    int64_t sum = 0;
    UNROLLED
    for (int j = 0; j < 4; j++) {
        __m256i d[4];
        UNROLLED
        for (int i = 0; i < 4; i++) {
            d[i] = _mm256_srai_epi32(_mm256_slli_epi32(q[i], 24), 24);
            q[i] = _mm256_srai_epi32(_mm256_sub_epi32(q[i], d[i]), 8);
        }
        const int32_t total = q4_total(
            _mm256_add_epi32(_mm256_add_epi32(d[0], d[1]), _mm256_add_epi32(d[2], d[3])));
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(d[0], d[1]), _mm256_packs_epi32(d[2], d[3]));
        _mm256_storeu_si256((__m256i *)k->digit[b][j], _mm256_permutevar8x32_epi32(bytes, order));
        k->less[b][j] = 8 * total;
        if (j > 0 || k->deep[b])
            sum += (int64_t)total * ((int64_t)1 << (8 * j));
    }
    k->sum[b] = (float)sum * (k->unit[b] * (1.0f / 256));
}

INLINE void q4_prepare(struct q4_token *k)
{
    vf big = vf_zero(), all = vf_zero();
    for (int i = 0; i < HIDDEN; i += 16)
        big = vf_max(big, q4_size(vf_load(k->n + i)));
    const float top = vf_largest(big);
    const int e = top > 0 ? q4_exponent(top) : 0;
    /* in two factors: for tiny rows one is beyond the range of float */
    const vf down = vf_set(q4_pow2(-e / 2)), down2 = vf_set(q4_pow2(-e - -e / 2));
    for (int i = 0; i < HIDDEN; i += 16) {
        const vf v = vf_mul(vf_mul(vf_load(k->n + i), down), down2);
        vf_store(k->n + i, v);
        all = vf_add(all, q4_size(v));
    }
    const float most = vf_fold(all) * ((float)Q4_OUTLIER / (HIDDEN - 1 + Q4_OUTLIER));
    for (int b = 0; b < Q4_BLOCKS; b++)
        q4_digits(k, b, k->n + b * BLOCK, most);
    k->scale[0] = q4_pow2(e / 2);
    k->scale[1] = q4_pow2(e - e / 2);
}

/* Lane i: the sum over a block of (nibble - 8) of row i times a digit. */
INLINE __m256i q4_sum(const __m256i w[8], const struct q4_token *k, int b, int j)
{
    const int8_t *x = k->digit[b][j];
    NO_SOONER(); /* a broadcast kept from one half to the other would only be spilled */
    __m256i pairs = _mm256_setzero_si256();
    UNROLLED
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x + 4 * i, 4);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(four)));
    }
    return _mm256_sub_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                            _mm256_set1_epi32(k->less[b][j]));
}

INLINE __m256 q4_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* acc + rows 8 h .. 8 h + 7 of the block at p times block b of the token */
INLINE __m256 q4_half(__m256 acc, const uint8_t *p, const struct q4_token *k, int b, const int h)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i w[8];
    NO_SOONER();
    UNROLLED
    for (int j = 0; j < 4; j++) {
        const __m256i q = _mm256_loadu_si256((const __m256i *)(p + 64 + 64 * j + 32 * h));
        w[j] = _mm256_and_si256(q, low);
        w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
    }
    const __m256 d = q4_halves(p + 16 * h);
    const __m256 middle = _mm256_fmadd_ps(d, _mm256_set1_ps(8.0f), q4_halves(p + 32 + 16 * h));
    const __m256i s3 = q4_sum(w, k, b, 3);
    const __m256i s2 = q4_sum(w, k, b, 2);
    const __m256i s1 = q4_sum(w, k, b, 1);
    const __m256 high = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(s3, 8), s2));
    const __m256 f = _mm256_fmadd_ps(high, _mm256_set1_ps(256.0f), _mm256_cvtepi32_ps(s1));
    __m256 unit = _mm256_mul_ps(d, _mm256_set1_ps(k->unit[b]));
    acc = _mm256_fmadd_ps(f, unit, acc);
    if (k->deep[b]) {
        unit = _mm256_mul_ps(unit, _mm256_set1_ps(1.0f / 256));
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q4_sum(w, k, b, 0)), unit, acc);
    }
    return _mm256_fmadd_ps(middle, _mm256_set1_ps(k->sum[b]), acc);
}

/* y[0, 16) = the rows of a panel times the token */
INLINE void q4_panel(float *y, const uint8_t *p, const struct q4_token *k)
{
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int b = 0; b < Q4_BLOCKS; b++, p += Q4_BYTES) {
        for (int i = 0; i < Q4_BYTES; i += 64)
            _mm_prefetch((const char *)(p + Q4_AHEAD + i), _MM_HINT_T0);
        UNROLLED
        for (int h = 0; h < 2; h++)
            acc[h] = q4_half(acc[h], p, k, b, h);
    }
    const __m256 scale = _mm256_set1_ps(k->scale[0]), scale2 = _mm256_set1_ps(k->scale[1]);
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(y + 8 * h, _mm256_mul_ps(_mm256_mul_ps(acc[h], scale), scale2));
}

static void run(const void *args, const struct team *team)
{
    const struct mlp_in_args *a = args;
    struct share s = share_groups(team, FFN / 16, 0);
    if (s.first >= s.end)
        return;
    struct q4_token *mine = (struct q4_token *)team->scratch + (int64_t)team->rank * a->m;
    for (int t = 0; t < a->m; t++) {
        norm_row(mine[t].n, a->x + (int64_t)t * HIDDEN, a->norm, HIDDEN, a->eps, 0, HIDDEN);
        q4_prepare(mine + t);
    }
    for (int g = s.first; g < s.end; g += s.step)
        for (int t = 0; t < a->m; t++) {
            float gate[16], up[16];
            q4_panel(gate, (const uint8_t *)a->gate.packed + (int64_t)g * Q4_PANEL, mine + t);
            q4_panel(up, (const uint8_t *)a->up.packed + (int64_t)g * Q4_PANEL, mine + t);
            vf_store(a->h + (int64_t)t * FFN + g * 16, vf_silu_mul(vf_load(gate), vf_load(up)));
        }
}
