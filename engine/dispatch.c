/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - the table of slots.
 *
 * Every slot exists from the start and holds the eager kernel of its region, so looking one up
 * never fails and a step never waits. Publishing is one swap of a pointer. The engine thread counts
 * step boundaries; a kernel replaced during step e is out of use when boundary e + 1 was passed
 * (one more where a step begins while the one before it is under way), or when the engine waits for
 * work with no step under way. Both sides use sequentially consistent operations on the pair (slot,
 * idle), so either the publisher sees the engine idle, or the engine sees the new pointer.
 */
#include "engine/dispatch.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/table.h"
#include "engine/backend.h"
#include "engine/plan.h"

const int m_bucket[M_BUCKETS] = {1,  2,  3,  4,   6,   8,   12,   16,  24,
                                 32, 48, 64, 128, 256, 512, 1024, 2048};
const int context_bucket[CONTEXT_BUCKETS] = {256,  512,   1024,  2048,  4096,
                                             8192, 16384, 32768, 65536, 131072};

struct dispatch {
    _Atomic int64_t epoch; /* boundaries passed */
    _Atomic int idle;
    _Atomic uint64_t begun, swaps; /* of kernels in slots: about to happen, and done */
    _Atomic uint64_t distrusts;
    int behind; /* steps that may be under way at a boundary */
    int slots;
    struct formats *formats; /* NULL: the layers are alike */
    /* Index of the first slot of a region's bucket of tokens and format class; -1: it has none. */
    int first[REGION_NODES][M_BUCKETS][FORMAT_CLASSES];
    uint32_t regions;  /* those that have slots here, as bits */
    int32_t *told;     /* [slots] numbers of the kernels that were latched last */
    struct slot *slot; /* [slots] */
};

static int bucket_of(const int *bucket, int n, int value)
{
    int i = 0;
    while (i < n - 1 && bucket[i] < value)
        i++;
    return i;
}

int m_bucket_of(int m)
{
    return bucket_of(m_bucket, M_BUCKETS, m);
}

int context_bucket_of(int context)
{
    return bucket_of(context_bucket, CONTEXT_BUCKETS, context);
}

const char *origin_name(enum origin o)
{
    static const char *const name[] = {"eager", "template", "agent", "restored"};
    EVERY_ROW(name, ORIGINS);
    return name[o];
}

/* Of a region, fused or not, in each bucket of tokens. */
static int contexts_of(enum region r)
{
    return r == REGION_ATTN ? CONTEXT_BUCKETS : 1;
}

static void slot_init(struct slot *s, int m_index, int context_index,
                      const struct format_class *formats, const struct kernel *eager)
{
    s->m_index = m_index;
    s->context_index = s->region == REGION_ATTN ? context_index : -1;
    s->m = m_bucket[m_index];
    s->context = s->region == REGION_ATTN ? context_bucket[context_index] : 0;
    s->formats = formats;
    s->eager = eager;
    atomic_init(&s->kernel, eager);
    int n = snprintf(s->name, sizeof s->name, "%s/m%d", region_name(s->region), s->m);
    if (s->region == REGION_ATTN)
        snprintf(s->name + n, sizeof s->name - (size_t)n, "/c%d", s->context);
    else if (formats)
        snprintf(s->name + n, sizeof s->name - (size_t)n, "/%s", formats->name);
}

enum {
    ALONE = (1 << REGION_COUNT) - 1,
    FUSED = (1 << REGION_LOCAL) - 1 - ALONE,
    RANKS = 1 << REGION_REDUCE
};

static bool has(const struct dispatch *d, int r)
{
    return r < REGION_NODES && (d->regions >> r & 1);
}

/* Classes of the region that have slots in this bucket of tokens. */
static int classes_in(const struct dispatch *d, enum region r, int m_index)
{
    int m = m_bucket[m_index];
    if (!has(d, r) || (region_info(r)->parts && !region_fused(r, m)))
        return 0;
    return formats_classes(d->formats, r, m);
}

static void add_slots(struct dispatch *d, enum region r, int m_index, const struct kernel *eager)
{
    for (int c = 0; c < classes_in(d, r, m_index); c++) {
        d->first[r][m_index][c] = d->slots;
        for (int i = 0; i < contexts_of(r); i++) {
            struct slot *s = &d->slot[d->slots++];
            s->region = r;
            slot_init(s, m_index, i, formats_class(d->formats, r, m_bucket[m_index], c), eager);
        }
    }
}

static struct dispatch *open_regions(const struct kernel *const *eager, uint32_t regions,
                                     struct formats *formats)
{
    struct dispatch *d = xcalloc(1, sizeof *d);
    int total = 0;
    atomic_init(&d->idle, 1);
    d->regions = regions;
    d->formats = formats;
    for (int r = 0; r < REGION_NODES; r++)
        for (int m = 0; m < M_BUCKETS; m++)
            total += classes_in(d, (enum region)r, m) * contexts_of((enum region)r);
    d->slot = xcalloc((size_t)total, sizeof *d->slot);
    memset(d->first, -1, sizeof d->first);
    for (int r = 0; r < REGION_NODES; r++)
        for (int m = 0; m < M_BUCKETS && has(d, r); m++)
            add_slots(d, (enum region)r, m, eager[r]);
    return d;
}

struct dispatch *dispatch_open(const struct kernel *const eager[REGION_COUNT],
                               struct formats *formats)
{
    return open_regions(eager, ALONE, formats);
}

struct dispatch *dispatch_open_fused(const struct kernel *const eager[REGION_LOCAL],
                                     struct formats *formats)
{
    return open_regions(eager, ALONE | FUSED, formats);
}

struct dispatch *dispatch_open_alone(const struct backend_ops *ops, struct backend *b,
                                     const struct model *m)
{
    const struct kernel *eager[REGION_LOCAL];
    struct formats *formats = formats_open(m, ops->machine(b)->kind);
    bool fused = ops->fused && !m->alone; /* a rank's part by name has no such slots */
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = ops->eager(b, (enum region)r);
    for (int r = REGION_COUNT; fused && r < REGION_LOCAL; r++)
        eager[r] = ops->fused(b, (enum region)r);
    return fused ? dispatch_open_fused(eager, formats) : dispatch_open(eager, formats);
}

struct dispatch *dispatch_open_ranks(const struct kernel *const eager[REGION_NODES],
                                     struct formats *formats)
{
    return open_regions(eager, ALONE | RANKS, formats);
}

struct dispatch *dispatch_open_names(void)
{
    const struct kernel *const none[REGION_NODES] = {0};
    return open_regions(none, ALONE | FUSED | RANKS, NULL);
}

struct dispatch *dispatch_copy_names(const struct dispatch *d)
{
    struct dispatch *names = xcalloc(1, sizeof *names);
    memset(names->first, -1, sizeof names->first);
    names->slots = d->slots;
    names->slot = xcalloc((size_t)d->slots, sizeof *names->slot);
    for (int i = 0; i < d->slots; i++) {
        struct slot *to = &names->slot[i];
        const struct slot *s = &d->slot[i];
        to->region = s->region;
        to->m_index = s->m_index;
        to->context_index = s->context_index;
        to->m = s->m;
        to->context = s->context;
        memcpy(to->name, s->name, sizeof to->name);
    }
    return names;
}

void dispatch_close(struct dispatch *d)
{
    formats_close(d->formats);
    free(d->told);
    free(d->slot);
    free(d);
}

void dispatch_pipelined(struct dispatch *d)
{
    d->behind = 1;
}

int dispatch_slots(const struct dispatch *d)
{
    return d->slots;
}

struct slot *dispatch_slot_at(struct dispatch *d, int i)
{
    return &d->slot[i];
}

const struct formats *dispatch_formats(const struct dispatch *d)
{
    return d->formats;
}

struct slot *dispatch_slot_of_place(struct dispatch *d, int place, int m, int context)
{
    enum region r = place_region(place);
    int class = place / REGION_NODES;
    if (class == FORMAT_CLASSES || (region_info(r)->parts && !region_fused(r, m)))
        return NULL;
    int first = d->first[r][m_bucket_of(m)][class];
    if (first < 0)
        return NULL;
    return &d->slot[first + (r == REGION_ATTN ? context_bucket_of(context) : 0)];
}

struct slot *dispatch_slot(struct dispatch *d, enum region r, int32_t layer, int m, int context)
{
    if ((int)r >= REGION_NODES)
        return NULL;
    return dispatch_slot_of_place(d, formats_place(d->formats, r, layer, m), m, context);
}

uint32_t dispatch_whole(struct dispatch *d, int m, const struct overrides *o)
{
    uint32_t whole = 0;
    for (int r = REGION_COUNT; r < REGION_LOCAL; r++) {
        const struct slot *slot = dispatch_slot(d, (enum region)r, 0, m, 0);
        const struct kernel *k = slot ? slot_kernel_with(o, slot) : NULL;
        if (k && k != slot->eager && k->m_max >= m)
            whole |= 1u << r;
    }
    return whole;
}

struct slot *dispatch_find(struct dispatch *d, const char *name)
{
    for (int i = 0; i < d->slots; i++)
        if (strcmp(d->slot[i].name, name) == 0)
            return &d->slot[i];
    return NULL;
}

bool slot_named(const struct slot *s, const char *name)
{
    size_t n = strlen(name);
    return strcmp(name, s->name) == 0 || (s->formats && strncmp(name, s->name, n) == 0 &&
                                          strcmp(s->name + n + 1, s->formats->name) == 0);
}

bool slot_kin(const struct slot *a, const struct slot *b)
{
    return a->region == b->region &&
           (!a->formats || !b->formats || strcmp(a->formats->name, b->formats->name) == 0);
}

/* Formats follow the second slash. */
struct slot *dispatch_find_plain(struct dispatch *d, const char *name)
{
    struct slot *s = dispatch_find(d, name);
    const char *slash = strchr(name, '/');
    slash = slash ? strchr(slash + 1, '/') : NULL;
    char plain[sizeof s->name];
    enum dtype format[3];
    if (s || !slash || slash - name >= (ptrdiff_t)sizeof plain)
        return s;
    snprintf(plain, sizeof plain, "%.*s", (int)(slash - name), name);
    s = dispatch_find(d, plain);
    return s && formats_parse(s->region, slash + 1, format) > 0 ? s : NULL;
}

/* A swap counts twice, before the pointer changes and after it: who reads `swaps`, then slots, and
 * then finds `begun` to be no more than that has seen no slot change in between. */
int64_t dispatch_publish(struct dispatch *d, struct slot *s, const struct kernel *k)
{
    atomic_fetch_add(&d->begun, 1);
    if (atomic_exchange(&s->kernel, k) != k)
        atomic_fetch_add(&d->swaps, 1);
    else
        atomic_fetch_sub(&d->begun, 1);
    return atomic_load(&d->epoch);
}

void dispatch_withdraw(struct dispatch *d, struct slot *s, const struct kernel *k)
{
    const struct kernel *there = k;
    atomic_fetch_add(&d->begun, 1);
    if (atomic_compare_exchange_strong(&s->kernel, &there, s->eager))
        atomic_fetch_add(&d->swaps, 1);
    else
        atomic_fetch_sub(&d->begun, 1);
    if (s->latched == k)
        s->latched = s->eager;
    dispatch_distrust(d);
}

/* By their numbers: another kernel may lie where an unloaded one lay. */
void dispatch_latch(struct dispatch *d, dispatch_changed *changed, void *ctx)
{
    if (!d->told)
        d->told = xcalloc((size_t)d->slots, sizeof *d->told);
    for (int i = 0; i < d->slots; i++) {
        struct slot *s = &d->slot[i];
        s->latched = atomic_load(&s->kernel);
        if (s->latched->number == d->told[i])
            continue;
        d->told[i] = s->latched->number;
        if (changed)
            changed(ctx, i, s->latched);
    }
}

uint64_t dispatch_swaps(const struct dispatch *d)
{
    return atomic_load(&d->swaps);
}

bool dispatch_unchanged(const struct dispatch *d, uint64_t swaps)
{
    return atomic_load(&d->begun) == swaps;
}

void dispatch_distrust(struct dispatch *d)
{
    atomic_fetch_add(&d->distrusts, 1);
}

uint64_t dispatch_distrusts(const struct dispatch *d)
{
    return atomic_load(&d->distrusts);
}

void dispatch_boundary(struct dispatch *d, bool idle)
{
    atomic_fetch_add(&d->epoch, 1);
    atomic_store(&d->idle, idle);
}

bool dispatch_passed(const struct dispatch *d, int64_t epoch)
{
    return atomic_load(&d->epoch) > epoch + d->behind || atomic_load(&d->idle);
}

int32_t dispatch_bit_equal(const struct dispatch *d, int32_t most)
{
    int32_t least = m_bucket[M_BUCKETS - 1] + 1; /* tokens that may have other bits */
    for (int i = 0; i < d->slots; i++) {
        const struct slot *s = &d->slot[i];
        const struct kernel *k = atomic_load(&s->kernel);
        if (k != s->eager && !k->bit_equal && s->m < least)
            least = s->m;
    }
    int32_t widest = 0;
    for (int i = 0; i < M_BUCKETS && m_bucket[i] < least; i++)
        widest = m_bucket[i];
    return widest < most ? widest : most;
}

/* FNV-1a over "slot=kernel" of every slot that is not eager: the same set, the same hash. */
void dispatch_fingerprint(const struct dispatch *d, char out[9])
{
    uint32_t h = 2166136261u;
    for (int i = 0; i < d->slots; i++) {
        const struct slot *s = &d->slot[i];
        const struct kernel *k = atomic_load_explicit(&s->kernel, memory_order_acquire);
        if (k == s->eager)
            continue;
        const char *part[] = {s->name, "=", k->id, ";"};
        for (int p = 0; p < 4; p++)
            for (const char *c = part[p]; *c; c++)
                h = (h ^ (unsigned char)*c) * 16777619u;
    }
    snprintf(out, 9, "%08x", h);
}

bool hook_tries_reduce(const struct hook *t, struct dispatch *d, int32_t m, int32_t padded,
                       int64_t *matches)
{
    return t && t->kind == HOOK_COMPARE && t->slot->region == REGION_REDUCE &&
           t->slot == dispatch_slot(d, REGION_REDUCE, 0, m, 0) &&
           (!t->served || t->served == slot_kernel(t->slot)) && padded <= t->kernel->m_max &&
           atomic_load(&t->left) > 0 && (*matches)++ % (t->every > 0 ? t->every : 1) == 0;
}
