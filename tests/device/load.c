/* SPDX-License-Identifier: Apache-2.0 */
/* load.c - for the parts that put templates into slots: known models, and templates compiled by
 * NVRTC as the specializer would, and loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "tests/device/compile_pool.h"
#include "tests/device/device_test.h"

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
                                 const struct compile_job *j)
{
    char path[64], name[600];
    struct err e = {""};
    snprintf(name, sizeof name, "%s %s", j->t->file, j->knobs);
    check(j->cubin != NULL, false, "%s: %s", name, j->why);
    snprintf(path, sizeof path, "/tmp/whet-device-%d.cubin", (int)getpid());
    if (!j->cubin || !file_write(path, j->cubin, j->size))
        return NULL;
    struct kernel_object o = {path, "whet_kernel", region, ORIGIN_TEMPLATE, "0001", name};
    const struct kernel *k = r->ops->load(r->b, &o, &e);
    check(k != NULL, false, "%s m=%d %s loads: %s", region_name(region), m, name, e.msg);
    unlink(path);
    return k;
}

static const char *root(void)
{
    return getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
}

static const struct kernel *build(struct rig *r, enum region region, int32_t m,
                                  struct compile_job *j)
{
    struct compile_job *const jobs[] = {j};
    struct compile_pool *pool = compile_pool_start(jobs, 1, 1, root(), rig_arch(r));
    compile_pool_await(pool, j);
    const struct kernel *k = load(r, region, m, j);
    compile_pool_end(pool);
    return k;
}

static struct compile_job start_job(const struct rig *r, enum region region, int32_t m)
{
    char id[40];
    snprintf(id, sizeof id, "%s_%s", m <= 4 ? "gemv" : "mma", region_name(region));
    struct compile_job j = {.t = template_find(region == REGION_ATTN ? "attn_decode" : id),
                            .f = facts_of(r, region, m)};
    j.p = cuda_start(j.t, &j.f);
    return j;
}

const struct kernel *load_start(struct rig *r, enum region region, int32_t m)
{
    struct compile_job j = start_job(r, region, m);
    return build(r, region, m, &j);
}

const struct kernel *load_any(struct rig *r, const char *id, int32_t m, uint32_t *seed)
{
    const struct template *t = template_find(id);
    struct compile_job j = {.t = t, .f = facts_of(r, t->region, m)};
    if (!cuda_point_random(t, &j.f, seed, &j.p))
        return NULL;
    return build(r, t->region, m, &j);
}

/* ---- many of them ---------------------------------------------------------------------------- */

struct starts {
    struct compile_pool *pool;
    int slots;
    struct compile_job **job; /* [slots]; NULL where nothing is to be compiled */
    struct compile_job **listed;
};

/* Of the first template with a source that names a legal start for the slot, as `whet bench
 * --starts` has it. */
static struct compile_job *job_of(const struct rig *r, const struct slot *slot)
{
    struct compile_job j = {.t = NULL};
    facts_slot(&j.f, r->model, slot, NUMERICS_TOLERANCE);
    facts_machine(&j.f, &r->b->machine);
    for (int i = 0; i < template_count() && !j.t; i++) {
        const struct template *t = template_at(i);
        if (!t->library && template_fits(t, r->b->machine.kind, slot->region, slot->m) &&
            template_start(t, &j.f, &j.p) && !template_illegal(t, &j.p, &j.f))
            j.t = t;
    }
    struct compile_job *made = j.t ? xmalloc(sizeof *made) : NULL;
    if (made)
        *made = j;
    return made;
}

/* Whether steps of m sequences run the slot's kernel. */
static bool runs(struct rig *r, const struct slot *slot, int32_t m, int32_t context)
{
    return dispatch_slot(r->d, slot->region, slot_layer(slot), m, context) == slot;
}

struct starts *starts_begin(struct rig *r, const int32_t *m, int sizes, int32_t context)
{
    struct starts *s = xcalloc(1, sizeof *s);
    int n = 0;
    s->slots = dispatch_slots(r->d);
    s->job = xcalloc((size_t)s->slots, sizeof(struct compile_job *));
    s->listed = xcalloc((size_t)s->slots, sizeof(struct compile_job *));
    for (int k = 0; k < sizes; k++)
        for (int i = 0; i < s->slots; i++) {
            const struct slot *slot = dispatch_slot_at(r->d, i);
            if (runs(r, slot, m[k], context) && (s->job[i] = job_of(r, slot)))
                s->listed[n++] = s->job[i];
        }
    s->pool = compile_pool_start(s->listed, n, 0, root(), rig_arch(r));
    return s;
}

const struct kernel *starts_load(struct starts *s, struct rig *r, int slot)
{
    const struct slot *of = dispatch_slot_at(r->d, slot);
    if (!s->job[slot])
        return NULL;
    compile_pool_await(s->pool, s->job[slot]);
    return load(r, of->region, of->m, s->job[slot]);
}

void starts_end(struct starts *s)
{
    compile_pool_end(s->pool);
    for (int i = 0; i < s->slots; i++)
        free(s->job[i]);
    free(s->job);
    free(s->listed);
    free(s);
}
