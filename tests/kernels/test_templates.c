/* test_templates.c - every kernel template at a spread of its legal points, against the oracle.
 *
 *   test_templates [TEMPLATE]        WHET_KERNEL_POINTS=n points a template (or "all")
 *                                    WHET_KERNEL_SEED=n  WHET_KERNEL_VERBOSE=1
 *                                    WHET_KERNEL_ONLY="ISA=4": points whose text contains that
 *
 * A point is compiled with the system compiler and run in a child process of its own, so one that
 * crashes is one failed line. Points are drawn so that they show many values of knobs and pairs of
 * values (coverage.h), over models of several shapes and formats (bias, per-head norm, both kinds
 * of RoPE), M up to the bucket's edge and teams of 1 to 3 threads. Of each it is demanded that
 *
 *   - its error against the oracle is at most twice the eager kernel's, or within the declared
 *     precision where fewer digits than float's are legal only under `reduced`
 *   - it damages nothing (guard bands, inputs, other tokens' cache rows)
 *   - the same inputs give the same bits again
 *   - where the table says BITEQ, the bits are the eager kernel's
 *
 * and of each source that its defaults are those of its table.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/oracle.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/pool.h"
#include "specializer/search/space.h"
#include "tests/kernels/coverage.h"
#include "tests/kernels/sample.h"

enum { WORKERS = 2, MODELS = 9, THREADS_MOST = 3, SPREAD = 8, CHOICES = 40 };

/* ---- models: small, but of every kind ------------------------------------------------------- */

static const struct {
    struct model_shape shape;
    enum dtype type;
} model_kind[MODELS] = {
#define KIND(a, type, width, q, kv, head, wide, words, interleaved) \
    {                                                               \
        {.arch = (a),                                               \
         .layers = 1,                                               \
         .hidden = (width),                                         \
         .heads = (q),                                              \
         .kv_heads = (kv),                                          \
         .head_dim = (head),                                        \
         .ffn = (wide),                                             \
         .vocab = (words),                                          \
         .max_context = 4096,                                       \
         .eps = (a) == ARCH_LLAMA ? 1e-5f : 1e-6f,                  \
         .rope_base = (a) == ARCH_LLAMA ? 1e4f : 1e6f,              \
         .rope_interleaved = (interleaved)},                        \
            (type)                                                  \
    }
    /* the first with SmolLM2's proportions; Qwen3: q and k normed per head; Qwen2: biases */
    KIND(ARCH_LLAMA, DTYPE_Q4_1, 192, 3, 1, 64, 512, 1000, true),
    KIND(ARCH_LLAMA, DTYPE_Q4_1, 576, 9, 3, 64, 1536, 777, true),
    KIND(ARCH_LLAMA, DTYPE_Q8_0, 96, 4, 2, 64, 352, 515, false),
    KIND(ARCH_LLAMA, DTYPE_Q4_0, 320, 2, 2, 128, 416, 33, true),
    KIND(ARCH_LLAMA, DTYPE_F16, 256, 4, 1, 64, 704, 1111, false),
    KIND(ARCH_LLAMA, DTYPE_F32, 64, 2, 1, 64, 96, 50, true),
    KIND(ARCH_QWEN3, DTYPE_BF16, 160, 4, 2, 128, 288, 300, false),
    KIND(ARCH_QWEN3, DTYPE_Q8_0, 128, 4, 1, 128, 320, 200, false),
    KIND(ARCH_QWEN2, DTYPE_Q4_1, 128, 2, 2, 64, 224, 400, false),
#undef KIND
};
static struct model *models[MODELS];

/* ---- one point --------------------------------------------------------------------------------
 */

struct trial {
    const struct template *t;
    const struct model *model;
    struct facts facts;
    struct point point;
    int kind, width; /* which model, which bucket */
    uint64_t seed;
    char text[200];
};

static void describe(struct trial *tr)
{
    char knobs[160];
    point_text(tr->t, &tr->point, knobs, sizeof knobs);
    snprintf(tr->text, sizeof tr->text, "%s %s h%d m<=%d %s", tr->t->id,
             tr->facts.WTYPE < DTYPE_COUNT ? tr->model->description : "mixed", tr->facts.HIDDEN,
             tr->facts.M_MAX, knobs);
}

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
    return status == 0 ? 0 : err_set(err, "does not compile: %s", whole);
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

static int knob_value(const struct trial *tr, const char *name, int otherwise)
{
    int k = template_knob(tr->t, name);
    return k < 0 ? otherwise : tr->point.value[k];
}

/* The rms that a row may be off by even if the eager kernel happens to be exact on it, and a
 * quarter of the most: two rounding units of the row's scale. Lower declared precisions get theirs,
 * for blocks with an outlier. */
static double slack(const struct trial *tr)
{
    static const double by_digits[] = {1.2e-7, 0.1, 4e-4, 1.5e-6, 1.2e-7};
    static const double by_parts[] = {0, 1e-2, 4e-5, 1.2e-7};
    return fmax(by_digits[knob_value(tr, "DIGITS", 0)], by_parts[knob_value(tr, "XPARTS", 3)]);
}

/* How many times the eager kernel's error is allowed. Softmax of scores in the tens of thousands
 * turns their last bits into large errors, which of two orders of summation is luckier being
 * chance: there only gross differences count. */
static double factor(const struct trial *tr, enum fill fill)
{
    bool steep = fill == FILL_LARGE || fill == FILL_OUTLIER;
    if (tr->t->region == REGION_ATTN && fill == FILL_SHIFTED)
        return 4; /* scores near 20000, where neighbouring floats are 2e-3 apart */
    return tr->t->region == REGION_ATTN && steep ? 64 : 2;
}

static int compare(const struct trial *tr, enum fill fill, const float *own, const float *eager,
                   const struct oracle_out *want, struct err *err)
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
        double most = slack(tr), k = factor(tr, fill);
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
    oracle_run(tr->t->region, case_args(c), &want);
    int status = compare(tr, fill, own, eager, &want, err);
    oracle_free(&want);
    return status;
}

/* One case: m tokens, one kind of input, one team. */
static int check_case(const struct trial *tr, const struct cpu_kernel *k, struct pool *pool,
                      const struct case_shape *shape, enum fill fill, struct err *err)
{
    struct kernel_case *c = case_random(tr->model, shape, fill, true, true, tr->seed);
    const struct cpu_kernel *trusted = eager_cpu(tr->t->region);
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
    return 0;
}

/* ---- children ---------------------------------------------------------------------------------
 */

struct worker {
    pid_t pid;
    int pipe;
    struct trial trial;
};

static void child(const struct trial *tr, const char *dir, int fd)
{
    struct err err;
    char *object = xasprintf("%s/object-%d.so", dir, (int)getpid());
    int status = compile(tr, dir, object, &err);
    const struct cpu_kernel *k = status ? NULL : load(object, &err);
    if (k)
        status = check(tr, k, &err);
    if (status || !k) {
        ssize_t written = write(fd, err.msg, strlen(err.msg));
        (void)written;
    }
    unlink(object);
    fflush(stdout);
    _exit(k && status == 0 ? 0 : 1);
}

static void start(struct worker *w, const struct trial *tr, const char *dir)
{
    int ends[2];
    if (pipe(ends))
        abort();
    fflush(stdout);
    w->trial = *tr;
    w->pid = fork();
    if (w->pid == 0) {
        close(ends[0]);
        alarm(300);
        child(tr, dir, ends[1]);
    }
    close(ends[1]);
    w->pipe = ends[0];
}

/* Waits for a worker; 1 if its point failed (and says so). */
static int finish(struct worker *w)
{
    char text[512] = "";
    int status = 0;
    if (w->pid == 0)
        return 0;
    ssize_t n = read(w->pipe, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(w->pipe);
    waitpid(w->pid, &status, 0);
    w->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "killed by signal %d", WTERMSIG(status));
    describe(&w->trial);
    printf("  FAIL %s: %s\n", w->trial.text, text);
    return 1;
}

/* ---- points -----------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static bool wanted(struct trial *tr)
{
    const char *only = getenv("WHET_KERNEL_ONLY");
    describe(tr);
    return !only || strstr(tr->text, only);
}

static const int bucket[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128};
enum { BUCKETS = sizeof bucket / sizeof *bucket };

/* A legal point of a random knob combination, model and M. `index` 0: the defaults. */
static bool draw(const struct template *t, int index, uint64_t *state, struct trial *tr)
{
    for (int attempt = 0; attempt < 200000; attempt++) {
        tr->kind = (int)(mix(state) % MODELS);
        tr->width = (int)(mix(state) % BUCKETS);
        int m = bucket[tr->width];
        if (m < t->m_min || m > t->m_max)
            continue;
        tr->t = t;
        tr->model = models[tr->kind];
        tr->seed = mix(state);
        facts_fill(&tr->facts, tr->model, t->region, m, NUMERICS_REDUCED);
        tr->point = template_defaults(t);
        for (int k = 0; k < t->knobs && index > 0; k++)
            tr->point.value[k] = t->knob[k].value[mix(state) % (uint64_t)t->knob[k].values];
        if (!template_illegal(t, &tr->point, &tr->facts) && wanted(tr))
            return true;
    }
    return false;
}

/* The model, the width and each knob's value, as coverage.h has them. */
static int features(const struct trial *tr, int feature[KNOBS_MAX + 2])
{
    int n = 0, base = MODELS + BUCKETS;
    feature[n++] = tr->kind;
    feature[n++] = MODELS + tr->width;
    for (int k = 0; k < tr->t->knobs; base += tr->t->knob[k++].values)
        for (int i = 0; i < tr->t->knob[k].values; i++)
            if (tr->t->knob[k].value[i] == tr->point.value[k])
                feature[n++] = base + i;
    return n;
}

/* Of CHOICES points the one that adds most to what was seen. */
static bool choose(const struct template *t, int index, uint64_t *state, struct coverage *seen,
                   struct trial *best)
{
    int feature[KNOBS_MAX + 2], most = -1;
    struct trial tr;
    for (int i = 0; i < CHOICES && draw(t, index, state, &tr); i++) {
        int gain = coverage_gain(seen, feature, features(&tr, feature));
        if (gain > most)
            *best = tr;
        most = gain > most ? gain : most;
    }
    if (most >= 0)
        coverage_add(seen, feature, features(best, feature));
    return most >= 0;
}

/* Every legal point on one model and M after another. */
static int all_points(const struct template *t, const char *dir, uint64_t *state, int *points)
{
    struct worker worker[WORKERS] = {{0}};
    int failed = 0;
    for (int i = 0; i < MODELS; i++) {
        struct trial tr = {.t = t, .model = models[i]};
        int m = t->m_max < 16 ? t->m_max : t->m_min < 8 ? 8 : t->m_min;
        facts_fill(&tr.facts, tr.model, t->region, m, NUMERICS_REDUCED);
        struct space *s = space_open(&tr.facts, t->region, m, NUMERICS_REDUCED);
        for (int32_t id = 0; id < space_size(s); id++) {
            if (space_template(s, id) != t)
                continue;
            space_point(s, id, &tr.point);
            tr.seed = mix(state);
            struct worker *w = &worker[*points % WORKERS];
            failed += finish(w);
            start(w, &tr, dir);
            ++*points;
        }
        space_close(s);
    }
    for (int i = 0; i < WORKERS; i++)
        failed += finish(&worker[i]);
    return failed;
}

static int some_points(const struct template *t, const char *dir, uint64_t *state, int want,
                       int *points)
{
    static struct coverage seen;
    struct worker worker[WORKERS] = {{0}};
    int failed = 0;
    seen = (struct coverage){.values = 0};
    for (int i = 0; i < want; i++) {
        struct trial tr;
        if (!choose(t, i, state, &seen, &tr))
            continue;
        struct worker *w = &worker[*points % WORKERS];
        failed += finish(w);
        start(w, &tr, dir);
        ++*points;
    }
    for (int i = 0; i < WORKERS; i++)
        failed += finish(&worker[i]);
    printf("  %s: %d values, %d pairs of values\n", t->id, seen.values, seen.pairs);
    return failed;
}

/* ---- the source's own defaults ----------------------------------------------------------------
 */

/* The source must say "#define KNOB value" with its table's default for every knob. */
static int defaults_agree(const struct template *t)
{
    const char *text = template_source(t);
    int failed = 0;
    for (int k = 0; k < t->knobs; k++) {
        char *line = xasprintf("#ifndef %s\n#define %s %d\n#endif\n", t->knob[k].name,
                               t->knob[k].name, t->knob[k].fallback);
        if (!strstr(text, line)) {
            printf("  FAIL %s.c lacks its table's default: #define %s %d\n", t->file,
                   t->knob[k].name, t->knob[k].fallback);
            failed++;
        }
        free(line);
    }
    return failed;
}

int main(int argc, char **argv)
{
    const char *points_text = getenv("WHET_KERNEL_POINTS"), *seed = getenv("WHET_KERNEL_SEED");
    bool all = points_text && strcmp(points_text, "all") == 0;
    int want = sample_size("WHET_KERNEL_POINTS", SPREAD), failed = 0;
    uint64_t state = seed ? strtoull(seed, NULL, 10) : 1;
    char dir[] = "/tmp/whet-templates-XXXXXX";
    struct err err;
    if (!mkdtemp(dir) || kernel_sources_write(dir, &err)) {
        printf("cannot write the kernel sources\n");
        return 1;
    }
    for (int i = 0; i < MODELS; i++)
        models[i] = model_random(&model_kind[i].shape, model_kind[i].type, 7 + (uint64_t)i);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (t->machine != MACHINE_CPU || (argc > 1 && strcmp(argv[1], t->id) != 0))
            continue;
        int points = 0, bad = defaults_agree(t);
        bad +=
            all ? all_points(t, dir, &state, &points) : some_points(t, dir, &state, want, &points);
        printf("%s %s: %d points, %d failed\n", bad ? "not ok" : "ok", t->id, points, bad);
        fflush(stdout);
        failed += bad;
    }
    char *clean = xasprintf("rm -r %s", dir);
    bool left = system(clean) != 0;
    free(clean);
    return left || failed > 0;
}
