/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c - see trial.h.
 *
 * The expected values are the oracle's, in double precision. How near a kernel must come to them is
 * measured, on the trusted eager kernel in the same case: what is written down here is only how
 * much chance may be in that measurement, and what lower precisions declare.
 */
#include "tests/kernels/trial.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cpu/case.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/pool.h"
#include "specializer/admission/check.h"

enum { THREADS_MOST = 3, LONG_MOST = 4096 };

void trial_describe(struct trial *tr)
{
    char knobs[160];
    point_text(tr->t, &tr->point, knobs, sizeof knobs);
    snprintf(tr->text, sizeof tr->text, "%s %s h%d m<=%d %s", tr->t->id,
             tr->facts.WTYPE < DTYPE_COUNT ? tr->model->description : "mixed", tr->facts.HIDDEN,
             tr->facts.M_MAX, knobs);
}

/* ---- building -------------------------------------------------------------------------------- */

static int compile(const struct trial *tr, const char *dir, const char *object, struct err *err)
{
    char **flags = point_flags(tr->t, &tr->point, &tr->facts);
    const char *compiler = getenv("CC") ? getenv("CC") : "cc";
    char *command = xasprintf("%s -O3 -std=gnu11 -shared -fPIC -ffp-contract=off "
                              "-fno-math-errno -Wall -Wextra -Werror -I%s",
                              compiler, dir);
    for (char **f = flags; *f; f++) {
        char *more = xasprintf("%s %s", command, *f);
        free(command);
        command = more;
    }
    char *whole =
        xasprintf("%s %s/cpu/%s.c -o %s -lm 2>%s.txt", command, dir, tr->t->file, object, object);
    int status = system(whole);
    if (status != 0)
        err_set(err, "does not compile: %s", whole);
    for (char **f = flags; *f; f++)
        free(*f);
    free(flags);
    free(command);
    free(whole);
    return status == 0 ? 0 : -1;
}

static const struct cpu_kernel *load(const char *object, struct err *err)
{
    void *handle = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    const struct cpu_kernel *k = handle ? dlsym(handle, "whet_kernel") : NULL;
    if (!k) {
        err_set(err, "does not load: %s", dlerror());
        return NULL;
    }
    return k;
}

/* ---- running and judging --------------------------------------------------------------------- */

/* All outputs of a case as floats, one after another; *n of them. */
static float *outputs(const struct kernel_case *c, size_t *n)
{
    float *all = NULL, *value;
    int32_t rows, cols;
    *n = 0;
    for (int i = 0; case_output(c, i, &rows, &cols, &value); i++) {
        size_t count = (size_t)rows * (size_t)cols;
        all = xrealloc(all, (*n + count) * sizeof *all);
        memcpy(all + *n, value, count * sizeof *all);
        *n += count;
        free(value);
    }
    return all;
}

static float *run(const struct cpu_kernel *k, struct kernel_case *c, struct pool *pool, int32_t m,
                  size_t *n)
{
    case_poison(c);
    pool_run(pool, k->run, case_args(c), k->scratch_bytes(m, pool_size(pool)));
    return outputs(c, n);
}

/* Error of one row against the oracle, relative to the row's largest value. */
struct row_error {
    double max, rms;
};

static struct row_error row_error(const float *y, const double *want, int32_t cols)
{
    struct row_error e = {0, 0};
    double scale = 0, square = 0, size = 0;
    for (int32_t i = 0; i < cols; i++) {
        double d = fabs((double)y[i] - want[i]);
        if (!(d <= e.max)) /* NaN stays */
            e.max = d;
        scale = fmax(scale, fabs(want[i]));
        square += d * d;
        size += want[i] * want[i];
    }
    e.max /= scale > 0 ? scale : 1;
    e.rms = sqrt(square / (size > 0 ? size : 1));
    return e;
}

static int knob_value(const struct trial *tr, enum knob_role role, int otherwise)
{
    int k = template_role(tr->t, role);
    return k < 0 ? otherwise : tr->point.value[k];
}

/* The rms that a row may be off by even if the eager kernel happens to be exact on it, and a
 * quarter of the most: two rounding units of the row's scale. Lower declared precisions get theirs,
 * for blocks with an outlier, where VNNI's tiles (cpu/lib/wide_digits.h) have a fourth digit. */
static double slack(const struct trial *tr)
{
    static const double by_digits[] = {1.2e-7, 0.1, 4e-4, 1.5e-6, 1.2e-7};
    static const double by_parts[] = {0, 1e-2, 4e-5, 1.2e-7};
    int digits = knob_value(tr, ROLE_DIGITS, 0);
    enum { ISA_VNNI = 3 };
    bool fourth =
        digits == 3 && strstr(tr->t->file, "_wide") && knob_value(tr, ROLE_ISA, 0) == ISA_VNNI;
    return fmax(by_digits[fourth ? 4 : digits], by_parts[knob_value(tr, ROLE_XPARTS, 3)]);
}

/* How many times the eager kernel's error is allowed. Softmax of scores in the tens of thousands
 * turns their last bits into large errors, which of two orders of summation is luckier being
 * chance: there only gross differences count. Up to 16 rows eager sums in 16 lanes, as it does not
 * in the slots of kernels that add up many short sums. */
static double factor(const struct trial *tr, enum fill fill, int32_t rows)
{
    bool steep = fill == FILL_LARGE || fill == FILL_OUTLIER;
    bool wide = tr->t->region != REGION_ATTN && strstr(tr->t->file, "_wide");
    if (wide && rows <= 16 && knob_value(tr, ROLE_CHUNK, 0) == 8)
        return 4;
    if (tr->t->region == REGION_ATTN && fill == FILL_SHIFTED)
        return 4; /* scores near 20000, where neighbouring floats are 2e-3 apart */
    return tr->t->region == REGION_ATTN && steep ? 64 : 2;
}

static int compare_outputs(const struct trial *tr, enum fill fill, const float *own,
                           const float *eager, const struct oracle_out *want, struct err *err)
{
    for (int i = 0; i < want->outputs; i++) {
        int32_t rows = want->output[i].rows, cols = want->output[i].cols;
        struct row_error worst = {0, 0}, theirs = {0, 0};
        for (int32_t r = 0; r < rows; r++, own += cols, eager += cols) {
            const double *w = want->output[i].value + (int64_t)r * cols;
            struct row_error a = row_error(own, w, cols), b = row_error(eager, w, cols);
            if (!(a.max <= worst.max))
                worst.max = a.max;
            if (!(a.rms <= worst.rms))
                worst.rms = a.rms;
            theirs.max = fmax(theirs.max, b.max);
            theirs.rms = fmax(theirs.rms, b.rms);
        }
        double most = slack(tr), k = factor(tr, fill, rows);
        if (getenv("WHET_KERNEL_VERBOSE"))
            printf("      output %d: max %.2e rms %.2e, eager %.2e %.2e\n", i, worst.max, worst.rms,
                   theirs.max, theirs.rms);
        if (!(worst.max <= k * theirs.max + 4 * most) || !(worst.rms <= k * theirs.rms + most))
            return err_set(err, "output %d is off by max %.2e rms %.2e, eager %.2e %.2e", i,
                           worst.max, worst.rms, theirs.max, theirs.rms);
    }
    return 0;
}

static int judge(const struct trial *tr, enum fill fill, struct kernel_case *c, const float *own,
                 const float *again, const float *eager, size_t n, struct err *err)
{
    const char *damage = case_damage(c);
    if (damage)
        return err_set(err, "damaged %s", damage);
    if (memcmp(own, again, n * sizeof *own) != 0)
        return err_set(err, "two runs differ");
    if (tr->t->bit_equal(&tr->point, &tr->facts))
        for (size_t i = 0; i < n; i++)
            if (memcmp(own + i, eager + i, sizeof *own) != 0)
                return err_set(err, "value %zu of %zu is %a, eager %a", i, n, (double)own[i],
                               (double)eager[i]);
    struct oracle_out want;
    oracle_run_kv(tr->t->region, tr->model->shape.kv_bf16, case_args(c), &want);
    int status = compare_outputs(tr, fill, own, eager, &want, err);
    oracle_free(&want);
    return status;
}

/* One case: m tokens, one kind of input, one team. */
static int check_case(const struct trial *tr, const struct cpu_kernel *k, struct pool *pool,
                      const struct case_shape *shape, enum fill fill, struct err *err)
{
    struct kernel_case *c = case_random(tr->model, shape, fill, true, true, tr->seed);
    const struct cpu_kernel *trusted = eager_cpu_of(tr->t->region, tr->model->shape.kv_bf16);
    struct weight *weight[3];
    void *packed[3] = {NULL};
    int weights = case_weights(c, weight);
    char *arena = xaligned((size_t)weights_packed_bytes(k, weight, weights) + 1);
    weights_pack(k, weight, weights, arena, packed);
    case_set_packed(c, (const void *const *)packed);
    size_t n;
    float *own = run(k, c, pool, shape->m, &n), *again = run(k, c, pool, shape->m, &n);
    const char *damage = case_damage(c);
    if (damage)
        return err_set(err, "m=%d %s, %d threads: damaged %s", shape->m, fill_name(fill),
                       pool_size(pool), damage);
    float *eager = run(trusted, c, pool, shape->m, &n);
    int status = judge(tr, fill, c, own, again, eager, n, err);
    if (status)
        err_prefix(err, "m=%d context=%d %s, %d threads", shape->m, shape->context, fill_name(fill),
                   pool_size(pool));
    free(own);
    free(again);
    free(eager);
    free(arena);
    case_free(c);
    return status;
}

/* One token over a context of more positions than attention keeps the scores of. */
static int check_long(const struct trial *tr, const struct cpu_kernel *k, struct err *err)
{
    const int32_t kept = knob_value(tr, ROLE_CHUNK, 0) * knob_value(tr, ROLE_SPLITS, 1);
    const struct case_shape shape = {
        .region = REGION_ATTN, .m = 1, .sequences = 1, .context = kept + 40};
    if (tr->t->region != REGION_ATTN || kept == 0 || kept > LONG_MOST)
        return 0;
    struct pool *pool = pool_open(2, 0);
    int status = check_case(tr, k, pool, &shape, FILL_NORMAL, err);
    pool_close(pool);
    return status;
}

static int check(const struct trial *tr, const struct cpu_kernel *k, struct err *err)
{
    const int m_max = tr->facts.M_MAX, region = tr->t->region;
    if (k->abi != WHET_CPU_ABI || (int)k->region != region || k->m_max < m_max)
        return err_set(err, "the object declares abi %d, region %d, m_max %d", k->abi, k->region,
                       k->m_max);
    const int m_try[] = {m_max, 1, m_max - 1, m_max / 2 + 1};
    static const int contexts[] = {1, 15, 16, 17, 40, 130};
    int cases = 0;
    for (int threads = 1; threads <= THREADS_MOST; threads++) {
        struct pool *pool = pool_open(threads, 0);
        for (int i = 0; i < 4; i++) {
            int m = m_try[i];
            if (m < 1 || (i > 0 && m == m_try[i - 1]) || (threads > 1 && i > 1 && m_max > 64))
                continue;
            for (int j = 0; j < 2; j++, cases++) {
                enum fill fill = (enum fill)((tr->seed + (uint64_t)cases) % FILL_COUNT);
                struct case_shape shape = {.region = (enum region)region,
                                           .m = m,
                                           .sequences = 1 + cases % (m < 4 ? m : 4),
                                           .context = contexts[cases % 6] + m,
                                           .ragged = cases % 2,
                                           .permuted_pages = cases % 3 > 0};
                if (check_case(tr, k, pool, &shape, fill, err))
                    return -1;
            }
        }
        pool_close(pool);
    }
    return check_long(tr, k, err);
}

/* Ranks are processes, and the probe has them. */
static int check_ranks(const struct trial *tr, const char *object, struct err *err)
{
    struct check_result result;
    int32_t m = tr->facts.M_MAX;
    struct check_request q = {.model = tr->model,
                              .object = object,
                              .range = {REGION_REDUCE, m > 1 ? m / 2 : 1, m, 0},
                              .threads = THREADS_MOST,
                              .ranks = 2 + (int32_t)(tr->seed % 3),
                              .full = true,
                              .seed = tr->seed};
    return check_kernel(&q, &result, err);
}

int trial_run(const struct trial *tr, const char *dir, struct err *err)
{
    char *object = xasprintf("%s/object-%d.so", dir, (int)getpid());
    int status = compile(tr, dir, object, err);
    if (tr->t->region == REGION_REDUCE) {
        status = status ? status : check_ranks(tr, object, err);
    } else {
        const struct cpu_kernel *k = status ? NULL : load(object, err);
        status = k ? check(tr, k, err) : -1;
    }
    unlink(object);
    free(object);
    return status;
}
