/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h - what a device must do for the engine and for the specializer.
 *
 * One vtable, two backends (cpu, cuda). The engine does not know which one it has. Threads: the
 * engine thread calls step() and, at step boundaries, bench(); the specializer thread calls load(),
 * unload(), hook(). Nothing here compiles, and nothing that step() does waits for the specializer.
 */
#ifndef WHET_ENGINE_BACKEND_H
#define WHET_ENGINE_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/collective.h"
#include "engine/dispatch.h"
#include "engine/model.h"
#include "engine/plan.h"
#include "engine/sampler.h"

struct backend;

/* A CPU's memory for repacked weights when nobody says how much. */
enum { PACK_MIB_USUAL = 1024 };

struct backend_options {
    int32_t threads;    /* 0: one per core */
    int32_t kv_pages;   /* pages of KV_PAGE tokens, all layers */
    int32_t max_tokens; /* largest m of a step */
    int32_t max_rows;   /* largest number of rows with logits */
    int64_t pack_bytes; /* memory for repacked weights; below 0: as the backend thinks best */
    bool probes;        /* leave memory on the device for a probe's own context */
    bool texts;         /* kernels that a language model wrote may be loaded (kernel_object.text) */
    const char *program; /* what runs those, as `program executor`; NULL: this program */
    int64_t keep_bytes;  /* of the device's memory, for another backend (backend_ops.fixed_bytes) */
    struct backend *beside; /* NULL, or an open one of the same ops for another model, that never
                               runs at the same time and is closed later: what the machine is and
                               threads are taken from it */
    bool huge_pages;        /* cpu: copy the weights into huge pages if a quarter of free memory
                               holds them, and have keys and values in such */
    bool pin_threads;       /* cpu: a thread for every core keeps to its core */
    struct collective *collective; /* NULL, or how the ranks of the model, of which `m` is a part,
                                      put their results together; outlives the backend */
};

/* In place of a token: what row `r` of the step started before this one draws. */
#define STEP_TOKEN_OF_ROW(r) (-1 - (r))
/* The device is gone, or another rank: no step will ever run again. */
enum { STEP_LOST = -2 };

/* How a step ran, for whoever asks why it took long, or what it was lost by. Written before
 * step_start() or step() returns, `fault` before the function does that says STEP_LOST. */
struct step_report {
    bool uncaptured; /* launched kernel by kernel although a graph would have done */
    bool hooked;     /* a hook observed it */
    bool swapped;    /* another kernel than in the last step of its kind, canaries aside */
    bool stood_in;   /* other kernels than those in the slots, until a graph with these is made */
    bool fault;      /* STEP_LOST: by what a kernel of the step did on the device */
};

/* The tokens scheduled together. Arrays belong to the caller and live until step() returns (or
 * step_wait(), but for what is said there). */
struct step {
    int32_t m;
    const int32_t *tokens;   /* [m] ids; with step_start() also STEP_TOKEN_OF_ROW */
    const int32_t *position; /* [m] */
    const int32_t *kv_at;    /* [m] page * KV_PAGE + offset */
    int32_t spans;
    const struct span *span;   /* [spans] */
    const int32_t *page_table; /* [pages] of all spans, one after the other (span.pages_at) */
    int32_t pages;
    int32_t context;                /* longest span context */
    int32_t rows;                   /* rows that need logits */
    const int32_t *row;             /* [rows] index into the step */
    struct sample_row *sample;      /* [rows]; results go to .out. NULL: nobody wants any */
    struct step_report *report;     /* or NULL */
    _Atomic int64_t *progress_ns;   /* clock_ns() whenever a part of it is done; or NULL */
    const struct step_trial *trial; /* the same on all ranks, or NULL */
};

/* A kernel of reduce that runs in a step beside the one that serves, on the same inputs: all ranks
 * have to, in the same run of it. */
struct step_trial {
    const struct kernel *kernel;
    int32_t run; /* in the order of the step, from 0 */
};

/* ---- what the specializer may ask of live traffic ---------------------------------------- */

/* Inputs of one region on one live step, copied: what probes and benches replay. Floats in the
 * order of kernels/args.h. KV is compacted to the pages the spans use. */
struct capture {
    enum region region;
    int32_t layer, m, spans, context;
    int32_t step_m; /* tokens of the step that the m rows are some of; 0: they are all of it */
    float *x, *in;  /* x [m, hidden]; in: q, a or h by region (NULL if none) */
    int32_t *position, *kv_at, *page_table;
    struct span *span;
    int32_t pages; /* pages in k_pages / v_pages; page_table refers to these */
    /* [pages, kv_heads, KV_PAGE, head_dim]: floats, or on a CPU what model_shape.kv_bf16 says. */
    void *k_pages, *v_pages;
};
void capture_free(struct capture *c);

/* A capture hook observes live steps that use `slot`, in one layer a step (rotating): it copies a
 * run's inputs, or is a sampled comparison of two kernels. The engine thread
 * fills it; the specializer polls `left` (acquire) and owns the memory again when it is 0 or the
 * hook was removed. */
enum hook_kind {
    HOOK_CAPTURE, /* copies the inputs of one run into `capture`, then left = 0 */
    HOOK_COMPARE, /* also runs `kernel` on the same inputs into scratch outputs and compares */
};
struct hook {
    enum hook_kind kind;
    struct slot *slot;
    const struct kernel *kernel; /* HOOK_COMPARE: candidate (shadow) or eager (audit) */
    const struct kernel *served; /* HOOK_COMPARE: compares its runs alone; NULL: all */
    int32_t every;               /* observe one matching step in this many */
    _Atomic int32_t left;        /* runs still to observe */
    struct capture *capture;     /* HOOK_CAPTURE: filled; free with capture_free and free */
    /* HOOK_COMPARE: what `kernel` gave against what the one that served gave, over all runs. */
    int32_t comparisons, different; /* different: those with any bit that differs */
    /* Comparisons in which one of the two had rows with NaN or infinities, and the other had not.
     */
    int32_t nonfinite, served_nonfinite;
    double worst_max, worst_rms;  /* worst row: max |a-b| / row scale, rms(a-b) / row rms */
    int64_t kernel_ns, served_ns; /* summed */
};

/* Whether a step of m tokens, which kernels take as `padded`, is one to try t's kernel of reduce
 * beside, on all ranks; t may be NULL. *matches counts steps that match, of which one in t->every
 * is taken. Engine thread, while the hook is held (dispatch.c). */
bool hook_tries_reduce(const struct hook *t, struct dispatch *d, int32_t m, int32_t padded,
                       int64_t *matches);

/* Times two kernels of a slot against each other, A-B-B-A on rotating layers, on captured inputs
 * with scratch outputs. Resumable: each call works for about budget_ns and returns 1 when `want`
 * pairs are in, 0 for more, -1 on error. */
struct bench_job {
    struct slot *slot;
    const struct kernel *a, *b; /* a: incumbent, b: candidate */
    const struct capture *inputs;
    int32_t want, have;
    float *a_ns, *b_ns; /* [want] one paired sample each */
    void *state;        /* backend's own; released by bench_end() */
    /* Runs are all of one layer, whose weights stay in a cache that holds them. A backend that
     * times all layers at once takes no notice. */
    bool one_layer;
    /* What the step's other kernels make of it: the region before leaves its output in bf16, too
     * (kernel.leaves16), and the one after reads this one's so (reads16). */
    bool before16, after16;
};

/* The whole model twice on the same tokens in memory of its own: eager alone, which also chooses
 * the tokens, then with one other kernel. Each step has one token of each of m sequences; or there
 * is one step with the m tokens of a prompt. The first call may lower m to what there is room for.
 */
struct model_check {
    struct slot *slot;
    const struct kernel *kernel;
    bool prompt;
    int32_t m, positions; /* prompt: 1 position */
    int32_t rows;         /* compared in a step at position p: those from p on, mod m; or the
                             prompt's last */
    int32_t *token;       /* [positions + 1][m]; the first are given */
    float *eager, *own;   /* [positions][rows][vocab] logits */
    int32_t done;         /* steps of both passes */
};

/* A compiled kernel on its way into the process. */
struct kernel_object {
    const char *path;  /* shared object (cpu); cubin or library record (cuda) */
    const char *entry; /* cuda: function name */
    enum region region;
    enum origin origin;
    const char *id, *name;
    bool text; /* a language model wrote it: on a CPU it never runs in this process */
    /* Of the layers that it runs in: no others' weights are repacked. NULL: all of its region. */
    const struct format_class *formats;
};

struct device_probe_ops;

struct backend_ops {
    const char *name; /* "cpu", "cuda" */
    /* What engine.prefill_chunk, engine.max_batch, engine.itl_target_ms and engine.ttft_target_ms
     * are when nobody says: prompt tokens in a step, sequences, and milliseconds (pace.h). */
    int32_t usual_chunk, usual_batch;
    double usual_itl_ms, usual_ttft_ms;
    /* Steps are shorter than a slice of the specializer: slices come so many steps apart
     * (specializer.gpu_slice_steps) instead of taking a share of the time. */
    bool short_steps;
    /* Steps of up to so many tokens give each token the bits that it would have alone, with eager
     * kernels and those that are bit-equal to them; 0: nothing is promised. */
    int32_t same_bits_tokens;
    /* open() copies the matrices, and nothing of this backend reads the model's own after it. */
    bool copies_weights;
    struct backend *(*open)(const struct model *m, const struct backend_options *o, struct err *e);
    void (*close)(struct backend *b);
    const struct machine *(*machine)(struct backend *b);
    const struct kernel *(*eager)(struct backend *b, enum region r);
    /* Optional: the eager kernel of a fused region. Without it steps run none. */
    const struct kernel *(*fused)(struct backend *b, enum region r);
    /* Optional, engine thread, once, before its first step: everything is open, and it starts no
     * thread and no process any more. */
    void (*settle)(struct backend *b);
    /* Once, after open: the table that steps read. */
    void (*set_dispatch)(struct backend *b, struct dispatch *d);

    /* Runs one step and fills sample[].out. The kernels of `o` (NULL: none) replace those of their
     * slots in this step (canary). 0, or -1 when it failed, or STEP_LOST. */
    int (*step)(struct backend *b, const struct step *s, const struct overrides *o, struct err *e);
    /* Optional, both or none: step() in two halves, so that the next step can be started before
     * this one's tokens are known. At most two are under way, waited for in order of their start.
     * sample[].params, .history and `o` are read by step_start; step_wait finds the history
     * complete.
     * step_start: 0; 1 if the next step must not name this one's rows; -1 or STEP_LOST: it is not
     * under way. step_wait: as step(). */
    int (*step_start)(struct backend *b, const struct step *s, const struct overrides *o,
                      struct err *e);
    int (*step_wait)(struct backend *b, const struct step *s, struct err *e);

    /* Loads a built kernel and prepares its repacked weights (may take long: specializer thread).
     * NULL with a message when it does not load, its interface is wrong or memory is short. */
    struct kernel *(*load)(struct backend *b, const struct kernel_object *o, struct err *e);
    void (*unload)(struct backend *b, struct kernel *k); /* only after its epoch has passed */
    /* Optional, specializer thread: NULL, or why a loaded kernel runs no more. Steps have been
     * running eager in its place since it broke, and its slot, if it was in one, holds eager. */
    const char *(*broken)(struct backend *b, const struct kernel *k);

    /* Optional, specializer thread: makes the object of a kernel that is not compiled but chosen
     * among what a library of the backend has (LIBRARY rows of templates_cuda.def), given the -D
     * list that a compiler would be given. -1: there is no such choice; *log in words what it is,
     * to be freed. */
    int (*choose)(struct backend *b, char *const *define, const char *path, char **log,
                  struct err *e);

    /* Optional, engine thread, of several ranks. trial(): whether a hook wants a kernel of reduce
     * to be compared in this step, which then must be run with *trial, and after it trial() be
     * called without a step; on the ranks that have no hook, the kernel runs and nothing is
     * compared. time_reduce(): the kernel so many times on m tokens, on all ranks at once; *ns is
     * this rank's time of all. -1: the world is over. */
    bool (*trial)(struct backend *b, const struct step *s, struct step_trial *trial);
    int (*time_reduce)(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                       int64_t *ns, struct err *e);

    int (*hook)(struct backend *b, struct hook *t); /* NULL removes; returns after it is safe */
    /* Optional, specializer thread: everything of a bench that is not timed, before its slices. */
    int (*bench_begin)(struct backend *b, struct bench_job *job, struct err *e);
    int (*bench)(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e);
    void (*bench_end)(struct backend *b, struct bench_job *job);

    /* Optional. Before open: bytes of a KV page in all layers, and bytes that the device has for
     * pages once `m` is on it (0: not known). Without it pages are in host memory, of elements that
     * model_shape.kv_bf16 says, which a device takes no notice of (kv_dtype.h). */
    int64_t (*kv_room)(const struct model *m, const struct backend_options *o, int64_t *page_bytes);
    /* Optional, before open: whether kernels of templates may multiply weights in F8 as they are.
     */
    bool (*e4m3)(void);
    /* Optional, before open: bytes on the device of a model that is opened so, but for pages. */
    int64_t (*fixed_bytes)(const struct model *m, const struct backend_options *o);
    /* Optional, engine thread: whether this step could run with these kernels without being late;
     * if not, it will be able to soon. */
    bool (*ready)(struct backend *b, const struct step *s, const struct overrides *o);
    /* Optional, engine thread: one step of the check, 1 when it is over. Without it the whole
     * model is checked in the probe's process. */
    int (*check_model)(struct backend *b, struct model_check *r, struct err *e);
    /* Optional. The device's half of the probe, in the probe's process: no backend is open there.
     */
    const struct device_probe_ops *probe;
    /* Optional. Engine thread, when there is no work: may take a while. */
    void (*idle)(struct backend *b);
    /* Optional: without it a model has one rank. */
    const struct ranks_ops *ranks;
};

extern const struct backend_ops backend_cpu;
/* Loads the cuda module if there is a driver; NULL with the reason in `err`. */
const struct backend_ops *backend_cuda_load(struct err *err);
/* Prompt tokens of a step where engine.prefill_chunk is `asked`. */
int32_t backend_chunk(const struct backend_ops *ops, int64_t asked);
/* Sequences decoded together where engine.max_batch is `asked`. */
int32_t backend_batch(const struct backend_ops *ops, int64_t asked);

#endif
