/* SPDX-License-Identifier: Apache-2.0 */
/* test_points.c - the CUDA templates at a seeded sample of their legal points, against the oracle.
 *
 *   test_points [FAMILY] [--points N] [--quick] [--exact] [--seed S] [--threads T] [--arch sm_90a]
 *
 * For each template, shape and M bucket, N points (default 2) are compiled as candidates are, on
 * all cores while the device works, and each is run for up to four M of its bucket on poisoned
 * memory, twice: alone, and behind a kernel that brings the activations late. Attention runs at
 * contexts around a page border, at 4096 and 32768, on shuffled pages, with sequences of several
 * lengths in one step. --quick leaves the long contexts out and tries the fewest and most tokens of
 * a bucket only; --exact makes every allocation exactly as large as it must be: that is for
 * compute-sanitizer. Points that do not fit the device (registers, as LEGAL only estimates them)
 * are counted, not failed, but may not be more than a fifth.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/dispatch.h"
#include "tests/device/compile_pool.h"
#include "tests/device/device_test.h"
#include "tests/device/solo.h"
#include "tests/kernels/cuda_points.h"

/* Rows of 256 or more columns: what gemv takes. Interleaved RoPE is the device's own order. */
static const struct shape_row small[] = {
    {"d64 g4", {ARCH_LLAMA, 2, 512, 8, 2, 64, 1024, 1000, 40960, 1e-5f, 1e5f, 1, 0, {0}}},
    {"d128 g2 norm", {ARCH_QWEN3, 2, 256, 8, 4, 128, 768, 2000, 40960, 1e-6f, 1e6f, 1, 0, {0}}},
    {"d64 g7 bias", {ARCH_QWEN2, 2, 1280, 28, 4, 64, 1536, 1504, 40960, 1e-6f, 1e6f, 1, 0, {0}}},
    {"d128 g8 norm", {ARCH_QWEN3, 2, 512, 16, 2, 128, 1280, 1008, 40960, 1e-6f, 1e6f, 1, 0, {0}}},
};
enum { SHAPES = sizeof small / sizeof *small, BUCKETS = 15 }; /* up to 512 tokens */

static const char *family, *root = ".", *arch = "sm_90a";
static int points = 2, threads;
static bool quick, exact;
static uint32_t seed = 4;

/* ---- jobs: points to compile --------------------------------------------------------------- */

struct job {
    struct compile_job c;
    int shape, bucket; /* index of m_bucket */
};

static struct compile_pool *pool;
static struct compile_job **job; /* each the head of a struct job */
static int jobs;

static struct job *job_at(int i)
{
    return (struct job *)job[i];
}

static void add(const struct template *t, int shape, int bucket, const struct facts *f,
                const struct point *p)
{
    struct job *j = xcalloc(1, sizeof *j);
    *j = (struct job){.c = {.t = t, .f = *f, .p = *p}, .shape = shape, .bucket = bucket};
    job = xrealloc(job, (size_t)(jobs + 1) * sizeof(struct compile_job *));
    job[jobs++] = &j->c;
}

static void plan(int sms)
{
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        for (int s = 0; s < SHAPES; s++)
            for (int b = 0; b < BUCKETS; b++) {
                struct facts f = cuda_facts(&small[s].shape, t->region, m_bucket[b], sms);
                struct point p;
                if (t->library || t->region == REGION_REDUCE || /* test_bad_probe.c has it */
                    cuda_reads_bricks(t) ||                     /* test_probe.c has it */
                    (family && strcmp(family, t->file) != 0) ||
                    !template_fits(t, MACHINE_CUDA, t->region, m_bucket[b]))
                    continue;
                for (int n = 0; n < points && cuda_point_random(t, &f, &seed, &p); n++)
                    add(t, s, b, &f, &p);
            }
    }
}

/* ---- questions, drawn once ----------------------------------------------------------------- */

struct key {
    int shape, region, m, bucket, context;
};
static struct {
    struct key key;
    struct question *q;
} * asked;
static int asks;
static struct model *model[SHAPES];

static struct question *question(const struct key *k)
{
    for (int i = 0; i < asks; i++)
        if (memcmp(&asked[i].key, k, sizeof *k) == 0)
            return asked[i].q;
    asked = xrealloc(asked, (size_t)(asks + 1) * sizeof *asked);
    asked[asks].key = *k;
    asked[asks].q =
        question_new(model[k->shape], (enum region)k->region, k->m, k->bucket, k->context,
                     asks % 3 ? NUMBERS_NORMAL : NUMBERS_OUTLIER, (uint64_t)asks + 100, exact);
    return asked[asks++].q;
}

static void forget(void)
{
    for (int i = 0; i < asks; i++)
        question_free(asked[i].q);
    asks = 0;
}

/* ---- running ------------------------------------------------------------------------------- */

static int runs, unfit;

/* Activations of these are bf16, and mlp_in multiplies two such sums; everything else sums floats.
 */
static double bound_of(const struct job *j)
{
    const char *file = j->c.t->file;
    if (strncmp(file, "mma", 3) != 0 && strcmp(file, "wide") != 0 && strcmp(file, "skinny") != 0)
        return 3e-5;
    return j->c.t->region == REGION_MLP_IN ? 8e-3 : 6e-3;
}

static bool run_one(const struct job *j, const struct solo_kernel *k, int m, int context,
                    double *worst)
{
    struct key key = {j->shape, j->c.t->region, m, m_bucket[j->bucket], context};
    char why[WHY_SIZE] = "";
    bool ok = true;
    for (int how = 0; ok && how <= (quick ? 0 : SOLO_LATE); how++) {
        double rms;
        ok = solo_ask(k, question(&key), bound_of(j), how, &rms, why);
        *worst = rms > *worst ? rms : *worst;
        runs++;
        check(ok, false, "%s %s M %d of %d context %d%s: %s (%s)", j->c.t->id, small[j->shape].name,
              m, m_bucket[j->bucket], context, how ? ", late" : "", why, j->c.knobs);
    }
    return ok;
}

static bool run_context(const struct job *j, const struct solo_kernel *k, int context,
                        double *worst)
{
    int most = m_bucket[j->bucket], least = j->bucket ? m_bucket[j->bucket - 1] + 1 : 1;
    if (context > 4096 ? most > 1 : context > 1000 && most > 3)
        return true;
    if (j->c.t->region == REGION_ATTN && most > 64 && context != 17 && context != 33 &&
        (quick || context != 300))
        return true; /* inputs are drawn by one thread */
    int step = quick ? most - least : (most - least + 2) / 3;
    for (int m = least; m < most; m += step)
        if (!run_one(j, k, m, context, worst))
            return false;
    if (!run_one(j, k, most, context, worst))
        return false;
    return true;
}

static void run_job(struct job *j, double *worst)
{
    static const int contexts[] = {1, 15, 16, 17, 33, 300, 1000, 4096, 32768};
    int n = j->c.t->region != REGION_ATTN ? 1
            : quick                       ? 6
                                          : (int)(sizeof contexts / sizeof *contexts);
    struct solo_kernel k;
    compile_pool_await(pool, &j->c);
    check(j->c.cubin != NULL, false, "%s %s: %s", j->c.t->id, j->c.knobs, j->c.why);
    if (!j->c.cubin)
        return;
    bool ok = solo_load(&k, j->c.cubin, (enum region)j->c.t->region, j->c.why);
    if (!ok && (strstr(j->c.why, "registers") || strstr(j->c.why, "spills")))
        unfit++;
    else
        check(ok, false, "%s %s loads: %s", j->c.t->id, j->c.knobs, j->c.why);
    for (int i = 0; ok && i < n; i++)
        ok = run_context(j, &k, contexts[i], worst);
    solo_unload(&k);
    free(j->c.cubin);
    j->c.cubin = NULL;
}

static void run_all(void)
{
    for (int i = 0; i < jobs;) {
        const struct template *t = job[i]->t;
        double worst = 0;
        int first = i, shape = job_at(i)->shape, had = runs;
        int64_t t0 = clock_ns();
        for (; i < jobs && job[i]->t == t && job_at(i)->shape == shape; i++)
            run_job(job_at(i), &worst);
        printf("     %-14s %-13s %3d points, %4d runs, worst rms %.1e, %.1f s\n", t->id,
               small[shape].name, i - first, runs - had, worst, (double)(clock_ns() - t0) * 1e-9);
        fflush(stdout);
        forget();
        if (cudaPeekAtLastError() != cudaSuccess) {
            printf("FAIL the device is lost: %s\n", cudaGetErrorString(cudaGetLastError()));
            checks_failed++;
            return;
        }
    }
}

static bool is_family(const char *file)
{
    for (int i = 0; i < template_count(); i++)
        if (template_at(i)->machine == MACHINE_CUDA && strcmp(template_at(i)->file, file) == 0)
            return true;
    return false;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--exact") == 0)
            exact = true;
        else if (more && strcmp(argv[i], "--points") == 0)
            points = atoi(argv[++i]);
        else if (more && strcmp(argv[i], "--seed") == 0)
            seed = (uint32_t)atoi(argv[++i]);
        else if (more && strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[++i]);
        else if (more && strcmp(argv[i], "--arch") == 0)
            arch = argv[++i];
        else if (argv[i][0] != '-' && is_family(argv[i]))
            family = argv[i];
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp d;
    char why[WHY_SIZE];
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: test_points [FAMILY] [--points N] [--quick] [--exact] [--seed S] "
                        "[--threads T] [--arch A]\n");
        return 2;
    }
    root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : root;
    if (cudaGetDeviceProperties(&d, 0) != cudaSuccess) {
        fprintf(stderr, "no device\n");
        return 1;
    }
    if (!quick)
        check(solo_late_open(root, arch, why), false, "late.cu: %s", why);
    for (int i = 0; i < SHAPES; i++)
        model[i] = model_random(&small[i].shape, DTYPE_BF16, (uint64_t)i + 20);
    plan(d.multiProcessorCount);
    pool = compile_pool_start(job, jobs, threads, root, arch);
    run_all();
    check(unfit * 5 <= jobs, true, "%d points, %d runs; %d points do not fit the device", jobs,
          runs, unfit);
    check(runs > 0 || jobs == 0, true, "something was run");
    printf("%d checks, %d failed\n", checks_made, checks_failed);
    fflush(stdout);
    _exit(checks_failed > 0); /* compilers may still be at work after a lost device */
}
