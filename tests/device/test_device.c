/* SPDX-License-Identifier: Apache-2.0 */
/* test_device.c - the checks that use the backend: `scripts/test-device` runs each part by itself.
 *
 *   test_device [--slow] [--brief] [--plain] [PART [SHAPE]]
 *   test_device logits MODEL TOKENS OUT
 *
 * SHAPE: only those whose name has it (regions, steps, probe, templates, graphs). logits: logits.c.
 *
 * Under compute-sanitizer: --slow gives a probed kernel 60 s instead of half a second, --brief
 * takes fewer contexts, batches, layers and slots (steps, sampler, probe, lt, graphs), --plain runs
 * products with a kernel of ours (products.c).
 */
#include "tests/device/device_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/probe_private.h"

const struct shape_row device_shapes[] = {
    {"llama d64 g4",
     {ARCH_LLAMA, 3, 512, 8, 2, 64, 1024, 1000, 8192, 1e-5f, 1e5f, 0, 1, {1, 32, 1, 4, 2048}}},
    {"llama gguf order", {ARCH_LLAMA, 2, 192, 3, 1, 64, 512, 520, 8192, 1e-5f, 1e4f, 1, 0, {0}}},
    {"qwen2 bias d64", {ARCH_QWEN2, 2, 448, 7, 1, 64, 1216, 1504, 8192, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3 d128 g2, yarn",
     {ARCH_QWEN3,
      3,
      256,
      8,
      4,
      128,
      768,
      2000,
      8192,
      1e-6f,
      1e6f,
      0,
      1,
      {ROPE_YARN, 4, 1, 32, 2048, 1.138629f, false}}},
    {"qwen3 d128 g16", {ARCH_QWEN3, 2, 512, 16, 1, 128, 640, 1000, 8192, 1e-6f, 1e6f, 0, 0, {0}}},
    {"llama d64 g1", {ARCH_LLAMA, 2, 256, 4, 4, 64, 512, 768, 8192, 1e-5f, 1e4f, 0, 1, {0}}},
};
const int device_shape_count = sizeof device_shapes / sizeof *device_shapes;

static bool open_rig(struct rig *r, const struct backend_ops *ops, struct model *m,
                     const struct backend_options *o)
{
    const struct kernel *eager[REGION_COUNT];
    struct err e = {""};
    *r = (struct rig){.ops = ops, .model = m};
    r->b = m ? ops->open(m, o, &e) : NULL;
    check(r->b != NULL, false, "%s opens: %s", ops->name, e.msg);
    if (!r->b)
        return false;
    for (int i = 0; i < REGION_COUNT; i++)
        eager[i] = ops->eager(r->b, (enum region)i);
    r->d = dispatch_open(eager, formats_open(m, ops->machine(r->b)->kind));
    ops->set_dispatch(r->b, r->d);
    return true;
}

bool rig_open_with(struct rig *r, struct model *m, int32_t pages, int32_t tokens, int32_t rows,
                   int64_t pack_bytes)
{
    struct backend_options o = {
        .kv_pages = pages, .max_tokens = tokens, .max_rows = rows, .pack_bytes = pack_bytes};
    return open_rig(r, &whet_backend_cuda, m, &o);
}

bool rig_open(struct rig *r, const struct backend_ops *ops, struct model *m, int32_t pages,
              int32_t tokens, int32_t rows)
{
    struct backend_options o = {
        .kv_pages = pages, .max_tokens = tokens, .max_rows = rows, .pack_bytes = 64 << 20};
    return open_rig(r, ops, m, &o);
}

void rig_close(struct rig *r)
{
    if (r->b)
        r->ops->close(r->b);
    if (r->d)
        dispatch_close(r->d);
}

const char *rig_arch(const struct rig *r)
{
    static char arch[16];
    snprintf(arch, sizeof arch, "sm_%d%d%s", r->b->device.major, r->b->device.minor,
             r->b->device.major == 9 ? "a" : "");
    return arch;
}

void step_begin(struct made_step *b)
{
    memset(b, 0, sizeof *b);
    b->step.tokens = b->tokens;
    b->step.position = b->position;
    b->step.kv_at = b->kv_at;
    b->step.row = b->row;
    b->step.page_table = b->table;
    b->step.span = b->span;
    b->step.sample = b->sample;
}

bool file_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data, 1, bytes, f) == bytes;
    return f ? fclose(f) == 0 && ok : false;
}

double logits_difference(const float *a, const float *b, int64_t n)
{
    double error = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        square += (double)b[i] * (double)b[i];
    }
    return sqrt(error / square);
}

const char *part_of = "";
bool brief;

/* Takes the flags that come first; what is left of argc and argv. */
static bool flags(int *argc, char ***argv)
{
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    bool ok = true;
    for (; *argc > 1 && strncmp((*argv)[1], "--", 2) == 0; --*argc, ++*argv)
        if (strcmp((*argv)[1], "--slow") == 0)
            probe_hang_s = 60;
        else if (strcmp((*argv)[1], "--brief") == 0)
            brief = true;
        else
            ok &= strcmp((*argv)[1], "--plain") == 0 && test_device_plain_products(root, "sm_90a");
    return ok;
}

int main(int argc, char **argv)
{
    if (!flags(&argc, &argv))
        return 2;
    if (argc == 5 && strcmp(argv[1], "logits") == 0)
        return logits_main(argv + 2);
    if (argc == 3 && strcmp(argv[1], "greedy") == 0)
        return greedy_main(argv[2]);
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"regions", test_regions},
                 {"steps", test_steps},
                 {"formats", test_formats},
                 {"ahead", test_ahead},
                 {"sampler", test_sampler},
                 {"kernels", test_kernels},
                 {"prefill", test_prefill},
                 {"templates", test_templates},
                 {"graphs", test_graphs},
                 {"probe", test_probe},
                 {"probe-formats", test_probe_formats},
                 {"agent", test_agent_device},
                 {"lt", test_lt}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name) != 0)
            continue;
        int64_t t0 = clock_ns();
        int before = checks_failed, had = checks_made;
        part_of = argc > 2 ? argv[2] : "";
        parts[i].run();
        printf("%s: %d checks, %d failed, %.1f s\n", parts[i].name, checks_made - had,
               checks_failed - before, (double)(clock_ns() - t0) * 1e-9);
    }
    printf("%d checks, %d failed\n", checks_made, checks_failed);
    return checks_failed || checks_made == 0;
}
