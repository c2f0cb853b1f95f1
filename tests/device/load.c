/* SPDX-License-Identifier: Apache-2.0 */
/* load.c - for the parts that put templates into slots: known models, and templates compiled by
 * NVRTC as the specializer would, and loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "tests/device/device_test.h"
#include "tests/kernels/cuda_points.h"

const struct shape_row real_shapes[REAL_SHAPES] = {
    {"llama-3.2-1b",
     {ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 8192, 1e-5f, 5e5f, 0, 1, {1, 32, 1, 4, 8192}}},
    {"qwen3-1.7b", {ARCH_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 8192, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3-4b", {ARCH_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 8192, 1e-6f, 1e6f, 0, 1, {0}}},
};

static struct facts facts_of(const struct rig *r, enum region region, int32_t m)
{
    return cuda_facts(&r->model->shape, region, m, r->b->device.multiProcessorCount);
}

static const struct kernel *load(struct rig *r, enum region region, int32_t m,
                                 const struct template *t, const struct point *p)
{
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    char path[64], name[160], why[WHY_SIZE];
    struct facts f = facts_of(r, region, m);
    struct err e = {""};
    size_t bytes;
    int n = snprintf(name, sizeof name, "%s ", t->file);
    cuda_point_text(t, p, name + n, sizeof name - (size_t)n);
    char *cubin = cuda_point_build(root, rig_arch(r), t, &f, p, &bytes, why);
    check(cubin != NULL, false, "%s: %s", name, why);
    snprintf(path, sizeof path, "/tmp/whet-device-%d.cubin", (int)getpid());
    bool there = cubin && file_write(path, cubin, bytes);
    free(cubin);
    if (!there)
        return NULL;
    struct kernel_object o = {path, "whet_kernel", region, ORIGIN_TEMPLATE, "0001", name};
    const struct kernel *k = r->ops->load(r->b, &o, &e);
    check(k != NULL, false, "%s m=%d %s loads: %s", region_name(region), m, name, e.msg);
    unlink(path);
    return k;
}

const struct kernel *load_start(struct rig *r, enum region region, int32_t m)
{
    char id[40];
    snprintf(id, sizeof id, "%s_%s", m <= 4 ? "gemv" : "mma", region_name(region));
    const struct template *t = template_find(region == REGION_ATTN ? "attn_decode" : id);
    struct facts f = facts_of(r, region, m);
    struct point p = cuda_start(t, &f);
    return load(r, region, m, t, &p);
}

const struct kernel *load_any(struct rig *r, const char *id, int32_t m, uint32_t *seed)
{
    const struct template *t = template_find(id);
    struct facts f = facts_of(r, t->region, m);
    struct point p;
    if (!cuda_point_random(t, &f, seed, &p))
        return NULL;
    return load(r, t->region, m, t, &p);
}
