/* SPDX-License-Identifier: Apache-2.0 */
/* backend_load.c - kernels on their way in and out of the process, and their repacked weights.
 *
 * What a language model wrote does not come in: its executor (executor.h) loads it, and here is
 * only what the dispatch table needs to know of it.
 *
 * The object was inspected and probed elsewhere before it comes here; what is checked again is the
 * interface, because a wrong one would be called. A layout's packed weights exist once, however
 * many kernels read them, and count against specializer.pack_mib as long as one does.
 * Specializer thread only.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/exec_map.h"
#include "engine/cpu/backend_private.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/sizes.h"
#include "engine/memory.h"
#include "kernels/isa.h"

static const int64_t PACK_BYTES = (int64_t)PACK_MIB_USUAL << 20;

/* ---- repacked weights ----------------------------------------------------------------------- */

/* Bytes of a layer's copies. */
static int64_t layer_bytes(const struct backend *b, const struct cpu_kernel *k, int32_t layer,
                           int64_t bytes[3])
{
    union region_args args = {0};
    struct weight *w[3];
    int64_t total = 0;
    bind_layer(b->model, (enum region)k->region, layer, &args);
    int n = bind_weights(&args, (enum region)k->region, w);
    for (int i = 0; i < 3; i++) {
        bytes[i] = i < n ? weights_packed_bytes(k, &w[i], 1) : 0;
        total += bytes[i];
    }
    return total;
}

/* A kernel, and the layers that it is for (NULL: all that its region runs in). */
struct packing {
    const struct cpu_kernel *k;
    const struct format_class *formats;
    enum region region;
    int32_t layers;
};

static struct packing packing_of(const struct backend *b, const struct cpu_kernel *k,
                                 const struct format_class *formats)
{
    enum region r = (enum region)k->region;
    return (struct packing){k, formats, r, class_layers(formats, r, b->model->shape.layers)};
}

static int64_t pack_size(const struct backend *b, const struct packing *g)
{
    int64_t total = 0, bytes[3];
    for (int32_t i = 0; i < g->layers; i++)
        total += layer_bytes(b, g->k, class_layer(g->formats, i), bytes);
    return total;
}

/* Classes have no layer in common, so the first layer tells one from another. */
static struct pack *pack_find(const struct backend *b, const struct packing *g)
{
    for (struct pack *p = b->packs; p; p = p->next)
        if (p->region == g->region && p->layer == class_layer(g->formats, 0) &&
            p->layers == g->layers && strcmp(p->layout, g->k->layout) == 0)
            return p;
    return NULL;
}

/* Copies of one name must have one size, weight by weight: the name alone is a claim of the object,
 * and who reads a copy that is shorter than its own reads what lies behind it. */
static int pack_same(const struct backend *b, const struct packing *g, const struct pack *p,
                     struct err *e)
{
    for (int32_t n = 0; n < g->layers; n++) {
        int64_t bytes[3];
        int32_t l = class_layer(g->formats, n);
        layer_bytes(b, g->k, l, bytes);
        for (int i = 0; i < 3; i++)
            if (bytes[i] != p->size[3 * l + i])
                return err_set(e,
                               "its layout %s has %lld bytes for weight %d of layer %d, and %lld "
                               "in the copy that is there",
                               p->layout, (long long)bytes[i], i, l, (long long)p->size[3 * l + i]);
    }
    return 0;
}

static void pack_fill(const struct backend *b, const struct packing *g, struct pack *p)
{
    char *at = p->arena = memory_huge((size_t)p->bytes);
    for (int32_t i = 0; i < g->layers; i++) {
        int32_t l = class_layer(g->formats, i);
        union region_args args = {0};
        struct weight *w[3];
        layer_bytes(b, g->k, l, p->size + (size_t)l * 3);
        bind_layer(b->model, p->region, l, &args);
        int n = bind_weights(&args, p->region, w);
        at = weights_pack(g->k, w, n, at, p->data + (size_t)l * 3);
    }
}

static struct pack *pack_make(struct backend *b, const struct packing *g, struct err *e)
{
    int64_t most = b->options.pack_bytes < 0 ? PACK_BYTES : b->options.pack_bytes;
    int64_t bytes = pack_size(b, g), left = most - b->packed_bytes;
    if (bytes > left) {
        err_set(e,
                "layout %s needs %.1f MiB of repacked weights; %.1f MiB of "
                "specializer.pack_mib are left",
                g->k->layout, (double)bytes / 1048576, (double)left / 1048576);
        return NULL;
    }
    struct pack *p = xcalloc(1, sizeof *p);
    snprintf(p->layout, sizeof p->layout, "%s", g->k->layout);
    p->region = g->region;
    p->layer = class_layer(g->formats, 0);
    p->layers = g->layers;
    p->bytes = bytes;
    p->data = xcalloc((size_t)b->model->shape.layers * 3, sizeof *p->data);
    p->size = xcalloc((size_t)b->model->shape.layers * 3, sizeof *p->size);
    pack_fill(b, g, p);
    p->next = b->packs;
    b->packs = p;
    b->packed_bytes += bytes;
    return p;
}

static void pack_drop(struct backend *b, struct pack *p)
{
    if (!p || --p->users > 0)
        return;
    for (struct pack **at = &b->packs; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    free(p->arena);
    b->packed_bytes -= p->bytes;
    free(p->data);
    free(p->size);
    free(p);
}

/* The packed weights that `k` reads into *out (NULL if it has none). */
static int pack_open(struct backend *b, const struct cpu_kernel *k,
                     const struct format_class *formats, struct pack **out, struct err *e)
{
    struct packing g = packing_of(b, k, formats);
    *out = NULL;
    if (!k->layout && !k->pack && !k->packed_bytes)
        return 0;
    if (!k->layout || !k->pack || !k->packed_bytes)
        return err_set(e, "declares only a part of layout, pack and packed_bytes");
    if (strlen(k->layout) >= sizeof(*out)->layout)
        return err_set(e, "its layout name is longer than %zu bytes", sizeof(*out)->layout - 1);
    struct pack *p = pack_find(b, &g);
    if (p ? pack_same(b, &g, p, e) != 0 : !(p = pack_make(b, &g, e)))
        return -1;
    *out = p;
    (*out)->users++;
    return 0;
}

/* ---- objects -------------------------------------------------------------------------------- */

static int check_interface(const struct cpu_kernel *k, const struct kernel_object *o, struct err *e)
{
    if (!k)
        return err_set(e, "exports no symbol whet_kernel");
    if (k->abi != WHET_CPU_ABI)
        return err_set(e, "speaks interface %d, this program %d", k->abi, WHET_CPU_ABI);
    if (k->region != (int32_t)o->region)
        return err_set(e, "computes region %d, expected %s", k->region, region_name(o->region));
    if (!k->run || !k->scratch_bytes || k->m_max < 1)
        return err_set(e, "lacks run, scratch_bytes or a positive m_max");
    return 0;
}

/* Kernels of reduce put all rows into a place of the ranks' area. */
static int check_reduce(const struct backend *b, const struct cpu_kernel *k, struct err *e)
{
    int64_t floats = (int64_t)k->m_max * b->model->shape.hidden;
    if (k->region != REGION_REDUCE)
        return 0;
    if (!backend_area(b, REDUCE_STEPS))
        return err_set(e, "is for models of several ranks");
    return floats <= REDUCE_FLOATS ? 0
                                   : err_set(e, "takes %lld floats where ranks have places for %d",
                                             (long long)floats, REDUCE_FLOATS);
}

static struct kernel *describe(const struct kernel_object *o, struct loaded *l, int32_t m_max,
                               const struct cpu_kernel *cpu)
{
    struct kernel *k = xcalloc(1, sizeof *k);
    snprintf(k->id, sizeof k->id, "%s", o->id);
    snprintf(k->name, sizeof k->name, "%s", o->name);
    k->region = o->region;
    k->origin = o->origin;
    k->m_max = m_max;
    k->cpu = cpu;
    k->backend = l;
    return k;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static struct kernel *load_text(struct backend *b, const struct kernel_object *o, struct err *e)
{
    int64_t most = b->options.pack_bytes < 0 ? PACK_BYTES : b->options.pack_bytes;
    struct executor_options x = {
        .program = b->options.program,
        .object = o->path,
        .model_path = b->model->path,
        .model = b->model,
        .region = o->region,
        .formats = o->formats,
        .team = pool_size(b->pool),
        .max_tokens = b->options.max_tokens,
        .positions = b->positions,
        .pack_bytes = most > b->packed_bytes ? most - b->packed_bytes : 0,
        .settle = b->options.huge_pages,
        .pages = {{b->kv.fd, b->kv.at, b->kv.bytes}, {b->bench.fd, b->bench.at, b->bench.bytes}}};
    if (!b->options.texts || !b->model->path) {
        err_set(e, "%s: kernels that a language model wrote are not taken here", o->path);
        return NULL;
    }
    struct executor *executor = executor_open(&x, e);
    if (!executor) {
        err_prefix(e, "executor");
        return NULL;
    }
    struct loaded *l = xcalloc(1, sizeof *l);
    l->executor = executor;
    b->packed_bytes += executor_packed_bytes(executor);
    return describe(o, l, executor_m_max(executor), NULL);
}

const char *backend_broken(const struct kernel *k)
{
    const struct loaded *l = k->backend;
    return l && l->executor ? executor_broken(l->executor) : NULL;
}

const char *backend_check_broken(struct backend *b, const struct kernel *k)
{
    const struct loaded *l = k->backend;
    (void)b;
    return l && l->executor ? executor_check(l->executor) : NULL;
}

/* ---- in and out ----------------------------------------------------------------------------- */

struct kernel *backend_load(struct backend *b, const struct kernel_object *o, struct err *e)
{
    if (o->text)
        return load_text(b, o, e);
    if (o->origin == ORIGIN_AGENT) {
        err_set(e, "%s: was written by a language model and is not said to be", o->path);
        return NULL;
    }
    struct loaded *l = xcalloc(1, sizeof *l);
    isa_facts(); /* asks for AMX tiles, before a kernel may use them */
    l->handle = dlopen(o->path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        const char *why = dlerror(); /* begins with the path */
        if (exec_map_file(o->path, e) == 0)
            err_set(e, "%s", why ? why : o->path);
        free(l);
        return NULL;
    }
    const struct cpu_kernel *cpu = dlsym(l->handle, "whet_kernel");
    if (check_interface(cpu, o, e) || check_reduce(b, cpu, e) ||
        pack_open(b, cpu, o->formats, &l->pack, e)) {
        err_prefix(e, "%s", o->path);
        dlclose(l->handle);
        free(l);
        return NULL;
    }
    return describe(o, l, cpu->m_max, cpu);
}

void backend_unload(struct backend *b, struct kernel *k)
{
    if (!k)
        return;
    struct loaded *l = k->backend;
    if (l->executor)
        b->packed_bytes -= executor_packed_bytes(l->executor);
    executor_close(l->executor);
    pack_drop(b, l->pack);
    if (l->handle)
        dlclose(l->handle);
    free(l);
    free(k);
}
