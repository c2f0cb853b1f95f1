/* SPDX-License-Identifier: Apache-2.0 */
/* test_bad_probe.c - planted bad CUDA kernels, through the specializer's own probe.
 *
 *   test_bad_probe [NAME]     all of tests/device/bad, or one
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

enum { CONTEXT_INDEX = 1 };

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

static bool build(const struct bench *b, const struct row *r, const char *object)
{
    char path[4200], include[4200], hidden[32], why[WHY_SIZE];
    const char *option[] = {include, hidden, "-DM_MAX=8", "-DHEADS=8", "-DHEAD_DIM=64"};
    size_t size;
    snprintf(path, sizeof path, "%s/tests/device/bad/%s.cu", b->root, r->name);
    snprintf(include, sizeof include, "-I%s/tests/device/bad", b->root);
    snprintf(hidden, sizeof hidden, "-DHIDDEN=%d", shape.hidden);
    char *cubin = cuda_build(b->root, path, b->arch, option, 5, &size, why);
    FILE *f = cubin ? fopen(object, "wbe") : NULL;
    bool ok = f && fwrite(cubin, 1, size, f) == size;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        printf("%s: %s\n", r->name, cubin ? "cannot be written" : why);
    free(cubin);
    return ok;
}

static enum stage_result probe(struct bench *b, const struct row *r, char *reason, size_t size)
{
    bool attn = r->region == REGION_ATTN;
    struct slot slot = {.region = r->region,
                        .m_index = m_bucket_of(BUCKET),
                        .context_index = attn ? CONTEXT_INDEX : -1,
                        .m = BUCKET,
                        .context = attn ? context_bucket[CONTEXT_INDEX] : 0};
    struct candidate c = {.slot = &slot, .origin = ORIGIN_TEMPLATE};
    struct err err = {""};
    snprintf(c.name, sizeof c.name, "%s", r->name);
    c.object = xasprintf("%s/%s.cubin", b->dir, r->name);
    enum stage_result result = STAGE_RETRY;
    if (build(b, r, c.object)) {
        struct probe *p = probe_start(&b->env, &c, PROBE_FULL, NULL, 0, &err);
        snprintf(c.reason, sizeof c.reason, "%.200s", err.msg);
        while (p && (result = probe_poll(p)) == STAGE_RUNNING)
            usleep(500);
        probe_end(p);
        if (result == STAGE_PASS && c.evidence.probe_s > b->slowest_s)
            b->slowest_s = c.evidence.probe_s;
    }
    snprintf(reason, size, "%s", c.reason);
    unlink(c.object);
    free(c.object);
    free(c.log);
    return result;
}

static const char *const verdict[] = {"running", "passed", "refused", "retry", "stopped"};

static void examine(struct bench *b, const struct row *r)
{
    static const struct row good[2] = {{"good_out", REGION_MLP_OUT, NULL, NULL},
                                       {"good_attn", REGION_ATTN, NULL, NULL}};
    char reason[240];
    int64_t t0 = clock_ns();
    enum stage_result result = probe(b, r, reason, sizeof reason);
    bool right = r->probe ? result == STAGE_REFUSE && strstr(reason, r->probe) != NULL
                          : result == STAGE_PASS;
    check(right, true, "%-18s %-7s %4.1f s  %s", r->name, verdict[result],
          (double)(clock_ns() - t0) * 1e-9, reason);
    if (!r->probe)
        return;
    result = probe(b, &good[r->region == REGION_ATTN], reason, sizeof reason);
    check(result == STAGE_PASS, false, "a good kernel after %s: %s %s", r->name, verdict[result],
          reason);
}

static bool bench_open(struct bench *b)
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
    b->env = (struct stage_env){.config = &b->config,
                                .numerics = NUMERICS_TOLERANCE,
                                .model = model_random(&shape, DTYPE_BF16, 9),
                                .machine = &b->machine,
                                .program = b->program,
                                .stop = &b->stop,
                                .alone = true};
    if (!mkdtemp(b->dir) || !b->env.model)
        return false;
    b->env.prober = prober_open(&b->env);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b))
        return 1;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
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
