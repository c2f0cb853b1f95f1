/* SPDX-License-Identifier: Apache-2.0 */
/* test_outliers.c - kernels of three digits beside several outliers, which weigh nothing.
 *
 * The first token of a prompt has a few channels hundreds of times as large as the others, and the
 * matrices behind it learn to ignore them. A row of three such values in blocks of their own is
 * made here, with weights of 0 in those columns: what is left of a result are the products of
 * ordinary values, a sixth of which share a block with an outlier. The probe's own outlier is one,
 * and weighs what any channel does.
 *
 * Each START point with three digits (VNNI; other machines have nothing to try) of the templates
 * for attn_out is built, run and held to twice the eager kernel's error.
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
#include "tests/kernels/shop.h"

enum { SINKS = 3, BLOCK = 32, BLOCK_BYTES = 20, ZERO = 8, FIVE_EIGHTHS = 0x3900 };
static const int sink[SINKS] = {5, 100, 333};

/* Column k of every row of w, blocks of Q4_1, weighs 0: d * 8 + m, where m is -8 d. */
static void ignore_column(uint8_t *w, int rows, int cols, int k)
{
    for (int r = 0; r < rows; r++) {
        uint8_t *block = w + ((int64_t)r * cols + k) / BLOCK * BLOCK_BYTES;
        uint8_t *pair = block + 4 + k % 16;
        uint16_t d, m;
        memcpy(&d, block, 2);
        d &= 0x7fff;
        d = d >> 10 > 0 && d >> 10 < 28 ? d : FIVE_EIGHTHS; /* 8 times it is a normal number, too */
        m = (uint16_t)(0x8000 | (d + (3 << 10)));
        memcpy(block, &d, 2);
        memcpy(block + 2, &m, 2);
        *pair = k % BLOCK < 16 ? (*pair & 0xf0) | ZERO : (*pair & 0x0f) | ZERO << 4;
    }
}

/* The inputs of a case with outliers, and weights to match; free() what it returns. */
static uint8_t *make_sinks(struct out_args *a)
{
    int64_t bytes = (int64_t)a->w.rows * a->w.cols / BLOCK * BLOCK_BYTES;
    uint8_t *w = xaligned((size_t)bytes);
    memcpy(w, a->w.data, (size_t)bytes);
    for (int i = 0; i < SINKS; i++) {
        ignore_column(w, a->w.rows, a->w.cols, sink[i]);
        for (int t = 0; t < a->m; t++)
            ((float *)a->in)[(int64_t)t * a->w.cols + sink[i]] = 300 + (float)t;
    }
    memset((float *)a->x, 0, (size_t)a->m * (size_t)a->w.rows * sizeof(float));
    a->w.data = w;
    return w;
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

static void compare(struct shop *s, const struct candidate *cand, const char *knobs, int m)
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
    uint8_t *w = make_sinks(a);
    oracle_run(REGION_ATTN_OUT, a, &want);
    double eager = run(eager_cpu(REGION_ATTN_OUT), c, pool, &want);
    struct weight *weight[3] = {&a->w};
    void *packed[3] = {NULL};
    void *arena = xaligned((size_t)weights_packed_bytes(k, weight, 1) + 1);
    weights_pack(k, weight, 1, arena, packed);
    a->w.packed = packed[0];
    double own = run(k, c, pool, &want);
    char words[80];
    snprintf(words, sizeof words, "error %.2e, eager %.2e", own, eager);
    shop_report(s, own <= 2 * eager, knobs, m, own <= 2 * eager ? NULL : "error", words);
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
    snprintf(knobs, sizeof knobs, "%s ", t->id);
    point_text(t, p, knobs + strlen(knobs), sizeof knobs - strlen(knobs));
    struct candidate *c = shop_build_point(s, t, p, f, &built);
    if (built)
        compare(s, c, knobs, m);
    else
        shop_report(s, false, knobs, m, "build", c->reason);
    shop_drop(c);
}

int main(void)
{
    static const int tokens[] = {8, 32, 256};
    struct shop s;
    struct err err = {""};
    if (shop_open(&s, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    bool vnni = false;
    for (int i = 0; i < 3 * template_count(); i++) {
        const struct template *t = template_at(i / 3);
        struct facts f;
        struct point p;
        int m = tokens[i % 3];
        facts_fill(&f, s.model, REGION_ATTN_OUT, m, NUMERICS_TOLERANCE);
        vnni = f.HAS_VNNI;
        for (int n = 0;
             template_fits(t, MACHINE_CPU, REGION_ATTN_OUT, m) && template_start_row(t, &f, n, &p);
             n++)
            if (role_value(t, &p, ROLE_DIGITS) == 3 && !template_illegal(t, &p, &f))
                try_point(&s, t, &f, &p, m);
    }
    if (!vnni)
        printf("no VNNI here: nothing to try\n");
    int status = vnni ? shop_verdict(&s) : 0;
    shop_close(&s);
    return status;
}
