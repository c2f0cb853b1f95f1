/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h - which kernel runs which part of a step.
 *
 * A slot is one cell: region x M bucket (x context bucket for REGION_ATTN). Where the layers of a
 * region differ in the formats of their weights, each format class (formats.h) has slots of its
 * own, whose names end with its formats: "mlp_out/m1/q6_k". Each slot holds one kernel pointer. The
 * engine thread reads it once per step. The specializer writes it (dispatch_publish()),
 * and the engine thread does only to put eager back in place of a kernel that broke in the step
 * under way (dispatch_withdraw()). The eager kernel of a region is always loaded, so a slot is
 * never empty.
 *
 * Life of memory: a kernel that was replaced may still run in the step under way. dispatch_publish
 * returns an epoch; once dispatch_passed(d, epoch) no step can use the old kernel any more.
 */
#ifndef WHET_ENGINE_DISPATCH_H
#define WHET_ENGINE_DISPATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/formats.h"
#include "kernels/args.h"

enum { M_BUCKETS = 17, CONTEXT_BUCKETS = 10 };
extern const int m_bucket[M_BUCKETS];             /* 1, 2, 3, 4, 6, 8, 12, ... 2048 */
extern const int context_bucket[CONTEXT_BUCKETS]; /* 256, 512, ... 131072 */
/* Index of the smallest bucket that holds the value (the last one when none does). */
int m_bucket_of(int m);
int context_bucket_of(int context);

enum origin { ORIGIN_EAGER, ORIGIN_TEMPLATE, ORIGIN_AGENT, ORIGIN_RESTORED, ORIGINS };
const char *origin_name(enum origin o);

/* Anything that can fill a slot. Immutable while it is in one. */
struct kernel {
    char id[24];    /* "eager", or 16 hex digits of its evidence key */
    char name[160]; /* "mlp_in avx512 PACK=0 ROWS=4 ...": what an operator reads */
    enum region region;
    enum origin origin;
    int32_t m_max;                /* largest m it may be given */
    int32_t number;               /* what the ranks of a model call it; 0: it is eager, or alone */
    bool bit_equal;               /* eager's bits; nothing is said of the eager kernel itself */
    bool leaves16, reads16;       /* what it leaves and reads between regions is bf16, or may be */
    const struct cpu_kernel *cpu; /* the CPU backend's entry; NULL elsewhere */
    void *backend;                /* the backend's own: dlopen handle, packed weights, cubin ... */
};

/* Time spent in a slot since start; the engine thread adds, anyone reads. */
struct slot_counters {
    _Atomic uint64_t steps;     /* steps that used it */
    _Atomic uint64_t runs;      /* kernel runs (layers) */
    _Atomic uint64_t launches;  /* the same where a run is one launch; on a GPU it may be several */
    _Atomic uint64_t tokens;    /* sum of m over runs */
    _Atomic uint64_t context;   /* sum of the longest context over runs */
    _Atomic uint64_t sequences; /* sum of sequences over runs */
    _Atomic uint64_t ns;
};

struct slot {
    _Atomic(const struct kernel *) kernel;
    enum region region;
    int32_t m_index, context_index;     /* context_index -1 unless REGION_ATTN */
    int32_t m, context;                 /* the bucket values (context 0 unless REGION_ATTN) */
    char name[40];                      /* "mlp_in/m1", "attn/m1/c512", "mlp_out/m1/q6_k" */
    const struct format_class *formats; /* of its layers; NULL: it is for all of the region */
    const struct kernel *eager;
    const struct kernel *latched; /* dispatch_latch(); engine thread */
    struct slot_counters counters;
};

/* Kernels that one step runs in place of those in their slots: a canary's candidates. */
enum { OVERRIDES_MOST = 8 };
struct overrides {
    int n;
    struct {
        struct slot *slot;
        const struct kernel *kernel;
    } of[OVERRIDES_MOST];
};

struct dispatch;
struct backend;
struct backend_ops;

/* `eager[r]` is the eager kernel of region r. `formats` are the model's, which the table closes;
 * NULL: a model whose layers are alike. */
struct dispatch *dispatch_open(const struct kernel *const eager[REGION_COUNT],
                               struct formats *formats);
/* With slots for fused regions too: eager[r] of one stands for its parts, each with the
 * kernel of its own slot. */
struct dispatch *dispatch_open_fused(const struct kernel *const eager[REGION_LOCAL],
                                     struct formats *formats);
/* That of a process which alone computes `m` on `b`: with fused regions if the backend has them. */
struct dispatch *dispatch_open_alone(const struct backend_ops *ops, struct backend *b,
                                     const struct model *m);
/* Of a rank of several: no fused regions, but slots for reduce. */
struct dispatch *dispatch_open_ranks(const struct kernel *const eager[REGION_NODES],
                                     struct formats *formats);
/* The slots that engines have for models whose layers are alike, for their names: there are no
 * kernels in them. */
struct dispatch *dispatch_open_names(void);
/* The same of the slots of `d`, which may be closed before. */
struct dispatch *dispatch_copy_names(const struct dispatch *d);
void dispatch_close(struct dispatch *d);
/* From now on a step may be under way when the next begins (before any step). */
void dispatch_pipelined(struct dispatch *d);

int dispatch_slots(const struct dispatch *d);
struct slot *dispatch_slot_at(struct dispatch *d, int i);
/* The slot for m tokens and a longest context of `context` positions in a layer (0 for a region
 * that runs once). NULL: a fused region's or reduce's, of which there are none here or none for so
 * many tokens; or the layer's formats have no slots. Any thread. */
struct slot *dispatch_slot(struct dispatch *d, enum region r, int32_t layer, int m, int context);
/* The same by its place in a step (formats_place()). */
struct slot *dispatch_slot_of_place(struct dispatch *d, int place, int m, int context);
const struct formats *dispatch_formats(const struct dispatch *d); /* or NULL */
/* The fused regions that steps of m tokens run as one kernel, as bits, with these overrides. Any
 * thread. */
uint32_t dispatch_whole(struct dispatch *d, int m, const struct overrides *o);
struct slot *dispatch_find(struct dispatch *d, const char *name); /* NULL: no such slot */
/* The same, or the slot of that name without the formats at its end: in a table of names it says of
 * any model's slot what region and bucket it is. */
struct slot *dispatch_find_plain(struct dispatch *d, const char *name);

/* How often the slot's kernel runs in a step of a model with so many layers. */
static inline int32_t slot_runs(const struct slot *s, int32_t layers)
{
    return class_runs(s->formats, s->region, layers);
}

/* The first of its layers. */
static inline int32_t slot_layer(const struct slot *s)
{
    return class_layer(s->formats, 0);
}

/* Its place in steps (formats_place()), by the formats of its table. */
static inline int slot_place(const struct formats *f, const struct slot *s)
{
    return formats_place(f, s->region, slot_layer(s), s->m);
}

/* Whether the name is the slot's, with its formats or without them. */
bool slot_named(const struct slot *s, const char *name);
/* Whether what is learnt in one of the slots is about the other: they are of one region, and not of
 * two format classes. */
bool slot_kin(const struct slot *a, const struct slot *b);

/* Puts `k` into `s` from the next step on; returns the epoch after which the kernel that was there
 * may be unloaded. `k` may be the one that is there, for the epoch alone. The specializer's, one
 * thread at a time: its own, or an operator's. */
int64_t dispatch_publish(struct dispatch *d, struct slot *s, const struct kernel *k);

/* Engine thread: `k` broke in the step under way. Puts eager into `s` if `k` is there, at once;
 * what the publisher makes of it, it does later. */
void dispatch_withdraw(struct dispatch *d, struct slot *s, const struct kernel *k);

/* Where several ranks run each step, they must run it with the same kernels: from the first call
 * on, a step runs what was in the slots when this was called last, whatever is published while it
 * runs. `changed`, unless NULL, is told of each slot whose kernel is another one than the last time
 * (the first time: than eager), in the order of slots. Engine thread, between steps. */
typedef void dispatch_changed(void *ctx, int slot, const struct kernel *k);
void dispatch_latch(struct dispatch *d, dispatch_changed *changed, void *ctx);
/* What a step runs in the slot. Engine thread. Sequentially consistent, not merely acquiring: an
 * acquiring load may be done before dispatch_boundary() has said that the engine is not idle, as
 * ARM's LDAPR is, and then a publisher who sees it idle unloads the kernel that is read here. */
static inline const struct kernel *slot_kernel(const struct slot *s)
{
    return s->latched ? s->latched : atomic_load(&s->kernel);
}

/* The kernel of a step with these overrides. `o`: NULL if there are none. */
static inline const struct kernel *slot_kernel_with(const struct overrides *o, const struct slot *s)
{
    for (int i = 0; o && i < o->n; i++)
        if (o->of[i].slot == s)
            return o->of[i].kernel;
    return slot_kernel(s);
}

/* How often a publish or a withdrawal put another kernel into a slot. Any thread. */
uint64_t dispatch_swaps(const struct dispatch *d);
/* Whether every slot has had the same kernel since dispatch_swaps() gave this number: what was read
 * of them meanwhile is what they hold. Any thread. */
bool dispatch_unchanged(const struct dispatch *d, uint64_t swaps);

/* A kernel of live steps was wrong, or may have been, and no step that begins from now on runs it:
 * call it after dispatch_publish(), or once its canary has ended. Keys and values that steps up to
 * now wrote are not to be shared (scheduler_distrust()). dispatch_withdraw() does it itself. Any
 * thread. */
void dispatch_distrust(struct dispatch *d);
/* How often. An engine thread that asks before it reads the slots of a step finds every kernel gone
 * for which the count has moved. */
uint64_t dispatch_distrusts(const struct dispatch *d);

/* Engine thread: a step boundary; and whether the engine is about to wait for work. */
void dispatch_boundary(struct dispatch *d, bool idle);
/* True once no step can use what was replaced at `epoch`. Any thread. */
bool dispatch_passed(const struct dispatch *d, int64_t epoch);

/* The widest step, of at most `most` tokens, up to which all slots hold eager kernels or those with
 * their bits; 0: not even one of one token. It is about the next step, also where dispatch_latch()
 * has yet to note what that one runs. Any thread. */
int32_t dispatch_bit_equal(const struct dispatch *d, int32_t most);

/* Hash of the kernels now in all slots, 8 hex digits into out[9]: part of system_fingerprint. */
void dispatch_fingerprint(const struct dispatch *d, char out[9]);

#endif
