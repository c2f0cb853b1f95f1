/* SPDX-License-Identifier: Apache-2.0 */
/* engine_private.h - the inside of struct engine, for engine.c, engine_step.c, engine_setup.c,
 * engine_submit.c, engine_metrics.c, tuning.c and their tests. Each field says which thread owns
 * it.
 */
#ifndef WHET_ENGINE_ENGINE_PRIVATE_H
#define WHET_ENGINE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "config/metrics.h"
#include "engine/backlog.h"
#include "engine/batch.h"
#include "engine/drain.h"
#include "engine/history.h"
#include "engine/latency.h"
#include "engine/ranks.h"
#include "engine/slice_meter.h"
#include "engine/speculate.h"
#include "engine/tuning.h"

/* Both meters of an engine, as its options want them. */
void engine_open_meters(struct engine *e);
/* A step took so long; `decodes`: it had sequences that decode. */
void engine_meter_step(struct engine *e, int64_t ns, bool decodes);

/* Steps of the last seconds, for the dashboard. */
enum { RECENT_STEPS = 4096 };
struct recent_step {
    int64_t end_ns, ns;
    int32_t m, generated;
};

enum phase { PHASE_DECODE, PHASE_PREFILL, PHASE_MIXED, PHASE_COUNT };

/* The engine thread writes; anyone reads. */
struct engine_stats {
    struct histogram first_token, first_work, inter_token, queue, step[PHASE_COUNT], step_tokens;
    _Atomic uint64_t prompt_tokens, generated_tokens, cached_tokens, preemptions, yields,
        failed_steps, forgotten_pages;
    /* Decode steps of sequences that had guesses, these, and those that were right. */
    _Atomic uint64_t speculations, guessed_tokens, accepted_tokens;
    /* Of these the draft model's, and its steps. */
    _Atomic uint64_t draft_guessed, draft_accepted, draft_steps, draft_ns;
    _Atomic uint64_t ended[FINISH_ERROR + 1];
    _Atomic uint64_t launches[REGION_NODES][ORIGINS];
    _Atomic uint64_t steps, step_ns, slices, slice_ns;
    _Atomic int32_t running, waiting, pages_used;
    pthread_mutex_t recent_lock; /* held for a copy, never during a step */
    struct recent_step recent[RECENT_STEPS];
    struct latency_causes latency;
    uint64_t recents; /* written so far; the newest is at (recents - 1) % RECENT_STEPS */
    struct history history;
};

/* What engine_start takes from the configuration (which need not outlive the call). */
struct engine_options {
    char *model, *model_name, *backend, *speculate;
    int32_t threads, max_context, kv_pages, kv_mib, max_queue;
    int64_t pack_bytes;
    bool probes; /* a specializer may run probes */
    char *device_weights;
    char *kv_dtype;
    bool huge_pages, pin_threads, numa, texts;
    bool bit_equal; /* kernels produce eager's bits */
    bool e4m3;      /* they may have activations in e4m3 */
    uint64_t seed;
    struct scheduler_limits limits;
    int32_t draft_tokens;             /* 0: as many as pay */
    int32_t prefill_chunk, max_batch; /* 0: as the backend is used to; limits has what came of it */
    int64_t gpu_slice_steps, cpu_slice_steps;
    double share, slice_ms, gpu_slice_ms, cpu_slice_ms;
    double itl_ms, ttft_ms;          /* targets (pace.h); below 0: likewise */
    double rank_join_s, rank_step_s; /* ranks.h: timeouts */
};

struct engine {
    struct engine_options options; /* constant */
    pthread_t thread;
    _Atomic int state; /* enum engine_state; what follows up to `info` is constant once READY */

    const struct backend_ops *ops;
    struct backend *backend;
    struct model *model;
    struct dispatch *dispatch;
    struct plan *plan;
    int64_t page_bytes;            /* of one KV page in all layers */
    struct pace pace;              /* engine thread */
    struct kvcache *kv;            /* engine thread */
    struct scheduler *scheduler;   /* engine thread */
    struct speculator *speculator; /* engine thread */
    bool bits_known;               /* engine thread: speculate_equal() was told */
    struct draft *draft;           /* engine thread; NULL: none */
    struct model *draft_model;     /* while it is opened; then the draft's */
    int32_t draft_failures;        /* engine thread: in a row */
    struct batch *batch[2];        /* engine thread */
    struct batch *flying;          /* engine thread: the step under way, or NULL */
    uint64_t starts;               /* engine thread: steps started */
    int64_t landed_ns;             /* engine thread: when the last one ended */
    bool landed_decode;            /* engine thread: it was a decode step, and nothing came since */
    char lost[200];                /* engine thread: why the device is gone */
    bool lent;                     /* engine thread: a slice ran since the last step was started */
    int64_t lent_ns;               /* engine thread: those that requests waited for */
    uint64_t swaps;                /* engine thread: of kernels in slots, seen so far */
    bool swapped;                  /* engine thread: one since the last step was started */
    uint64_t distrusts;            /* engine thread: likewise of dispatch_distrust() */
    struct sequence_model for_sequences;
    uint64_t seed;
    struct engine_info info;
    struct ranks *ranks;               /* the others that compute the model too, or NULL */
    struct backend_ops own_ops;        /* `ops` of such an engine, */
    const struct backend_ops *one_ops; /* and those of a rank that is alone */
    struct wire_change *changes;       /* engine thread: room for those of a step, one a slot */
    _Atomic bool rank_lost; /* one of them is gone; the engine thread has not yet seen it */

    pthread_mutex_t state_lock; /* progress, message, on_lost */
    double progress;
    char message[512];
    engine_lost_fn *on_lost;
    void *on_lost_ctx;

    /* Inbox: what other threads want. `lock` is never held during a step, a slice or an event. */
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* the engine thread waits here for work */
    pthread_cond_t reply; /* callers of tuning.h wait here for the engine thread */
    struct sequence *incoming, *incoming_last;
    uint64_t *cancel; /* ids */
    int32_t cancels, cancels_size;
    struct backlog backlog;
    struct drain drain;
    struct backlog_group **displace; /* answers that are to end, if they have not begun */
    int32_t displaces, displaces_size;
    uint64_t next_id;
    bool stopping, gone;    /* asked to stop; the thread lends nothing any more */
    int32_t tuning_callers; /* inside engine_slices or engine_canary */
    slice_fn *slice;
    void *slice_ctx;
    int slice_result;
    struct canary *canary_wanted;
    bool canary_changed;
    _Atomic bool inbox;           /* something of the above waits: read without the lock */
    _Atomic bool slice_here;      /* `slice` is set */
    _Atomic double yield_windows; /* engine_yield_windows() */
    _Atomic bool opening;         /* engine_opening() */
    int64_t usual_step_ns;        /* of the last steps; 0: there were none. Engine thread */

    struct canary *canary;             /* engine thread */
    struct slice_meter meter, windows; /* of slices, of yield windows; engine thread */
    struct slice_gaps gaps;            /* engine thread */
    _Atomic int32_t active;
    _Atomic int64_t progress_ns; /* last time the engine thread got somewhere, in a step too */
    atomic_bool at_work;         /* it is not waiting to be told what to do, */
    atomic_bool quitting;        /* or it was told to end */
    bool joined;                 /* and has; whoever stops it */
    struct engine_stats stats;
};

/* engine.c: starts an engine on given parts instead of those the options name; `ops` and `model`
 * may be NULL (then chosen and opened as usual). The engine owns the model from here on. */
struct engine_parts {
    const struct backend_ops *ops;
    struct model *model;
    /* A draft model beside it; draft_ops NULL: as the served model's. */
    const struct backend_ops *draft_ops;
    struct model *draft_model;
    struct rank_place place; /* world above 1: rank 0 of so many */
};
struct engine *engine_start_parts(const struct config *c, const struct engine_parts *parts,
                                  struct err *err);

/* engine_setup.c: opens model and backend and sizes everything; engine thread, before READY. */
int engine_setup(struct engine *e, const struct engine_parts *parts, struct err *err);
void engine_teardown(struct engine *e);
void engine_say(struct engine *e, double progress, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void engine_take_options(struct engine_options *o, const struct config *c);
void engine_free_options(struct engine_options *o);
/* engine_setup.c: what engine.backend means here; NULL with a message. */
const struct backend_ops *engine_choose_backend(const char *wish, struct err *err);

/* engine_ranks.c, in the order of a start: the others are met; this rank's part of the model; a
 * backend's functions as several ranks can use them; what all open their backends with, and the
 * collective of this one's. Then each step, which the others run as well. */
int engine_ranks_open(struct engine *e, const struct rank_place *place, struct err *err);
struct model *engine_ranks_model(struct engine *e, model_progress_fn *progress, struct err *err);
void engine_ranks_ops(struct engine *e, struct backend_options *o);
int engine_ranks_agree(struct engine *e, struct backend_options *o, struct err *err);
/* Tells them of a step that this rank starts next; engine_ranks_step() does both, and waits. */
int engine_ranks_send(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err);
int engine_ranks_step(struct engine *e, const struct step *s, const struct overrides *o,
                      struct err *err);
/* The same on all ranks: options of their meeting; threads where so many were asked for; whether
 * anybody looks for kernels (else no memory is kept for them); the slots; what a rank has; its part
 * of the model. */
struct ranks_options engine_ranks_options(const struct engine_options *o,
                                          const struct rank_place *place);
int32_t engine_ranks_threads(const struct ranks *r, int32_t asked);
bool engine_ranks_searched(const struct backend_ops *ops);
struct dispatch *engine_ranks_table(const struct backend_ops *ops, struct backend *b,
                                    const struct model *m);
struct wire_part engine_ranks_part(const struct model *m, const struct backend_ops *ops,
                                   const struct backend_options *o);
struct model *engine_ranks_open_part(const char *path, const struct ranks *r, bool with_tokenizer,
                                     model_progress_fn *progress, void *ctx, struct err *err);
/* Once the backend is open: drops the model's matrices if that has its own. */
void engine_ranks_drop(struct model *m, const struct backend_ops *ops);

/* engine_draft.c: opening the draft model that the options name, if any, before the backend, and
 * its own backend after it and the speculator; how that one is to be opened. */
int engine_draft_model(struct engine *e, const struct engine_parts *parts, struct err *err);
struct backend_options engine_draft_options(const struct engine *e,
                                            const struct backend_options *served);
int engine_draft_open(struct engine *e, const struct engine_parts *parts,
                      const struct backend_options *served, struct err *err);
void engine_draft_close(struct engine *e);
/* Does what speculate_plan() left for the draft model. */
void engine_draft_run(struct engine *e);
/* `item` has landed, and how many guesses were right is known. */
void engine_draft_checked(struct engine *e, const struct schedule_item *item);
/* The PATH of draft:PATH, or NULL; -1: engine.speculate is no such thing. */
int speculate_parse(const char *option, const char **path, struct err *err);

/* engine_step.c: engine_advance starts a step if one can be started, and lands the one before it.
 * engine_land lands the step under way, if any, and starts none. */
void engine_advance(struct engine *e);
void engine_land(struct engine *e);
/* engine.c: the device is gone. Every request ends with an error, and no new one is taken. */
void engine_lost(struct engine *e, const char *why);

/* engine_submit.c: moves what waits in the inbox to the scheduler and carries out cancels and
 * canary changes. Waits for work if there is none and `wait`. False once the engine must stop. */
bool engine_receive(struct engine *e, bool wait);
/* These run for the first time. */
void engine_started(struct engine *e, struct sequence *const *seq, int32_t n);
/* Takes the sequence out, tells its owner, and frees it or leaves that to the step it is in. */
void engine_finish(struct engine *e, struct sequence *seq, enum finish why, const char *error);
/* Frees a sequence that has ended, unless a step with it is under way. */
void engine_release(struct sequence *seq);
void engine_gauges(struct engine *e);

/* tuning.c: whether engine_lend() would run one now, while requests run. */
bool engine_slice_due(struct engine *e);
/* Runs a slice if one is wanted and allowed. True if it ran one. */
bool engine_lend(struct engine *e, bool idle);
/* The kernels to try in this step, or NULL. `live` says whether the step counts for the canary at
 * all. */
const struct overrides *engine_canary_toss(struct engine *e, const struct step *s, bool *live);
void engine_canary_record(struct engine *e, const struct step *s, bool candidate, int64_t ns);
/* Answers everyone waiting in tuning.h with -1 and waits until they have left. */
void engine_release_callers(struct engine *e);
/* Marks the calling thread as one that must never compile. */
void engine_mark_hot_path(void);
uint64_t engine_hot_path_compiles(void);

/* engine_metrics.c */
void engine_stats_init(struct engine_stats *s);
void engine_stats_step(struct engine *e, const struct batch *b, int64_t ns, int32_t generated);
/* A landed step's gap: `before` is when the one before it landed, and the step's own time is ns. */
void engine_stats_gap(struct engine *e, const struct batch *b, int64_t before, int64_t ns);

#endif
