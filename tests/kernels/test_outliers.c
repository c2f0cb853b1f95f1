/* SPDX-License-Identifier: Apache-2.0 */
/* test_outliers.c - kernels of three digits beside several outliers, which weigh nothing.
 *
 * The first token of a prompt has a few channels hundreds of times as large as the others, and the
 * matrices behind it learn to ignore them. A row of three such values in blocks of their own is
 * made here, with weights of 0 in those columns: what is left of a result are the products of
 * ordinary values, a sixth of which share a block with an outlier. The probe's own outlier is one,
 * and weighs what any channel does. The other case is the opposite: all values are as large as the
 * largest, and all weights the least there are, so integers become as large as they can.
 *
 * Each START point with three digits (VNNI; other machines have nothing to try) of the templates
 * for attn_out is built, run and held to twice the eager kernel's error, that case to three times,
 * in each format whose codes are summed in another way. Of rows that only share the work among
 * threads in other ways, which changes no sum, one has its turn in each format (WHET_TEST_MORE=2:
 * all): nothing here takes time but the compiler.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/case.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/pool.h"
#include "engine/quant.h"
#include "tests/kernels/sample.h"
#include "tests/kernels/shop.h"

enum { SINKS = 3, BLOCK = 32, FIVE_EIGHTHS = 0x3900 };
static const int sink[SINKS] = {5, 100, 333};

/* Nibble `up` of a byte becomes n. */
static void put_nibble(uint8_t *byte, int up, int n)
{
    *byte = (uint8_t)(up ? (*byte & 0x0f) | n << 4 : (*byte & 0xf0) | n);
}

/* Makes what is at `second` the number at `block` times 2^times, less than 0 if `negative`: what a
 * format adds then takes away what it has in the middle of its codes. */
static void cancel(uint8_t *block, uint8_t *second, int times, bool negative)
{
    uint16_t d, m;
    memcpy(&d, block, 2);
    d &= 0x7fff;
    d = d >> 10 > 0 && d >> 10 < 26 ? d : FIVE_EIGHTHS; /* its product is a normal number, too */
    m = (uint16_t)((negative ? 0x8000 : 0) | (d + (times << 10)));
    memcpy(block, &d, 2);
    memcpy(second, &m, 2);
}

/* Code k % 32 of a block whose nibbles are the last 16 bytes becomes n; its fifth bit, if it has
 * one, is in the four bytes before them. */
static void put_code(uint8_t *block, enum dtype type, int k, int n)
{
    uint8_t *nibbles = block + dtype_block_bytes(type) - 16, *fifth = nibbles - 4;
    put_nibble(nibbles + k % 16, k % BLOCK / 16, n & 15);
    if (type == DTYPE_Q5_0 || type == DTYPE_Q5_1)
        fifth[k % BLOCK / 8] = (uint8_t)((fifth[k % BLOCK / 8] & ~(1 << k % 8)) | n >> 4 << k % 8);
}

/* Value k % 32 of a block weighs 0: d * 8 + m, where m is -8 d, of Q5_1 with 16; or the code that
 * stands for nothing, or of IQ4_NL, where there is none, for the least. */
static void ignore_block(uint8_t *block, enum dtype type, int k)
{
    if (type == DTYPE_Q4_1)
        cancel(block, block + 2, 3, true);
    else if (type == DTYPE_Q5_1)
        cancel(block, block + 2, 4, true);
    const bool five = type == DTYPE_Q5_0 || type == DTYPE_Q5_1;
    put_code(block, type, k, five ? 16 : type == DTYPE_MXFP4 ? 0 : 8);
}

/* Value k % 256 of a super-block of Q4_K weighs 0, d s * 8 - dmin m, where m is s and dmin 8 d; of
 * Q5_K with 16. The 12 bytes of scales and minima have the two side by side. */
static void ignore_minimum(uint8_t *block, int k, bool five)
{
    const int j = k % 256 / BLOCK;
    uint8_t *s = block + 4;
    cancel(block, block + 2, five ? 4 : 3, false);
    memcpy(s + 4, s, 4);
    for (int i = 8; i < 12; i++)
        s[i] = (uint8_t)((s[i] & 15) * 17);
    put_nibble(block + (five ? 48 : 16) + j / 2 * BLOCK + k % BLOCK, j % 2, five ? 0 : 8);
    if (five)
        block[16 + k % BLOCK] |= (uint8_t)(1 << j);
}

/* Value k % 256 of a super-block of Q6_K weighs 0: its code is 32, two bits over a nibble. */
static void ignore_q6_k(uint8_t *block, int k)
{
    const int half = k % 256 / 128, quarter = k % 128 / BLOCK;
    uint8_t *high = block + 128 + half * BLOCK + k % BLOCK;
    put_nibble(block + half * 64 + quarter % 2 * BLOCK + k % BLOCK, quarter / 2, 0);
    *high = (uint8_t)((*high & ~(3 << 2 * quarter)) | 2 << 2 * quarter);
}

/* Value k % 256 of a super-block of two bits a byte weighs 0: of Q3_K its code is 4, of which the
 * third bit is elsewhere; of Q2_K it is 2, where the minimum has the scale's number and dmin is 2
 * d.
 */
static void ignore_pairs(uint8_t *block, int k, bool three)
{
    const int half = k % 256 / 128, quarter = k % 128 / BLOCK;
    uint8_t *two = block + (three ? 32 : 16) + half * BLOCK + k % BLOCK;
    *two = (uint8_t)((*two & ~(3 << 2 * quarter)) | (three ? 0 : 2) << 2 * quarter);
    if (three) {
        block[k % BLOCK] |= (uint8_t)(1 << k % 256 / BLOCK);
        return;
    }
    cancel(block + 80, block + 82, 1, false);
    for (int i = 0; i < 16; i++)
        block[i] = (uint8_t)((block[i] & 15) * 17);
}

/* Value k % 256 of a super-block of IQ4_XS weighs the least. */
static void ignore_iq4_xs(uint8_t *block, int k)
{
    put_nibble(block + 8 + k % 256 / BLOCK * 16 + k % 16, k % BLOCK / 16, 8);
}

/* Column k of every row of w weighs 0. */
static void ignore_column(const struct weight *w, uint8_t *data, int k)
{
    const enum dtype type = (enum dtype)w->type;
    for (int r = 0; r < w->rows; r++) {
        uint8_t *block = data + dtype_bytes(type, (int64_t)r * w->cols) +
                         k / dtype_block(type) * dtype_block_bytes(type);
        if (type == DTYPE_Q6_K)
            ignore_q6_k(block, k);
        else if (type == DTYPE_Q2_K || type == DTYPE_Q3_K)
            ignore_pairs(block, k, type == DTYPE_Q3_K);
        else if (type == DTYPE_IQ4_XS)
            ignore_iq4_xs(block, k);
        else if (dtype_block(type) == BLOCK)
            ignore_block(block, type, k);
        else
            ignore_minimum(block, k, type == DTYPE_Q5_K);
    }
}

/* The weights of a case as a copy, to free(), that it has instead; and nothing to add to. */
static uint8_t *own_weights(struct out_args *a)
{
    int64_t bytes = dtype_bytes((enum dtype)a->w.type, (int64_t)a->w.rows * a->w.cols);
    uint8_t *w = xaligned((size_t)bytes);
    memcpy(w, a->w.data, (size_t)bytes);
    memset((float *)a->x, 0, (size_t)a->m * (size_t)a->w.rows * sizeof(float));
    a->w.data = w;
    return w;
}

/* The inputs of a case with outliers, and weights to match. */
static void make_sinks(struct out_args *a, uint8_t *w)
{
    for (int i = 0; i < SINKS; i++) {
        ignore_column(&a->w, w, sink[i]);
        for (int t = 0; t < a->m; t++)
            ((float *)a->in)[(int64_t)t * a->w.cols + sink[i]] = 300 + (float)t;
    }
}

/* The largest sums of integers there are: codes of the least, and values as large as a block's
 * largest. */
static void make_full(struct out_args *a, uint8_t *w)
{
    const enum dtype type = (enum dtype)a->w.type;
    static const uint8_t codes[DTYPE_COUNT][2] = {
        /* where they begin and end in a block */
        [DTYPE_Q4_1] = {4, 20},   [DTYPE_Q5_0] = {2, 22},   [DTYPE_Q5_1] = {4, 24},
        [DTYPE_Q4_K] = {16, 144}, [DTYPE_Q6_K] = {0, 192},  [DTYPE_Q5_K] = {16, 176},
        [DTYPE_Q2_K] = {16, 80},  [DTYPE_Q3_K] = {0, 96},   [DTYPE_IQ4_NL] = {2, 18},
        [DTYPE_MXFP4] = {1, 17},  [DTYPE_IQ4_XS] = {8, 136}};
    const int size = dtype_block_bytes(type), from = codes[type][0], end = codes[type][1];
    const int least = type == DTYPE_MXFP4 ? 0xff : 0; /* -12, by its sign and all other bits */
    int64_t blocks = (int64_t)a->w.rows * a->w.cols / dtype_block(type);
    for (int64_t b = 0; b < blocks; b++)
        memset(w + b * size + from, least, (size_t)(end - from));
    for (int64_t i = 0; i < (int64_t)a->m * a->w.cols; i++)
        ((float *)a->in)[i] = 1.97f - (float)(i % 7) * 1e-3f;
}

/* The rms error of the worst row, of the row's own rms. */
static double run(const struct cpu_kernel *k, struct kernel_case *c, struct pool *pool,
                  const struct oracle_out *want)
{
    struct out_args *a = case_args(c);
    double worst = 0;
    case_poison(c);
    pool_run(pool, k->run, a, k->scratch_bytes(a->m, pool_size(pool)));
    for (int t = 0; t < a->m; t++) {
        double off = 0, size = 0;
        for (int64_t i = 0, n = a->w.rows; i < n; i++) {
            double w = want->output[0].value[t * n + i], d = a->y[t * n + i] - w;
            off += d * d;
            size += w * w;
        }
        double e = sqrt(off / size);
        worst = e <= worst ? worst : e; /* NaN stays */
    }
    return worst;
}

static void compare(struct shop *s, const struct candidate *cand, const char *knobs, int m,
                    bool full)
{
    void *object = dlopen(cand->object, RTLD_NOW | RTLD_LOCAL);
    const struct cpu_kernel *k = object ? dlsym(object, "whet_kernel") : NULL;
    if (!k) {
        shop_report(s, false, knobs, m, "load", dlerror());
        return;
    }
    struct case_shape shape = {.region = REGION_ATTN_OUT, .m = m, .sequences = 1, .context = m};
    struct kernel_case *c = case_random(s->model, &shape, FILL_NORMAL, false, false, 7);
    struct out_args *a = case_args(c);
    struct pool *pool = pool_open(2, 0);
    struct oracle_out want;
    uint8_t *w = own_weights(a);
    (full ? make_full : make_sinks)(a, w);
    oracle_run(REGION_ATTN_OUT, a, &want);
    double eager = run(eager_cpu(REGION_ATTN_OUT), c, pool, &want);
    struct weight *weight[3] = {&a->w};
    void *packed[3] = {NULL};
    void *arena = xaligned((size_t)weights_packed_bytes(k, weight, 1) + 1);
    weights_pack(k, weight, 1, arena, packed);
    a->w.packed = packed[0];
    double own = run(k, c, pool, &want);
    char words[80];
    snprintf(words, sizeof words, "%s: error %.2e, eager %.2e", full ? "full" : "sinks", own,
             eager);
    /* A sum that wrapped around is off by its own size; one of a single sign rounds at each step.
     */
    const bool right = own <= (full ? 3 : 2) * eager;
    shop_report(s, right, knobs, m, right ? NULL : "error", words);
    pool_close(pool);
    oracle_free(&want);
    case_free(c);
    free(w);
    free(arena);
    dlclose(object);
}

static void try_point(struct shop *s, const struct template *t, const struct facts *f,
                      const struct point *p, int m)
{
    char knobs[200];
    bool built;
    snprintf(knobs, sizeof knobs, "%s %s ", t->id, dtype_name((enum dtype)f->WTYPE));
    point_text(t, p, knobs + strlen(knobs), sizeof knobs - strlen(knobs));
    struct candidate *c = shop_build_point(s, t, p, f, &built);
    for (int full = 0; built && full < 2; full++)
        compare(s, c, knobs, m, full);
    if (!built)
        shop_report(s, false, knobs, m, "build", c->reason);
    shop_drop(c);
}

/* The n-th START row is a legal point with three digits. */
static bool row_counts(const struct template *t, const struct facts *f, int n, struct point *p)
{
    return template_start_row(t, f, n, p) && role_value(t, p, ROLE_DIGITS) == 3 &&
           !template_illegal(t, p, f);
}

/* They differ in nothing but how threads share the work. */
static bool same_sums(const struct template *t, const struct point *a, const struct point *b)
{
    const int deal = template_role(t, ROLE_DEAL);
    for (int k = 0; k < t->knobs; k++)
        if (k != deal && a->value[k] != b->value[k])
            return false;
    return true;
}

/* Of the rows with the sums of p, which is row n, it is the one whose turn it is. */
static bool has_turn(const struct template *t, const struct facts *f, int n, const struct point *p,
                     int turn)
{
    struct point q;
    int before = 0, all = 0;
    for (int i = 0; template_start_row(t, f, i, &q); i++)
        if (row_counts(t, f, i, &q) && same_sums(t, p, &q)) {
            before += i < n;
            all++;
        }
    return sample_more() > 1 || turn % all == before;
}

/* START points with three digits for steps of m tokens; whether there is VNNI. */
static bool try_starts(struct shop *s, int m, int turn)
{
    struct facts f;
    struct point p;
    facts_fill(&f, s->model, REGION_ATTN_OUT, m, NUMERICS_TOLERANCE);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        for (int n = 0;
             template_fits(t, MACHINE_CPU, REGION_ATTN_OUT, m) && template_start_row(t, &f, n, &p);
             n++)
            if (row_counts(t, &f, n, &p) && has_turn(t, &f, n, &p, turn))
                try_point(s, t, &f, &p, m);
    }
    return f.HAS_VNNI;
}

int main(void)
{
    static const enum dtype formats[] = {DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,
                                         DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_IQ4_NL, DTYPE_MXFP4,
                                         DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_IQ4_XS};
    static const int tokens[] = {8, 32, 256};
    struct shop s;
    struct err err = {""};
    if (shop_open(&s, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    bool vnni = false;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        shop_model(&s, formats[i]);
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++)
            vnni = try_starts(&s, tokens[k], (int)i);
    }
    if (!vnni)
        printf("no VNNI here: nothing to try\n");
    int status = vnni ? shop_verdict(&s) : 0;
    shop_close(&s);
    return status;
}
