/* SPDX-License-Identifier: Apache-2.0 */
/* backend_private.h - the CPU backend's own state, shared by backend*.c.
 *
 * Engine thread: everything but `loaded`. Specializer thread: load(), unload() (which own
 * `packs`) and hook() (through `hook` and `hook_held`).
 */
#ifndef WHET_ENGINE_CPU_BACKEND_PRIVATE_H
#define WHET_ENGINE_CPU_BACKEND_PRIVATE_H

#include "engine/backend.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/executor.h"
#include "engine/cpu/pool.h"

/* Repacked weights of one region in all layers of a format class, shared by the kernels of a
 * layout. */
struct pack {
    struct pack *next;
    char layout[96];
    enum region region;
    int32_t layer, layers; /* the first of them, and how many */
    int32_t users;
    int64_t bytes;
    char *arena;
    void **data;   /* [all layers * 3] into the arena, or NULL */
    int64_t *size; /* [all layers * 3] */
};

/* kernel.backend of a loaded kernel. */
struct loaded {
    void *handle;              /* dlopen; NULL: it does not run here */
    struct pack *pack;         /* NULL: uses the model's own format */
    struct executor *executor; /* of a text; NULL: it runs in this process */
};

enum { BENCH_COPIES_BYTES = 64 << 20 }; /* of keys and values that a bench may copy */

/* Memory for keys and values: of this process, or shared with executors that read it. */
struct page_memory {
    char *at;
    int64_t bytes;
    int fd; /* -1: not shared */
};

/* What a compared kernel gets instead of the step's outputs: nothing of a step points here. Grown
 * on use. For attn_in, cache positions of its own: token i at position i of its own pages. */
struct spare {
    float *output[3];
    int64_t bytes[3];
    int32_t *kv_at; /* [max_tokens]: 0, 1, 2, ... */
};

struct backend {
    const struct model *model;
    struct backend_options options;
    struct plan *plan;
    struct pool *pool;
    struct machine machine;
    struct dispatch *dispatch;
    struct kernel eager[REGION_NODES]; /* that of reduce is the collective's, and has no `cpu` */
    struct pack *packs;
    int64_t packed_bytes;

    float *rope_cos, *rope_sin;
    int32_t positions;     /* rows of the rope tables */
    struct page_memory kv; /* [layers][k, v][pages, kv_heads, KV_PAGE, head_dim] */
    /* Copies that benches of attention use, where texts may be loaded: executors see these. */
    struct page_memory bench;
    float *x[2];      /* [max_tokens, hidden]: the residual stream before and after a region */
    float *q, *a, *h; /* [max_tokens, heads*head_dim] twice, [max_tokens, ffn] */
    float *logits;    /* [max_rows, vocab] */
    void *sampling;   /* sampler scratch of every rank */
    /* Of a rank of several, else NULL: its rows of the logits, those of all ranks; what out regions
     * add there instead of a residual, and where they leave what reduce sums. */
    float *own_logits;      /* [max_rows, head rows] */
    float *gathered;        /* [world][max_rows, head rows] */
    float *zeros, *partial; /* [max_tokens, hidden] */

    _Atomic(struct hook *) hook;
    _Atomic bool hook_held; /* the engine thread may hold a hook */
    int64_t matches;        /* steps that matched the hook */
    int32_t hook_layer;     /* the hook's slot's next, counted among its layers; rotates */
    int32_t trial_run;      /* of reduce, the same */
    bool on_trial;          /* the hook is held for this step, and is of reduce */
    int32_t hook_at;        /* layer to observe in this step, or -1 */
    struct spare spare;
};

char *backend_pages(const struct backend *b, int32_t layer, int v);
/* Packed weights of `k` for a layer into the args (NULLs if it packs nothing). */
void backend_bind_packed(const struct kernel *k, enum region r, int32_t layer,
                         union region_args *args);
/* Runs `k` on args, which are bound to `layer`, with the whole pool; nanoseconds. -1: it is broken,
 * or of reduce, a rank is gone; the outputs may be anything. */
int64_t backend_run(struct backend *b, const struct kernel *k, int32_t layer,
                    const union region_args *args);
/* The parts of the fused region that `args` are of, each with the kernel of its own slot;
 * nanoseconds, or -1 as backend_run(). */
int64_t backend_run_parts(struct backend *b, enum region fused, int32_t layer,
                          const union region_args *args);
/* NULL, or why `k` runs no more. Any thread. */
const char *backend_broken(const struct kernel *k);
const char *backend_check_broken(struct backend *b, const struct kernel *k);

/* The ranks of the model, where it has several, make the logits of a step out of own_logits. -1:
 * another rank is gone. */
int backend_gather(struct backend *b, int32_t rows, struct err *e);

/* Reduce, with the kernel `k`: -1: the world is over. */
int backend_run_reduce(struct backend *b, const struct kernel *k, const struct reduce_args *a);
const struct reduce_area *backend_area(const struct backend *b, enum reduce_use use);
/* backend_ops.trial and .time_reduce; and a step's trial, after the run that it is beside. */
bool backend_trial(struct backend *b, const struct step *s, struct step_trial *trial);
void backend_trial_run(struct backend *b, const struct step_trial *trial, int32_t layer,
                       const union region_args *args, int64_t served_ns);
int backend_time_reduce(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                        int64_t *ns, struct err *e);

int backend_step(struct backend *b, const struct step *s, const struct overrides *o, struct err *e);

struct kernel *backend_load(struct backend *b, const struct kernel_object *o, struct err *e);
void backend_unload(struct backend *b, struct kernel *k);

int backend_hook(struct backend *b, struct hook *t);
/* Engine thread, after `slot` ran on `args` of `layer` in this step. */
void backend_observe(struct backend *b, struct slot *slot, const struct kernel *served,
                     int32_t layer, const struct step *s, const union region_args *args,
                     int64_t served_ns);
/* The hook's kernel on the same inputs, into spare outputs, which are compared with those of
 * `served`. */
void backend_compare(struct backend *b, struct hook *t, enum region r, int32_t layer,
                     const union region_args *served, int64_t served_ns);
/* An output of the spare memory, poisoned. */
float *backend_spare(struct backend *b, int64_t floats);
int backend_bench_begin(struct backend *b, struct bench_job *job, struct err *e);
int backend_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e);
void backend_bench_end(struct backend *b, struct bench_job *job);

#endif
