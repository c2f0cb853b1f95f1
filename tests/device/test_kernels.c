/* SPDX-License-Identifier: Apache-2.0 */
/* test_kernels.c - loaded kernels in live steps: load, swap, override, hook, bench, unload.
 *
 * naive_out.cu is compiled here by NVRTC, as a candidate would be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "tests/device/device_test.h"
#include "tests/kernels/cuda_build.h"

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};

/* Compiles tests/device/naive_out.cu into `path`. */
static bool build(struct rig *r, const char *path, int planted)
{
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    char source[4096], hidden[64], wrong[64], why[WHY_SIZE];
    const char *options[] = {hidden, wrong};
    size_t n;
    snprintf(source, sizeof source, "%s/tests/device/naive_out.cu", root);
    snprintf(hidden, sizeof hidden, "-DHIDDEN=%d", r->model->shape.hidden);
    snprintf(wrong, sizeof wrong, "-DPLANTED=%d", planted);
    char *cubin = cuda_build(root, source, rig_arch(r), options, 2, &n, why);
    check(cubin != NULL, false, "naive_out: %s", why);
    bool ok = cubin && file_write(path, cubin, n);
    free(cubin);
    return ok;
}

/* A decode step of m sequences at position 20 of pages of their own. */
struct small {
    struct step step;
    int32_t tokens[8], position[8], kv_at[8], row[8], table[16];
    struct span span[8];
    struct sample_row sample[8];
};

static void make_step(struct small *s, int32_t m)
{
    memset(s, 0, sizeof *s);
    s->step = (struct step){.m = m,
                            .tokens = s->tokens,
                            .position = s->position,
                            .kv_at = s->kv_at,
                            .spans = m,
                            .span = s->span,
                            .page_table = s->table,
                            .pages = 2 * m,
                            .context = 21,
                            .rows = m,
                            .row = s->row,
                            .sample = s->sample};
    for (int32_t i = 0; i < m; i++) {
        s->tokens[i] = 3 + i;
        s->position[i] = 20;
        s->table[2 * i] = 2 * i;
        s->table[2 * i + 1] = 2 * i + 1;
        s->kv_at[i] = (2 * i + 1) * KV_PAGE + 4;
        s->span[i] = (struct span){i, 1, 21, 2 * i};
        s->row[i] = i;
        s->sample[i] = (struct sample_row){.params = &greedy, .target = -1};
    }
}

static double step_logits(struct rig *r, struct small *s, struct slot *slot,
                          const struct kernel *override, float *out)
{
    struct err e = {""};
    int64_t t0 = clock_ns();
    const struct overrides o = {1, {{slot, override}}};
    int failed = r->ops->step(r->b, &s->step, override ? &o : NULL, &e);
    double us = (double)(clock_ns() - t0) * 1e-3;
    check(!failed, false, "step: %s", e.msg);
    cudaMemcpy(out, r->b->logits, (size_t)s->step.m * (size_t)r->model->shape.vocab * 4,
               cudaMemcpyDeviceToHost);
    return us;
}

/* The device's own time for a graph, back to back: what is left of a step is the host's. */
static void time_graph(struct rig *r)
{
    for (int i = 0; i < NARROW_BUCKETS * CONTEXT_BUCKETS * VARIANTS; i++) {
        const struct variant *v = &(&r->b->cell[0][0] + i / VARIANTS)->variant[i % VARIANTS];
        float ms = 0;
        if (!v->exec)
            continue;
        cudaEventRecord(r->b->spare.event[2], r->b->stream);
        for (int n = 0; n < 100; n++)
            cudaGraphLaunch(v->exec, r->b->stream);
        cudaEventRecord(r->b->spare.event[3], r->b->stream);
        cudaEventSynchronize(r->b->spare.event[3]);
        cudaEventElapsedTime(&ms, r->b->spare.event[2], r->b->spare.event[3]);
        check(ms > 0, true, "graph of m %d, context %d: %.1f us back to back", v->choice.m,
              v->choice.context, (double)ms * 10);
    }
}

static void swaps(struct rig *r, struct small *s, struct slot *slot, const struct kernel *good)
{
    int32_t n = s->step.m * r->model->shape.vocab;
    float *eager = xmalloc((size_t)n * 4), *other = xmalloc((size_t)n * 4);
    double slowest = 0, usual = 1e9;
    step_logits(r, s, NULL, NULL, eager);
    step_logits(r, s, slot, good, other);
    double d = logits_difference(other, eager, n);
    check(d > 0 && d < 0.02, true, "an override runs in this very step: differs by %.2e", d);
    dispatch_publish(r->d, slot, good);
    for (int i = 0; i < 300; i++) {
        if (i % 20 == 0)
            dispatch_publish(r->d, slot, i / 20 % 2 ? slot->eager : good);
        double us = step_logits(r, s, NULL, NULL, other);
        slowest = us > slowest && i > 5 ? us : slowest;
        usual = us < usual ? us : usual;
        d = logits_difference(other, eager, n);
        check(d < 0.02, false, "step %d while kernels are swapped: differs by %.2e", i, d);
    }
    check(true, true, "swapped every 20 steps: fastest step %.0f us, slowest %.0f us", usual,
          slowest);
    dispatch_publish(r->d, slot, slot->eager);
    time_graph(r);
    free(eager);
    free(other);
}

static void hooks(struct rig *r, struct small *s, struct slot *slot, const struct kernel *good,
                  const struct kernel *bad, struct capture *c)
{
    static float logits[8 * 4096];
    struct hook copy = {.kind = HOOK_CAPTURE, .slot = slot, .every = 1, .left = 1, .capture = c};
    check(r->ops->hook(r->b, &copy) == 0, false, "a hook is set");
    step_logits(r, s, NULL, NULL, logits);
    check(copy.left == 0 && c->m == s->step.m && c->x && c->in, false, "one step was captured");
    const struct kernel *each[] = {slot->eager, good, bad};
    for (int i = 0; i < 3; i++) {
        struct hook t = {
            .kind = HOOK_COMPARE, .slot = slot, .kernel = each[i], .every = 2, .left = 4};
        r->ops->hook(r->b, &t);
        for (int k = 0; k < 8; k++)
            step_logits(r, s, NULL, NULL, logits);
        r->ops->hook(r->b, NULL);
        check(t.comparisons == 4 && t.nonfinite == 0, false, "four comparisons with %s",
              each[i]->name);
        check(i == 0   ? t.different == 0
              : i == 1 ? t.worst_rms > 0 && t.worst_rms < 0.01
                       : t.worst_max > 0.05,
              true, "hook of %s: rms %.2e, max %.2e, %.1f us against %.1f us", each[i]->name,
              t.worst_rms, t.worst_max, (double)t.kernel_ns * 1e-3 / t.comparisons,
              (double)t.served_ns * 1e-3 / t.comparisons);
    }
}

/* Eager beside steps that a kernel without numbers serves, a layer looked at in each: only in the
 * first is it the kernel's fault. */
static void watches(struct rig *r, struct small *s, struct slot *slot, const struct kernel *none)
{
    static float logits[8 * 4096];
    int32_t layers = r->model->shape.layers;
    struct hook t = {.kind = HOOK_COMPARE,
                     .slot = slot,
                     .kernel = slot->eager,
                     .served = none,
                     .every = 1,
                     .left = layers};
    r->ops->hook(r->b, &t);
    step_logits(r, s, NULL, NULL, logits);
    check(t.comparisons == 0, false, "no comparison in steps that eager serves");
    dispatch_publish(r->d, slot, none);
    for (int32_t i = 0; i < layers; i++)
        step_logits(r, s, NULL, NULL, logits);
    dispatch_publish(r->d, slot, slot->eager);
    r->ops->hook(r->b, NULL);
    check(t.comparisons == layers && t.served_nonfinite == 1 && t.nonfinite == 0, true,
          "NaN that was served: seen in %d of %d comparisons, blamed on eager in %d",
          t.served_nonfinite, t.comparisons, t.nonfinite);
}

static void benches(struct rig *r, struct slot *slot, const struct kernel *good,
                    const struct capture *c)
{
    float a[20], b[20];
    struct err e = {""};
    int rc = 0, slices = 0;
    struct bench_job job = {slot, slot->eager, good, c, 20, 0, a, b, NULL};
    while (rc == 0 && slices++ < 1000)
        rc = r->ops->bench(r->b, &job, 300000, &e);
    r->ops->bench_end(r->b, &job);
    check(rc == 1 && job.have == 20 && a[19] > 0 && b[19] > 0, true,
          "bench in %d slices: eager %.2f us, naive %.2f us: %s", slices, (double)a[19] * 1e-3,
          (double)b[19] * 1e-3, e.msg);
}

void test_kernels(void)
{
    struct model *m = model_random(&device_shapes[0].shape, DTYPE_BF16, 3);
    struct rig r;
    struct err e = {""};
    struct capture c = {0};
    char good_path[] = "/tmp/whet-device-good.cubin", bad_path[] = "/tmp/whet-device-bad.cubin";
    char nan_path[] = "/tmp/whet-device-nan.cubin";
    if (rig_open(&r, &whet_backend_cuda, m, 64, 64, 8) && build(&r, good_path, 0) &&
        build(&r, bad_path, 1) && build(&r, nan_path, 2)) {
        struct small s;
        make_step(&s, 8);
        struct kernel_object o = {good_path,       "whet_kernel", REGION_MLP_OUT,
                                  ORIGIN_TEMPLATE, "0123",        "naive"};
        struct kernel *good = r.ops->load(r.b, &o, &e);
        check(good != NULL, false, "naive_out loads: %s", e.msg);
        o.path = bad_path;
        o.name = "planted";
        struct kernel *bad = r.ops->load(r.b, &o, &e);
        o.path = nan_path;
        struct kernel *none = r.ops->load(r.b, &o, &e);
        o.region = REGION_MLP_IN;
        check(!r.ops->load(r.b, &o, &e) && strstr(e.msg, "computes region"), false,
              "a kernel of another region is refused: %s", e.msg);
        struct slot *slot = dispatch_slot(r.d, REGION_MLP_OUT, 0, 8, 21);
        if (good && bad && none) {
            swaps(&r, &s, slot, good);
            hooks(&r, &s, slot, good, bad, &c);
            watches(&r, &s, slot, none);
            benches(&r, slot, good, &c);
        }
        r.ops->unload(r.b, good);
        r.ops->unload(r.b, bad);
        r.ops->unload(r.b, none);
        unlink(good_path);
        unlink(bad_path);
        unlink(nan_path);
    }
    capture_free(&c);
    rig_close(&r);
    model_close(m);
}
