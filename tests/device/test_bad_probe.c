/* SPDX-License-Identifier: Apache-2.0 */
/* test_bad_probe.c - planted bad CUDA kernels, through the specializer's own probe.
 *
 *   test_bad_probe [NAME]     all of tests/device/bad, or one
 *   test_bad_probe --ranks    what two GPUs do together: bad/reduce.cuh, and points of the template
 *
 * Nothing here checks kernels: each is compiled as a candidate and given to probe_start(), which
 * writes a request, and the process that it goes to is `whet probe --serve`, with every check of a
 * live candidate. Asserted are the verdict and a word of its reason. After every kernel the good
 * one of the same region must pass, in that process or in the next: whatever a kernel left behind
 * must not judge another.
 */
#include <cuda_runtime.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/config.h"
#include "config/err.h"
#include "specializer/admission/probe.h"
#include "specializer/admission/prober.h"
#include "tests/device/bad_rows.h"
#include "tests/device/device_test.h"
#include "tests/kernels/cuda_build.h"
#include "tests/kernels/cuda_points.h"

enum { CONTEXT_INDEX = 1, RANKS_POINTS = 12 };

struct bench {
    struct stage_env env;
    struct config config;
    struct machine machine;
    atomic_bool stop;
    char root[3000], dir[64], arch[16], program[4200];
    double slowest_s;
};

/* The program beside this one, or in the build directory above it. */
static bool find_program(struct bench *b)
{
    char self[4000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    const char *dir = dirname(self);
    for (int i = 0; i < 2; i++) {
        snprintf(b->program, sizeof b->program, i ? "%s/../whet" : "%s/whet", dir);
        if (access(b->program, X_OK) == 0)
            return true;
    }
    return false;
}

static bool keep(char *cubin, size_t size, const char *name, const char *object, const char *why)
{
    FILE *f = cubin ? fopen(object, "wbe") : NULL;
    bool ok = f && fwrite(cubin, 1, size, f) == size;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        printf("%s: %s\n", name, cubin ? "cannot be written" : why);
    free(cubin);
    return ok;
}

static bool build(const struct bench *b, const struct row *r, const char *object)
{
    char path[4200], include[4200], hidden[32], planted[32], why[WHY_SIZE];
    const char *option[] = {include, hidden, planted, "-DM_MAX=8", "-DHEADS=8", "-DHEAD_DIM=64"};
    bool ranks = r->region == REGION_REDUCE;
    size_t size;
    snprintf(path, sizeof path, "%s/tests/device/bad/%s%s", b->root, ranks ? "reduce" : r->name,
             ranks ? ".cuh" : ".cu");
    snprintf(planted, sizeof planted, "-DPLANTED=%d", ranks ? (int)(r - ranks_row) : 0);
    snprintf(include, sizeof include, "-I%s/tests/device/bad", b->root);
    snprintf(hidden, sizeof hidden, "-DHIDDEN=%d", shape.hidden);
    char *cubin = cuda_build(b->root, path, b->arch, option, 6, &size, why);
    return keep(cubin, size, r->name, object, why);
}

/* A legal point of the template by chance, which moves on with *z; *name tells which. */
static bool build_point(const struct bench *b, int n, uint32_t *z, const char *object,
                        char name[80])
{
    const struct template *t = template_find("reduce_peer");
    char why[WHY_SIZE];
    size_t size = 0;
    struct facts f = cuda_facts(&shape, REGION_REDUCE, BUCKET, 132);
    struct point p = cuda_start(t, &f);
    if (n > 0 && !cuda_point_random(t, &f, z, &p))
        return false;
    cuda_point_text(t, &p, name, 80);
    char *cubin = cuda_point_build(b->root, b->arch, t, &f, &p, &size, why);
    return keep(cubin, size, name, object, why);
}

/* What admission says of the object, which is removed. */
static enum stage_result judge(struct bench *b, enum region region, const char *name,
                               const char *object, char *reason, size_t size)
{
    bool attn = region == REGION_ATTN;
    struct slot slot = {.region = region,
                        .m_index = m_bucket_of(BUCKET),
                        .context_index = attn ? CONTEXT_INDEX : -1,
                        .m = BUCKET,
                        .context = attn ? context_bucket[CONTEXT_INDEX] : 0};
    struct candidate c = {.slot = &slot, .origin = ORIGIN_TEMPLATE};
    struct err err = {""};
    enum stage_result result = STAGE_RETRY;
    snprintf(c.name, sizeof c.name, "%s", name);
    c.object = xstrdup(object);
    struct probe *p = probe_start(&b->env, &c, PROBE_FULL, NULL, 0, &err);
    snprintf(c.reason, sizeof c.reason, "%.200s", err.msg);
    while (p && (result = probe_poll(p)) == STAGE_RUNNING)
        usleep(500);
    probe_end(p);
    if (result == STAGE_PASS && c.evidence.probe_s > b->slowest_s)
        b->slowest_s = c.evidence.probe_s;
    snprintf(reason, size, "%s", c.reason);
    unlink(object);
    free(c.object);
    free(c.log);
    return result;
}

static enum stage_result probe(struct bench *b, const struct row *r, char *reason, size_t size)
{
    char object[200];
    snprintf(object, sizeof object, "%s/%s.cubin", b->dir, r->name);
    reason[0] = 0;
    return build(b, r, object) ? judge(b, r->region, r->name, object, reason, size) : STAGE_RETRY;
}

static const char *const verdict[] = {"running", "passed", "refused", "retry", "stopped"};

static void examine(struct bench *b, const struct row *r)
{
    static const struct row plain[2] = {{"good_out", REGION_MLP_OUT, NULL, NULL},
                                        {"good_attn", REGION_ATTN, NULL, NULL}};
    const struct row *good =
        r->region == REGION_REDUCE ? &ranks_row[0] : &plain[r->region == REGION_ATTN];
    char reason[240];
    int64_t t0 = clock_ns();
    enum stage_result result = probe(b, r, reason, sizeof reason);
    bool right = r->probe ? result == STAGE_REFUSE && strstr(reason, r->probe) != NULL
                          : result == STAGE_PASS;
    check(right, true, "%-18s %-7s %4.1f s  %s", r->name, verdict[result],
          (double)(clock_ns() - t0) * 1e-9, reason);
    if (!r->probe)
        return;
    result = probe(b, good, reason, sizeof reason);
    check(result == STAGE_PASS, false, "a good kernel after %s: %s %s", r->name, verdict[result],
          reason);
}

static void examine_ranks(struct bench *b)
{
    static const size_t rows = sizeof ranks_row / sizeof *ranks_row;
    uint32_t z = 5;
    for (size_t i = 0; i < rows; i++)
        examine(b, &ranks_row[i]);
    for (int i = 0; i < RANKS_POINTS; i++) {
        char object[200], name[80] = "", reason[240] = "it does not compile";
        enum stage_result result = STAGE_RETRY;
        snprintf(object, sizeof object, "%s/point-%d.cubin", b->dir, i);
        if (build_point(b, i, &z, object, name))
            result = judge(b, REGION_REDUCE, name, object, reason, sizeof reason);
        check(result == STAGE_PASS, true, "%-7s %s %s", verdict[result], name, reason);
    }
}

static bool bench_open(struct bench *b, bool ranks)
{
    char *none[] = {"test_bad_probe"};
    struct err err = {""};
    struct cudaDeviceProp d;
    const char *root = getenv("WHET_SOURCE_ROOT");
    if (config_parse(&b->config, 1, none, &err) != 0 || !find_program(b) ||
        cudaGetDeviceProperties(&d, 0) != cudaSuccess) {
        printf("no configuration, no whet beside this program, or no device: %s\n", err.msg);
        return false;
    }
    snprintf(b->root, sizeof b->root, "%s", root ? root : ".");
    snprintf(b->dir, sizeof b->dir, "/tmp/whet-bad-XXXXXX");
    snprintf(b->arch, sizeof b->arch, "sm_%d%d%s", d.major, d.minor, d.major == 9 ? "a" : "");
    b->machine.kind = MACHINE_CUDA;
    struct model *model = model_random(&shape, DTYPE_BF16, 9);
    b->env = (struct stage_env){.config = &b->config,
                                .numerics = NUMERICS_TOLERANCE,
                                .model = model,
                                .machine = &b->machine,
                                .program = b->program,
                                .stop = &b->stop,
                                .alone = true};
    if (!mkdtemp(b->dir) || !model)
        return false;
    if (ranks) {
        model->shard.world = 2;
        /* As engine/launch.c leaves it: this process's own GPU first. */
        const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
        setenv("WHET_RANK_GPUS", chosen && strchr(chosen, ',') ? chosen : "0,1", 0);
    }
    b->env.prober = prober_open(&b->env);
    return true;
}

/* On one GPU kernels of reduce have nobody to meet. */
static bool two_gpus(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n >= 2;
}

int main(int argc, char **argv)
{
    static struct bench b;
    bool ranks = argc > 1 && strcmp(argv[1], "--ranks") == 0;
    if (ranks && !two_gpus()) {
        puts("not shown: there are no two GPUs");
        return 1;
    }
    if (!bench_open(&b, ranks))
        return 1;
    if (ranks)
        examine_ranks(&b);
    for (size_t i = 0; i < sizeof row / sizeof *row && !ranks; i++)
        if (argc < 2 || strcmp(argv[1], row[i].name) == 0)
            examine(&b, &row[i]);
    struct prober_counts n = prober_counts(b.env.prober);
    prober_close(b.env.prober);
    rmdir(b.dir);
    printf("%d processes, %d slices, %d kept too long; a good kernel %.2f s\n", (int)n.starts,
           (int)n.slices, (int)n.late, b.slowest_s);
    printf("%d checks, %d failed\n", checks_made, checks_failed);
    return checks_failed > 0 || checks_made == 0;
}
