/* SPDX-License-Identifier: Apache-2.0 */
/* fake_engine.h - an engine and a backend that only pretend, so that the loop around them can be
 * watched: candidates have a speed and faults that follow from their knobs, traffic is a thread
 * that counts runs. fake_stages.h is the rest of it. Included by one test; defines what the linker
 * would take from the real parts.
 */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_FAKE_ENGINE_H
#define WHET_TESTS_UNIT_SPECIALIZER_FAKE_ENGINE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/clock.h"
#include "kernels/isa.h"
#include "specializer/specializer_private.h"

struct fake {
    struct model *model;
    struct dispatch *dispatch;
    struct kernel eager[REGION_COUNT];
    pthread_t traffic;
    atomic_bool stop, live;  /* live: steps are running */
    atomic_bool compiler;    /* there is one */
    atomic_bool other_bytes; /* it makes other objects than before */
    atomic_bool no_room;     /* for repacked weights: nothing can be loaded */
    atomic_int builds, probes, short_probes, benches, short_benches, canaries, sets, turns, loaded,
        bad_published, killer, whole_probes, whole_shadows; /* whole_shadows: of such candidates */
    atomic_bool header_wanted;                              /* there is no precompiled header */
    atomic_int headers;                                     /* so many were begun */
    atomic_int builds_die, probes_die, headers_die; /* so many of the next children are killed */
    atomic_int outrun; /* so many of the next clear gains lose whole steps */
    _Atomic(const char *) shy,
        needs; /* slot that loses them the first time, and until another is specialized */
    atomic_bool hold_bench;          /* benches last until they are stopped, or it is unset */
    char held[24], unheld[24];       /* the last that did, and the first one after that */
    atomic_bool hold_canary;         /* canaries last until they are stopped, or it is unset */
    char canary_key[24];             /* of the last canary that began */
    _Atomic(const char *) in_canary; /* slot of one that is held, or NULL */
    _Atomic(struct specializer *) meddler; /* rolls back what a canary is to beat, meanwhile */
    atomic_bool hold_probes;               /* probes of new candidates do not end */
    atomic_bool prober_held;               /* no probe ends */
    atomic_bool too_fast;                  /* short benches find what the machine cannot do */
    _Atomic(const char *) audit_fails;     /* id of a kernel that audits find wrong, or NULL */
    _Atomic(const char *) probe_fails;     /* id of one that short probes find wrong, or NULL */
    _Atomic(struct specializer *) hasty;   /* rolls such a one back before the audit is judged */
    _Atomic(const char *) broken;          /* of one whose executor broke, or NULL */
    _Atomic(const char *) slowed; /* of one that has become half as fast as eager, or NULL */
    void (*meanwhile)(
        void);         /* what others do while a stage lasts, or a step is waited for; or NULL */
    atomic_int layers; /* runs of a slot in a step beyond the first */
    struct kernel *grave[4096]; /* unloaded: kept, because the test looks at slots freely */
    int graves;
};
static struct fake fake;

/* Nothing is broken, or about to be. */
static inline void fake_mend(void)
{
    atomic_store(&fake.audit_fails, NULL);
    atomic_store(&fake.probe_fails, NULL);
    atomic_store(&fake.broken, NULL);
    atomic_store(&fake.hasty, NULL);
    atomic_store(&fake.meddler, NULL);
    atomic_store(&fake.slowed, NULL);
    atomic_store(&fake.shy, NULL);
    atomic_store(&fake.needs, NULL);
    atomic_store(&fake.layers, 0);
    atomic_store(&fake.killer, 0);
    atomic_store(&fake.outrun, 0);
    atomic_store(&fake.builds_die, 0);
    atomic_store(&fake.probes_die, 0);
    atomic_store(&fake.headers_die, 0);
    atomic_store(&fake.headers, 0);
    atomic_store(&fake.header_wanted, false);
    atomic_store(&fake.other_bytes, false);
    atomic_store(&fake.no_room, false);
    atomic_store(&fake.too_fast, false);
    atomic_store(&fake.compiler, true);
    atomic_store(&fake.live, true);
}

static pthread_mutex_t fake_capture_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hook *fake_capture; /* lock; one that waits for a step */
static const struct machine fake_machine = {
    .device = "fake", .read_bandwidth = 40e9, .peak_flops = 100e9, .boundary_s = 1e-6};

/* ---- what a candidate is like -------------------------------------------------------------- */

static int knob(const struct candidate *c, const char *name)
{
    int k = template_knob(c->template, name);
    return k < 0 ? 0 : c->point.value[k];
}

/* Eight bits of the hash of a text, which decide what it is like. */
static int fake_bits(const char *body, int nibble)
{
    const char digits[] = {body[nibble], body[nibble + 1], 0};
    return (int)strtol(digits, NULL, 16);
}

/* Speed over eager. */
static double fake_speed(const struct candidate *c)
{
    if (c->body[0])
        return 0.9 + fake_bits(c->body, 0) / 256.0;
    double speed = 0.8 + 0.1 * knob(c, "ISA");
    speed += knob(c, "ROWS") == 4 ? 0.3 : 0;
    speed += knob(c, "PREFETCH") == 8192 ? 0.2 : 0;
    return speed + (knob(c, "PACK") ? 0.15 : 0);
}

/* The stage at which it is found out, or STAGES: it is good. */
static enum stage fake_fault(const struct candidate *c)
{
    static const enum stage of_text[] = {STAGE_BUILD, STAGE_PROBE, STAGE_SHADOW, STAGE_CANARY};
    if (c->body[0]) {
        const int bits = fake_bits(c->body, 2) % 16;
        return bits < 4 ? of_text[bits] : STAGES;
    }
    if (knob(c, "PREFETCH") == 2048)
        return STAGE_BUILD;
    if (knob(c, "ROWS") == 8)
        return STAGE_PROBE;
    if (knob(c, "PREFETCH") == 1024)
        return STAGE_SHADOW;
    if (knob(c, "PREFETCH") == 512)
        return STAGE_CANARY;
    return STAGES;
}

static enum stage_result fake_verdict(struct candidate *c, enum stage stage)
{
    if (fake_fault(c) != stage)
        return STAGE_PASS;
    candidate_explain(c, stage, CAUSE_OTHER, 0, "planted fault");
    return STAGE_REFUSE;
}

/* ---- engine -------------------------------------------------------------------------------- */

enum engine_state engine_state(const struct engine *e, double *progress, char *message, size_t n)
{
    (void)e, (void)progress, (void)message, (void)n;
    return ENGINE_READY;
}
const struct model *engine_model(const struct engine *e)
{
    (void)e;
    return fake.model;
}
struct backend *engine_backend(const struct engine *e)
{
    (void)e;
    return (struct backend *)&fake;
}
int32_t engine_ranks(const struct engine *e)
{
    (void)e;
    return 1;
}

int64_t engine_rank_table(const struct engine *e, int32_t rank)
{
    (void)e;
    (void)rank;
    return 0;
}

/* The rank whose part has another shape in a region, as a test has it. */
static int32_t unequal_rank[REGION_COUNT];

int32_t engine_rank_unequal(const struct engine *e, enum region r)
{
    (void)e;
    return r < REGION_COUNT ? unequal_rank[r] : 0;
}

struct dispatch *engine_dispatch(const struct engine *e)
{
    (void)e;
    return fake.dispatch;
}
int32_t engine_load(const struct engine *e)
{
    (void)e;
    atomic_fetch_add(&fake.turns, 1); /* the search asks every time it goes round */
    return atomic_load(&fake.live);
}
int engine_slices(struct engine *e, slice_fn *run, void *ctx)
{
    (void)e;
    int r;
    while ((r = run(ctx, 2000000)) == 0)
        ;
    return r;
}
void engine_yield_windows(struct engine *e, double share)
{
    (void)e;
    (void)share;
}
void engine_opening(struct engine *e, bool opening)
{
    (void)e;
    (void)opening;
}
uint64_t engine_slice_ns(const struct engine *e)
{
    (void)e;
    return 12345;
}

/* A step came for it. */
static void fake_capture_now(void)
{
    pthread_mutex_lock(&fake_capture_lock);
    if (fake_capture)
        atomic_store(&fake_capture->left, 0);
    fake_capture = NULL;
    pthread_mutex_unlock(&fake_capture_lock);
}

/* Steps of 1 ms: mlp_out and head at m = 1, each with a time that its kernel decides. */
static inline void *fake_traffic(void *unused)
{
    (void)unused;
    while (!atomic_load(&fake.stop)) {
        usleep(1000);
        bool live = atomic_load(&fake.live);
        if (live)
            dispatch_boundary(fake.dispatch, false); /* as the engine does before a step */
        if (live)
            fake_capture_now();
        for (int i = 0; live && i < 2; i++) {
            struct slot *s =
                dispatch_slot(fake.dispatch, i ? REGION_HEAD : REGION_MLP_OUT, 0, 1, 1);
            const struct kernel *k = atomic_load(&s->kernel);
            const char *slowed = atomic_load(&fake.slowed);
            uint64_t ns = slowed && strcmp(k->id, slowed) == 0 ? 1000000
                          : k->origin == ORIGIN_EAGER          ? 500000
                                                               : 400000;
            uint64_t runs = 1 + (uint64_t)atomic_load(&fake.layers);
            s->counters.steps++;
            s->counters.runs += runs;
            s->counters.tokens += runs;
            s->counters.context += 10 * runs;
            s->counters.sequences += runs;
            s->counters.ns += ns * runs;
            if (k->origin != ORIGIN_EAGER && strstr(k->name, "PREFETCH=1024"))
                atomic_fetch_add(&fake.bad_published, 1);
        }
        dispatch_boundary(fake.dispatch, !live);
    }
    return NULL;
}

static inline int fake_begin_traffic(void)
{
    atomic_store(&fake.stop, false);
    return pthread_create(&fake.traffic, NULL, fake_traffic, NULL);
}

static inline void fake_end_traffic(void)
{
    atomic_store(&fake.stop, true);
    pthread_join(fake.traffic, NULL);
}

/* Without traffic. */
static void fake_make(void)
{
    static const struct model_shape shape = {.arch = ARCH_LLAMA,
                                             .layers = 1,
                                             .hidden = 64,
                                             .heads = 1,
                                             .kv_heads = 1,
                                             .head_dim = 64,
                                             .ffn = 128,
                                             .vocab = 64,
                                             .max_context = 64,
                                             .eps = 1e-5f,
                                             .rope_base = 10000};
    fake.model = model_random(&shape, DTYPE_Q4_1, 1);
    static const struct kernel *table[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++) {
        fake.eager[r] = (struct kernel){.id = "eager", .name = "eager", .region = (enum region)r};
        table[r] = &fake.eager[r];
    }
    fake.dispatch = dispatch_open(table, NULL);
    atomic_store(&fake.live, true);
    atomic_store(&fake.compiler, true);
}

static inline int fake_open(void)
{
    fake_make();
    return fake_begin_traffic();
}

static const struct kernel *serving(const char *slot)
{
    return atomic_load(&dispatch_find(fake.dispatch, slot)->kernel);
}

static bool specialized(const char *slot)
{
    return serving(slot)->origin != ORIGIN_EAGER;
}

/* ---- backend ------------------------------------------------------------------------------- */

static const struct machine *fake_machine_of(struct backend *b)
{
    (void)b;
    return &fake_machine;
}

static struct kernel *fake_load(struct backend *b, const struct kernel_object *o, struct err *e)
{
    (void)b;
    if (access(o->path, R_OK) != 0) {
        err_set(e, "%s is not there", o->path);
        return NULL;
    }
    if (atomic_load(&fake.no_room)) {
        err_set(e, "0 MiB of specializer.pack_mib are left");
        return NULL;
    }
    struct kernel *k = xcalloc(1, sizeof *k);
    snprintf(k->id, sizeof k->id, "%s", o->id);
    snprintf(k->name, sizeof k->name, "%s", o->name);
    k->region = o->region;
    k->origin = o->origin;
    atomic_fetch_add(&fake.loaded, 1);
    return k;
}

static void fake_unload(struct backend *b, struct kernel *k)
{
    (void)b;
    for (int i = 0; i < dispatch_slots(fake.dispatch); i++)
        if (atomic_load(&dispatch_slot_at(fake.dispatch, i)->kernel) == k)
            abort(); /* unloaded while it serves */
    fake.grave[fake.graves++ % 4096] = k;
    atomic_fetch_sub(&fake.loaded, 1);
}

static void fake_meanwhile(void)
{
    if (fake.meanwhile)
        fake.meanwhile();
}

static int fake_hook(struct backend *b, struct hook *t)
{
    (void)b;
    fake_meanwhile();
    pthread_mutex_lock(&fake_capture_lock);
    fake_capture = t && t->kind == HOOK_CAPTURE ? t : NULL;
    pthread_mutex_unlock(&fake_capture_lock);
    if (!t || !atomic_load(&fake.live))
        return 0;
    t->comparisons = 1;
    const char *wrong = atomic_load(&fake.audit_fails);
    if (t->kind == HOOK_COMPARE && wrong && strcmp(atomic_load(&t->slot->kernel)->id, wrong) == 0)
        t->different = 1;
    struct specializer *hasty = t->different ? atomic_exchange(&fake.hasty, NULL) : NULL;
    char *text = NULL;
    if (hasty)
        specializer_rollback(hasty, t->slot->name, NULL, "hasty", &text);
    free(text);
    atomic_store(&t->left, 0);
    return 0;
}

static const char *fake_broken(struct backend *b, const struct kernel *k)
{
    (void)b;
    const char *broken = atomic_load(&fake.broken);
    return broken && strcmp(k->id, broken) == 0 ? "it was killed" : NULL;
}

static const struct backend_ops fake_ops = {.name = "fake",
                                            .machine = fake_machine_of,
                                            .load = fake_load,
                                            .unload = fake_unload,
                                            .hook = fake_hook,
                                            .broken = fake_broken};

const struct backend_ops *engine_backend_ops(const struct engine *e)
{
    (void)e;
    return &fake_ops;
}

void capture_free(struct capture *c)
{
    (void)c;
}

#endif
