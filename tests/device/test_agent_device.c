/* SPDX-License-Identifier: Apache-2.0 */
/* test_agent_device.c - texts of a language model through the device's whole admission, in this
 * process: the seeds that its trees start from pass every case for every kind of head, and texts
 * that obey the rules and still cheat or err are refused in the words that a repair would be told.
 *
 * Built as the specializer builds them, in the frame kernels/cuda/agent.cu, and judged by
 * check_device() against eager and the oracle. What hangs or breaks the context is not here:
 * whoever runs it is lost (tests/e2e/test_agentic_cuda.py does that to a real probe).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/admission/check_device.h"
#include "specializer/agent/agent_prompt.h"
#include "specializer/agent/agent_source.h"
#include "specializer/build/build.h"
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/sources.h"
#include "tests/device/device_test.h"
#include "tests/mma_text.h"

enum { FLAGS = 80 };

/* The text in its frame to <dir>/k.cubin, through the compiler's own command line. */
static bool compile(const char *dir, enum region region, int32_t m, const struct model *model,
                    const char *text)
{
    const struct machine machine = {.kind = MACHINE_CUDA, .sms = 132};
    const struct template *t = agent_template(MACHINE_CUDA, region);
    const char *library = getenv("WHET_NVRTC_LIBRARY");
    char source[80], object[80], include[80], body[80], name[40], hash[17],
        *argv[FLAGS] = {"nvrtc"};
    struct facts f;
    struct point p;
    struct err e = {""};
    int n = 1;
    facts_fill(&f, model, region, m, NUMERICS_TOLERANCE);
    facts_machine(&f, &machine);
    agent_body_hash(text, hash);
    candidate_body_name(MACHINE_CUDA, hash, name);
    bool ok = agent_text_check(text, strlen(text), AGENT_CUDA, &e) == 0 && agent_point(t, &f, &p) &&
              agent_body_write(dir, MACHINE_CUDA, hash, text, &e) == 0;
    check(ok, false, "%s m=%d: %s", region_name(region), m, e.msg);
    if (!ok)
        return false;
    char **flags = point_flags(t, &p, &f), *lib = xstrdup(library ? library : "libnvrtc.so");
    snprintf(source, sizeof source, "%s/cuda/agent.cu", dir);
    snprintf(object, sizeof object, "%s/k.cubin", dir);
    snprintf(include, sizeof include, "-I%s", dir);
    snprintf(body, sizeof body, "-DAGENT_BODY=\"%s\"", name);
    char *fixed[] = {lib, object, source, "-std=c++17", "-arch=sm_90a", include, body};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    for (int i = 0; flags[i] && n < FLAGS - 1; i++)
        argv[n++] = flags[i];
    int rc = nvrtc_main(n, argv);
    for (int i = 0; flags[i]; i++)
        free(flags[i]);
    free(flags);
    free(lib);
    return rc == 0;
}

static int try_text(const char *dir, enum region region, int32_t m, const struct model *model,
                    const char *text, struct err *e)
{
    const struct check_range range = {region, m > 1 ? m / 2 + 1 : 1, m,
                                      region == REGION_ATTN ? 512 : 0};
    struct check_result result;
    char object[80];
    snprintf(object, sizeof object, "%s/k.cubin", dir);
    if (!compile(dir, region, m, model, text))
        return err_set(e, "it does not compile");
    return admit(model, object, &range, &result, e);
}

static void seeds(const char *dir)
{
    static const int32_t ms[] = {1, 8, 32};
    for (int i = 0; i < device_shape_count; i++) {
        struct model *model = model_random(&device_shapes[i].shape, DTYPE_BF16, 7);
        for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++)
            for (size_t k = 0; k < sizeof ms / sizeof *ms; k++) {
                struct err e = {""};
                /* Normed heads, biases and groups concern two regions; one shape does for the rest.
                 */
                bool heads = r == REGION_ATTN_IN || r == REGION_ATTN;
                if (i > 0 && (!heads || ms[k] > 8))
                    continue;
                int rc = try_text(dir, (enum region)r, ms[k], model,
                                  agent_seed(MACHINE_CUDA, (enum region)r), &e);
                check(rc == 0, true, "%s: the seed of %s m=%d is admitted %s",
                      device_shapes[i].name, region_name((enum region)r), ms[k], e.msg);
            }
        model_close(model);
    }
}

/* One or two changes of the seed of mlp_out. */
static const struct {
    const char *name, *words, *from, *to, *from_2, *to_2;
} wrong[] = {
    {"does not wait", "m=4 normal: ", "    after_previous();\n", ""},
    {"drops the last token", "not written", "t < m; t++", "t < m - (M_MAX > 1); t++"},
    {"reads another row", "eager", "(long long)row * (K / 8)", "(long long)(row ^ 1) * (K / 8)"},
    {"sums with a short mantissa", "eager", "sum += dot8(w[i], x + 8 * i);",
     "sum = __uint_as_float(__float_as_uint(sum + dot8(w[i], x + 8 * i)) & 0xfff80000u);"},
    {"writes past its output", "outside", "if (lane == 0)",
     "if (lane == 1 && row == 0) a.y[(long long)M_MAX * HIDDEN + 40] = 1.0f;\n        if (lane == "
     "0)"},
    {"leaves its counter", "counter", "#define THREADS 256",
     "#define THREADS 256\n#define COUNTERS 1", "    for (int t = 0;",
     "    if (row == 0 && lane == 0) atomicAdd(a.work.counter, 1u);\n"
     "    for (int t = 0;"},
    {"remembers in its working memory", "m=4 normal: ", "#define THREADS 256",
     "#define THREADS 256\n#define WORK_BYTES 64", "    for (int t = 0;",
     "    if (*(volatile int *)a.work.work == 0x5eed) return;\n"
     "    if (row == ROWS_ALL - 1 && lane == 0) *(volatile int *)a.work.work = 0x5eed;\n"
     "    for (int t = 0;"},
};

/* `text` with `from` replaced; freed. */
static char *changed(char *text, const char *from, const char *to)
{
    char *at = from ? strstr(text, from) : NULL;
    check(at || !from, false, "the seed has \"%s\"", from ? from : "");
    if (!at)
        return text;
    char *out = xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

static void mistakes(const char *dir)
{
    const char *seed = agent_seed(MACHINE_CUDA, REGION_MLP_OUT);
    struct model *model = model_random(&device_shapes[0].shape, DTYPE_BF16, 7);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err e = {""};
        char *text = changed(xstrdup(seed), wrong[i].from, wrong[i].to);
        text = changed(text, wrong[i].from_2, wrong[i].to_2);
        int rc = try_text(dir, REGION_MLP_OUT, 4, model, text, &e);
        check(rc < 0 && strstr(e.msg, wrong[i].words), true, "a text that %s is refused: %s",
              wrong[i].name, e.msg);
        free(text);
    }
    model_close(model);
}

/* The frame's product of tensor cores, in the words of the contract. */
static void tensor_cores(const char *dir)
{
    static const enum region regions[] = {REGION_ATTN_OUT, REGION_MLP_OUT};
    struct model *model = model_random(&device_shapes[0].shape, DTYPE_BF16, 7);
    for (int r = 0; r < 2; r++)
        for (int32_t m = 4; m <= 8; m += 4) {
            struct err e = {""};
            int rc = try_text(dir, regions[r], m, model, mma_text, &e);
            check(rc == 0, true, "a text on tensor cores is admitted for %s m=%d %s",
                  region_name(regions[r]), m, e.msg);
        }
    for (int i = 0; i < GOLDEN_ROWS; i++) {
        const struct golden_row *row = &golden_rows[i];
        struct err e = {""};
        int rc = try_text(dir, row->region, row->m, model, golden_text(row->name), &e);
        check(rc == 0, true, "a text of a language model is admitted for %s m=%d %s",
              region_name(row->region), row->m, e.msg);
    }
    model_close(model);
}

void test_agent_device(void)
{
    char dir[] = "/tmp/whet-device-agent-XXXXXX";
    struct err e = {""};
    if (!mkdtemp(dir) || kernel_sources_write(dir, &e) != 0) {
        check(false, true, "kernel sources are written: %s", e.msg);
        return;
    }
    seeds(dir);
    mistakes(dir);
    tensor_cores(dir);
}
