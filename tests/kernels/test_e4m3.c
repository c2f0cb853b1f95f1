/* SPDX-License-Identifier: Apache-2.0 */
/* test_e4m3.c - what `specializer.numerics = fp8` promises of whole models, measured on a CPU.
 *
 *   test_e4m3 [MODEL [TEXT]]     a model with matrices in any format, and a file of words for it
 *
 * Weights become F8, then every input of a region's products is rounded as brick_wide.cu rounds it:
 * to e4m3, with a scale for 128 columns of a token, or for the token. That is all that kernel does
 * to the numbers, but for what sums lose that stay in tensor cores. So its logits are judged as
 * admission judges a kernel's. Without arguments the model is drawn at random, and e4m3 in the
 * layers of any one region must pass, but not as `reduced`, whose promise is another one; a bit
 * less in all four must be refused. With arguments it is a measurement: docs/specializer.md has the
 * figures of a real model.
 */
#include "specializer/admission/forward.c"

#include <math.h>
#include <stdio.h>

#include "engine/cpu/vec.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "specializer/admission/endcheck.h"
#include "specializer/candidate/hash.h"

enum { SEQUENCES = 8, LENGTH_MOST = 64, GROUP = 128, SAMPLE = 16 };
#define LIMIT 2e-3 /* of what declares no lower precision, on a GPU */

/* ---- rounding ------------------------------------------------------------------------------- */

/* A small float: bits behind the first, exponent of the least normal number, largest number. */
struct small {
    int bits, least;
    float most;
};
static const struct small e4m3 = {3, -6, 448}, e5m2 = {2, -14, 57344};

static struct {
    const struct small *to;
    int32_t group;    /* columns that share a scale; 0: all of a token */
    uint32_t regions; /* whose inputs are rounded */
} rounding;

static void round_group(const struct small *f, float *v, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(v[i]));
    for (int64_t i = 0; most > 0 && i < n; i++) {
        float scaled = v[i] * (f->most / most);
        int e = scaled != 0 ? ilogbf(scaled) : f->least;
        float unit = ldexpf(1, (e < f->least ? f->least : e) - f->bits);
        v[i] = rintf(scaled / unit) * unit * (most / f->most);
    }
}

/* A copy of [m, k], normed by `gain` where there is one, and rounded; to be freed. */
static float *rounded(const float *x, const float *gain, float eps, int32_t m, int64_t k)
{
    float *copy = floats(m * k);
    int64_t group = rounding.group ? rounding.group : k;
    for (int64_t t = 0; t < m; t++) {
        if (gain)
            lanes_rmsnorm(copy + t * k, x + t * k, gain, k, eps);
        else
            memcpy(copy + t * k, x + t * k, (size_t)k * sizeof *copy);
        for (int64_t i = 0; i < k; i += group)
            round_group(rounding.to, copy + t * k + i, k - i < group ? k - i : group);
    }
    return copy;
}

/* ---- eager's regions with such inputs ------------------------------------------------------- */

/* An eps beside which the square of a row vanishes, and a gain that undoes it: a norm that gives
 * the rows it gets, as both are powers of two. */
static const float huge_eps = 0x1p60f, huge_gain = 0x1p30f;
static float *gains; /* [hidden] */

/* Heads are normed with the same eps, so here each token has the gain that undoes its own norm. */
static void attn_in(const void *args, const struct team *team)
{
    struct attn_in_args a = *(const struct attn_in_args *)args;
    int32_t k = a.wq.cols, tokens = a.m;
    float *x = rounded(a.x, a.norm, a.eps, a.m, k), *gain = floats(k);
    a.m = 1;
    a.x = x;
    a.norm = gain;
    for (int32_t t = 0; t < tokens; t++) {
        float undo = 1 / lanes_inverse_rms(a.x, k, a.eps);
        for (int32_t i = 0; i < k; i++)
            gain[i] = undo;
        eager_cpu(REGION_ATTN_IN)->run(&a, team);
        a.x += k;
        a.position++;
        a.kv_at++;
        a.q += a.heads * a.head_dim;
    }
    free(gain);
    free(x);
}

static void mlp_in(const void *args, const struct team *team)
{
    struct mlp_in_args a = *(const struct mlp_in_args *)args;
    float *x = rounded(a.x, a.norm, a.eps, a.m, a.gate.cols);
    a.x = x, a.norm = gains, a.eps = huge_eps;
    eager_cpu(REGION_MLP_IN)->run(&a, team);
    free(x);
}

static void out(const void *args, const struct team *team)
{
    struct out_args a = *(const struct out_args *)args;
    float *in = rounded(a.in, NULL, 0, a.m, a.w.cols);
    a.in = in;
    eager_cpu(REGION_MLP_OUT)->run(&a, team);
    free(in);
}

static struct cpu_kernel kernels[REGION_LOCAL];

static void replace(struct forward *f)
{
    static void (*const run[REGION_LOCAL])(const void *, const struct team *) = {
        [REGION_ATTN_IN] = attn_in,
        [REGION_ATTN_OUT] = out,
        [REGION_MLP_IN] = mlp_in,
        [REGION_MLP_OUT] = out,
    };
    for (int r = 0; r < REGION_LOCAL; r++)
        if (rounding.regions >> r & 1) {
            kernels[r] = *eager_cpu((enum region)r);
            kernels[r].run = run[r];
            f->eager[r] = &kernels[r];
        }
}

/* ---- the model and its words ---------------------------------------------------------------- */

static void to_f8(struct weight *w)
{
    float *row = floats(w->cols);
    int64_t from = dtype_bytes((enum dtype)w->type, w->cols), to = dtype_bytes(DTYPE_F8, w->cols);
    uint8_t *data = xaligned((size_t)(to * w->rows) + 64);
    for (int32_t r = 0; r < w->rows; r++) {
        dequant_row((enum dtype)w->type, (const uint8_t *)w->data + r * from, row, w->cols);
        quant_row(DTYPE_F8, row, data + r * to, w->cols);
    }
    w->data = data; /* as long as the test */
    w->type = DTYPE_F8;
    free(row);
}

static struct model *prepare(const char *path, struct err *err)
{
    struct model *m = model_open(path, true, NULL, NULL, err);
    if (!m)
        return NULL;
    for (int32_t l = 0; l < m->shape.layers; l++) {
        struct layer *y = &m->layer[l];
        struct weight *all[] = {&y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (all[i]->type != DTYPE_F8)
                to_f8(all[i]);
    }
    gains = floats(m->shape.hidden);
    for (int32_t i = 0; i < m->shape.hidden; i++)
        gains[i] = huge_gain;
    return m;
}

/* As many words of a file as there is room for, or ids by chance. Their number. */
static int32_t words(const struct model *m, const char *path, int32_t *token, int32_t most,
                     struct err *err)
{
    int32_t *ids = NULL;
    char *text = NULL;
    size_t size = 0;
    FILE *f = path ? fopen(path, "r") : NULL;
    for (int32_t i = 0; !path && i < most; i++)
        token[i] = (int32_t)(hash_mix((uint64_t)i + 1) % (uint64_t)m->shape.vocab);
    if (!path)
        return most;
    if (!f)
        return err_set(err, "%s cannot be read", path);
    if (getdelim(&text, &size, 0, f) < 0)
        return err_set(err, "%s is empty", path);
    fclose(f);
    int64_t n = tokenizer_encode(m->tokenizer, text, strlen(text), false, &ids, err);
    n = n > most ? most : n;
    for (int64_t i = 0; i < n; i++)
        token[i] = ids[i];
    free(ids);
    free(text);
    return (int32_t)n;
}

/* ---- the test ------------------------------------------------------------------------------- */

struct trial {
    const char *what;
    const struct small *to;
    int32_t group;
    uint32_t regions;
    enum { ADMITTED, REFUSED, PRINTED } wanted;
};

#define ONE(r) (1u << REGION_##r)
#define ALL (ONE(ATTN_IN) | ONE(ATTN_OUT) | ONE(MLP_IN) | ONE(MLP_OUT))
static const struct trial trials[] = {
    {"e4m3 attn_in", &e4m3, GROUP, ONE(ATTN_IN), ADMITTED},
    {"e4m3 attn_out", &e4m3, GROUP, ONE(ATTN_OUT), ADMITTED},
    {"e4m3 mlp_in", &e4m3, GROUP, ONE(MLP_IN), ADMITTED},
    {"e4m3 mlp_out", &e4m3, GROUP, ONE(MLP_OUT), ADMITTED},
    {"e4m3 all four", &e4m3, GROUP, ALL, PRINTED},
    {"a scale a token attn_in", &e4m3, 0, ONE(ATTN_IN), ADMITTED},
    {"a scale a token attn_out", &e4m3, 0, ONE(ATTN_OUT), ADMITTED},
    {"a scale a token mlp_in", &e4m3, 0, ONE(MLP_IN), ADMITTED},
    {"a scale a token mlp_out", &e4m3, 0, ONE(MLP_OUT), ADMITTED},
    {"a scale a token all four", &e4m3, 0, ALL, PRINTED},
    {"e5m2 attn_in", &e5m2, GROUP, ONE(ATTN_IN), PRINTED},
    {"e5m2 attn_out", &e5m2, GROUP, ONE(ATTN_OUT), PRINTED},
    {"e5m2 mlp_in", &e5m2, GROUP, ONE(MLP_IN), PRINTED},
    {"e5m2 mlp_out", &e5m2, GROUP, ONE(MLP_OUT), PRINTED},
    {"e5m2 all four", &e5m2, GROUP, ALL, REFUSED},
};

/* Admission looks at SAMPLE tokens: how many samples of that size would have been refused, and
 * the largest divergence of one. */
static int samples_refused(const float *eager, const float *own, int32_t tokens, int32_t vocab,
                           double *worst)
{
    int refused = 0;
    *worst = 0;
    for (int32_t t = 0; t + SAMPLE <= tokens; t += SAMPLE) {
        struct end_result r;
        struct err err = {""};
        int64_t at = (int64_t)t * vocab;
        end_compare(eager + at, own + at, SAMPLE, vocab, 0, &r);
        refused += end_verdict(NUMERICS_FP8, PRECISION_E4M3, LIMIT, &r, &err) != 0;
        *worst = fmax(*worst, r.kl);
    }
    return refused;
}

static bool judge(const struct trial *t, bool demanded, const struct end_result *r, int refused,
                  double worst)
{
    struct err err = {""};
    bool admitted = end_verdict(NUMERICS_FP8, PRECISION_E4M3, LIMIT, r, &err) == 0;
    bool reduced = end_verdict(NUMERICS_REDUCED, PRECISION_INT8, LIMIT, r, &err) == 0;
    bool ok =
        !demanded || t->wanted == PRINTED || (admitted == (t->wanted == ADMITTED) && !reduced);
    printf(
        "%-4s %-24s %-8s KL %.2e, other first choices %4.1f %%, of no tie %d; %2d of %2d samples "
        "refused, worst KL %.2e\n",
        ok ? "ok" : "FAIL", t->what, admitted ? "admitted" : "refused", r->kl, 100 * (1 - r->top1),
        r->changed, refused, r->tokens / SAMPLE, worst);
    fflush(stdout);
    return ok;
}

int main(int argc, char **argv)
{
    struct err err = {""};
    struct model *m = prepare(argc > 1 ? argv[1] : "random:tiny", &err);
    int32_t token[SEQUENCES * LENGTH_MOST];
    int32_t n = m ? words(m, argc > 2 ? argv[2] : NULL, token, SEQUENCES * LENGTH_MOST, &err) : -1;
    if (n < SEQUENCES) {
        printf("%s\n", n < 0 ? err.msg : "too few words");
        return 1;
    }
    int32_t length = n / SEQUENCES, tokens = length * SEQUENCES, failed = 0;
    size_t floats_of = (size_t)tokens * (size_t)m->head.rows;
    float *eager = floats((int64_t)floats_of), *own = floats((int64_t)floats_of);
    for (int i = -1; i < (int)(sizeof trials / sizeof *trials); i++) {
        struct forward *f = forward_open(m, SEQUENCES, length);
        if (i >= 0) {
            rounding.to = trials[i].to;
            rounding.group = trials[i].group;
            rounding.regions = trials[i].regions;
            replace(f);
        }
        forward_step(f, token, 0, SEQUENCES, 0, length, i < 0 ? eager : own);
        forward_close(f);
        struct end_result r;
        if (i < 0)
            continue;
        end_compare(eager, own, tokens, m->head.rows, 0, &r);
        double e = 2 * precision_rms(PRECISION_E4M3) * r.spread, worst;
        int refused = samples_refused(eager, own, tokens, m->head.rows, &worst);
        if (i == 0)
            printf("%s, weights in F8, %d tokens, spread %.2f, KL at most %.2e\n", m->name, tokens,
                   r.spread, fmax(LIMIT, e * e / 2));
        failed += !judge(&trials[i], argc == 1, &r, refused, worst);
    }
    free(eager);
    free(own);
    model_close(m);
    return failed > 0;
}
