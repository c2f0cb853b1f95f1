/* SPDX-License-Identifier: Apache-2.0 */
/* test_templates.c - every kernel template at a spread of its legal points, against the oracle.
 *
 *   test_templates [TEMPLATE]        WHET_KERNEL_POINTS=n points a template (or "all")
 *                                    WHET_KERNEL_SEED=n  WHET_KERNEL_VERBOSE=1
 *                                    WHET_KERNEL_ONLY="ISA=4": points whose text contains that
 *
 * A point is compiled with the system compiler and run in a child process of its own, so one that
 * crashes is one failed line; trial.h says what is demanded of it. Points are drawn so that they
 * show many values of knobs and pairs of values (*Coverage* below), over models of several shapes
 * and formats (bias, per-head norm, both kinds of RoPE, keys and values in floats and in bf16).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/err.h"
#include "specializer/build/sources.h"
#include "tests/kernels/sample.h"
#include "tests/kernels/trial.h"

enum { WORKERS = 2, MODELS = 22, SPREAD = 5, CHOICES = 40 };

/* ---- coverage -------------------------------------------------------------------------------
 *
 * How much a few points show of what there is to show. A point has a value for each knob, a model,
 * a width: its features, as small numbers. What breaks a kernel is nearly always one value or two
 * that meet, so a sample is worth the values and pairs of values that are in it. Of several random
 * points the one that adds most is taken: eight so chosen show more values than sixteen drawn
 * blindly, and three quarters of their pairs, at half the compiler's time. */

enum { FEATURES = 384 };

struct coverage {
    bool seen[FEATURES][FEATURES]; /* both ways; a value met itself when it was seen at all */
    int values, pairs;
};

/* What a point with these features would add: pairs, and a new value counts as much as ten. */
static int coverage_gain(const struct coverage *c, const int *feature, int n)
{
    int gain = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            gain += c->seen[feature[i]][feature[j]] ? 0 : i == j ? 10 : 1;
    return gain;
}

static void coverage_add(struct coverage *c, const int *feature, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            int a = feature[i], b = feature[j];
            *(i == j ? &c->values : &c->pairs) += !c->seen[a][b];
            c->seen[a][b] = c->seen[b][a] = true;
        }
}

/* ---- models: small, but of every kind ------------------------------------------------------- */

static const struct {
    struct model_shape shape;
    enum dtype type, other; /* of values, up and down, where there is one */
} model_kind[MODELS] = {
#define KIND(a, type, width, q, kv, head, wide, words, interleaved) \
    MIXED(a, type, 0, width, q, kv, head, wide, words, interleaved)
#define MIXED(a, type, other, width, q, kv, head, wide, words, interleaved) \
    {                                                                       \
        {.arch = (a),                                                       \
         .layers = 1,                                                       \
         .hidden = (width),                                                 \
         .heads = (q),                                                      \
         .kv_heads = (kv),                                                  \
         .head_dim = (head),                                                \
         .ffn = (wide),                                                     \
         .vocab = (words),                                                  \
         .max_context = 4096,                                               \
         .eps = (a) == ARCH_LLAMA ? 1e-5f : 1e-6f,                          \
         .rope_base = (a) == ARCH_LLAMA ? 1e4f : 1e6f,                      \
         .rope_interleaved = (interleaved)},                                \
            (type), (other)                                                 \
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
    /* super-blocks of 256 */
    KIND(ARCH_LLAMA, DTYPE_Q4_K, 256, 8, 2, 64, 768, 331, false),
    KIND(ARCH_QWEN3, DTYPE_Q6_K, 512, 2, 1, 128, 256, 250, false),
    KIND(ARCH_LLAMA, DTYPE_Q5_K, 256, 4, 4, 64, 512, 97, true),
    KIND(ARCH_LLAMA, DTYPE_Q2_K, 512, 8, 2, 64, 256, 121, true),
    KIND(ARCH_QWEN3, DTYPE_Q3_K, 256, 4, 2, 64, 768, 66, false),
    KIND(ARCH_QWEN2, DTYPE_IQ4_XS, 256, 4, 1, 64, 512, 170, false),
    /* a fifth bit for each nibble; nibbles that are looked up */
    KIND(ARCH_LLAMA, DTYPE_Q5_0, 192, 4, 2, 64, 352, 140, true),
    KIND(ARCH_QWEN2, DTYPE_Q5_1, 160, 2, 1, 64, 288, 210, false),
    KIND(ARCH_QWEN3, DTYPE_IQ4_NL, 128, 2, 2, 64, 416, 75, false),
    KIND(ARCH_LLAMA, DTYPE_MXFP4, 224, 6, 2, 32, 320, 161, true),
    /* weights that are stored in more bytes than the first of their region: in Q6_K and Q8_0 as
     * files of Q4_K_M have them */
    MIXED(ARCH_LLAMA, DTYPE_Q4_K, DTYPE_Q6_K, 256, 4, 2, 64, 512, 90, true),
    MIXED(ARCH_LLAMA, DTYPE_Q4_0, DTYPE_Q4_1, 128, 4, 2, 64, 256, 80, true),
    MIXED(ARCH_LLAMA, DTYPE_Q5_0, DTYPE_Q8_0, 96, 2, 1, 64, 224, 70, false),
#undef MIXED
#undef KIND
};
static struct model *models[MODELS];

/* Never closed. */
static struct model *open_model(int i)
{
    const enum dtype other = model_kind[i].other;
    struct model *m = model_random(&model_kind[i].shape, model_kind[i].type, 7 + (uint64_t)i);
    m->shape.kv_bf16 = i % 2; /* attn and attn_in, for either type of keys and values */
    if (!other)
        return m;
    struct layer *to = m->layer,
                 *from = model_random(&model_kind[i].shape, other, 7 + (uint64_t)i)->layer;
    to->wv = from->wv;
    to->up = from->up;
    to->down = from->down;
    return m;
}

/* ---- children -------------------------------------------------------------------------------- */

struct worker {
    pid_t pid;
    int pipe;
    struct trial trial;
};

static void child(const struct trial *tr, const char *dir, int fd)
{
    struct err err;
    int status = trial_run(tr, dir, &err);
    if (status) {
        ssize_t written = write(fd, err.msg, strlen(err.msg));
        (void)written;
    }
    fflush(stdout);
    _exit(status ? 1 : 0);
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
        alarm(1200); /* a limit, never reached by one that works */
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
    trial_describe(&w->trial);
    printf("  FAIL %s: %s\n", w->trial.text, text);
    return 1;
}

/* ---- points ---------------------------------------------------------------------------------- */

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
    trial_describe(tr);
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

/* The model, the width and each knob's value, as features. */
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
    int failed = 0, first = getenv("WHET_KERNEL_ONLY") ? 1 : 0; /* the defaults seldom are such */
    seen = (struct coverage){.values = 0};
    for (int i = 0; i < want; i++) {
        struct trial tr;
        if (!choose(t, first + i, state, &seen, &tr))
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

int main(int argc, char **argv)
{
    const char *points_text = getenv("WHET_KERNEL_POINTS"), *seed = getenv("WHET_KERNEL_SEED");
    bool all = points_text && strcmp(points_text, "all") == 0;
    int want = sample_size("WHET_KERNEL_POINTS", SPREAD), failed = 0, ran = 0;
    uint64_t state = seed ? strtoull(seed, NULL, 10) : 1;
    char dir[] = "/tmp/whet-templates-XXXXXX";
    struct err err;
    if (!mkdtemp(dir) || kernel_sources_write(dir, &err)) {
        printf("cannot write the kernel sources\n");
        return 1;
    }
    for (int i = 0; i < MODELS; i++)
        models[i] = open_model(i);
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (t->machine != MACHINE_CPU || (argc > 1 && strcmp(argv[1], t->id) != 0))
            continue;
        int points = 0, bad = all ? all_points(t, dir, &state, &points)
                                  : some_points(t, dir, &state, want, &points);
        printf("%s %s: %d points, %d failed\n", bad ? "not ok" : "ok", t->id, points, bad);
        fflush(stdout);
        failed += bad;
        ran += points;
    }
    if (ran == 0)
        printf("not ok: no point of %s\n", argc > 1 ? argv[1] : "any template");
    char *clean = xasprintf("rm -r %s", dir);
    bool left = system(clean) != 0;
    free(clean);
    return left || failed > 0 || ran == 0;
}
