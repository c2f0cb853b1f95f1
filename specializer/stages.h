/* stages.h - the stages between a proposal and a published kernel: build, probe, bench, shadow,
 * canary. Each answers pass, refuse (reason in the candidate), retry or stopped, and fills the
 * candidate's evidence. Specializer thread only.
 *
 * Build and probe are child processes and asynchronous: start, then poll. Bench, shadow and canary
 * use the running engine and block, calling env->tick while they wait.
 */
#ifndef WHET_SPECIALIZER_STAGES_H
#define WHET_SPECIALIZER_STAGES_H

#include <stdatomic.h>

#include "config/config.h"
#include "engine/lab.h"
#include "specializer/candidate.h"

enum stage_result {
    STAGE_RUNNING, /* only from the poll functions */
    STAGE_PASS,
    STAGE_REFUSE,  /* the candidate is at fault; candidate->reason says how */
    STAGE_RETRY,   /* nothing was decided: no traffic, no memory, a child that could not start */
    STAGE_STOPPED, /* env->stop was set or the engine stops */
};

struct compiler {
    enum machine_kind machine; /* MACHINE_CUDA: `path` is libnvrtc */
    char path[512];
    char version[200]; /* first line of --version: part of every key */
    char arch[24];     /* MACHINE_CUDA: "-arch=sm_90a" */
};

/* What the stages work with; the specializer owns all of it. */
struct stage_env {
    const struct config *config;
    enum numerics numerics;
    struct engine *engine;
    const struct model *model;
    struct backend *backend;
    const struct backend_ops *ops;
    struct dispatch *dispatch;
    const struct machine *machine;
    const struct compiler *compiler;
    const char *program;    /* this executable: `program probe` is the probe */
    const char *kernel_dir; /* holds args.h and cpu/ */
    /* Where probes of CPU kernels keep what an input should give (kept.h); NULL: nowhere. */
    const char *reference_dir;
    struct prober *prober;  /* the process that probes a device's kernels, or NULL */
    double cache_bandwidth; /* bytes/s out of a cache that cores share; 0: not measured */
    bool alone;             /* nobody else wants the cores: children run at normal priority */
    atomic_bool *stop;      /* stop what you do and return STAGE_STOPPED */
    /* Called at least every 20 ms while a blocking stage waits, so that children are reaped. */
    void (*tick)(void *ctx);
    void *tick_ctx;
    /* Called when a stage begins to wait for live steps; NULL: they come by themselves. */
    void (*live)(void *ctx);
    void *live_ctx;
};

/* ---- build (build_cc.c, build_nvrtc.c) ------------------------------------------------------- */

/* For CPU kernels: specializer.compiler, or the first of cc, gcc, clang on PATH that compiles a
 * trivial shared object. -1 with a message when there is none. Looked for once, at start. For CUDA
 * kernels: nvrtc_find(). */
int compiler_find(const struct config *config, struct compiler *out, struct err *err);

/* Flags every CPU kernel is built with, NULL-terminated; part of the object key. */
extern const char *const build_flags[];

struct build;
/* Compiles c->source with c->define into c->object (written under another name, then renamed): low
 * priority, specializer.build_timeout. NULL with a message when no process could be started. */
struct build *build_start(const struct stage_env *env, struct candidate *c, struct err *err);
/* PASS: c->object is there, c->object_sum and evidence are set. REFUSE: c->log has the compiler's
 * words. */
enum stage_result build_poll(struct build *b);
/* Kills the compiler if it still runs; frees. */
void build_end(struct build *b);

/* Checksum of a file's contents, 16 hex digits. -1 if it cannot be read. */
int object_checksum(const char *path, char out[17]);

/* ---- probe (admission/) ---------------------------------------------------------------------- */

enum probe_depth {
    PROBE_FULL,  /* every check of docs/specializer.md on the region */
    PROBE_SHORT, /* a restored winner whose object is the very file that passed: seconds -> tens of
                    ms */
    PROBE_END, /* endcheck.h alone, the whole model's logits: shadow_run() does it for a finalist */
};

struct probe;
/* First execution, in a separate process with a watchdog; on a GPU one after the other. `captured`
 * are live inputs of the slot (may be 0 of them: seeded inputs only). */
struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err);
enum stage_result probe_poll(struct probe *p);
void probe_end(struct probe *p);

/* `whet nvrtc`: compiles one CUDA source. The process's exit status. */
int nvrtc_main(int argc, char **argv);

/* `whet probe`: reads the request, runs the candidate, reports. The process's exit status. */
int probe_main(int argc, char **argv);

/* ---- bench (bench.c) ------------------------------------------------------------------------ */

/* Seeded inputs of a slot at its full m, in the form of a capture: for benches before there was any
 * traffic. Free with capture_free and free. */
struct capture *capture_seeded(const struct model *model, const struct slot *slot, uint64_t seed);

/* The paired gain of c->kernel over `incumbent` in slices on the engine thread. `quick`: about a
 * tenth of the pairs; passes when the candidate is not slower than `incumbent` with confidence
 * (restored winners, against eager). Otherwise low >= specializer.min_gain. */
enum stage_result bench_run(const struct stage_env *env, struct candidate *c,
                            const struct kernel *incumbent, const struct capture *inputs,
                            bool quick);

/* The same measurement over a given number of pairs and without a verdict (tables of measured
 * points): PASS with evidence.bench at 95 %, own_s and incumbent_s. */
enum stage_result bench_sample(const struct stage_env *env, struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs,
                               int pairs);

/* ---- shadow and canary ---------------------------------------------------------------------- */

/* The candidate runs beside the kernel in c->slot on live steps; outputs are compared. RETRY when
 * not enough matching steps came: at least `timeout_s` are waited for them, and longer as long as
 * there are some (live.h). */
enum stage_result shadow_run(const struct stage_env *env, struct candidate *c, double timeout_s);

/* Whole live steps alternate between the candidate and the incumbent. RETRY as above. c->steps says
 * whether their time was all there was to say against it. */
enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s);

/* Judges a TAP_COMPARE of two kernels of which `evidence` is the candidate's: NULL, or what is
 * wrong in words (static or in `buf`). Used by shadow_run and by the watch over active kernels. */
const char *compare_verdict(const struct stage_env *env, const struct tap *tap,
                            const struct evidence *evidence, char *buf, size_t n);

#endif
